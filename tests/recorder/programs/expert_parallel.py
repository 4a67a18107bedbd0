"""A mixture of experts: tokens go to their experts by an unequal all-to-all, and back."""

import ranks
import torch
import torch.distributed as dist

device = ranks.start()
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(range(size)))
for tokens in (96, 4096):
    send = [tokens // size + (7 if peer == rank else -7) for peer in range(size)]
    counts = torch.tensor(send, device=device)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    take = received.tolist()
    data = torch.randn(sum(send), 2048, device=device, dtype=torch.bfloat16)
    out = torch.empty(sum(take), 2048, device=device, dtype=torch.bfloat16)
    dist.all_to_all_single(out, data, take, send, group=group)
    dist.all_to_all_single(data, out, send, take, group=group, async_op=True).wait()
most = data.abs().amax().float()
dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
dist.destroy_process_group()
