"""DistributedDataParallel in bf16 with gradient clipping (PyTorch's tutorial "ddp_series")."""

import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device = ranks.start()
model = DistributedDataParallel(ranks.model().to(device, torch.bfloat16), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(64, 2048, device=device, dtype=torch.bfloat16)).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
dist.barrier()
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, {"loss": float(loss)})
dist.destroy_process_group()
