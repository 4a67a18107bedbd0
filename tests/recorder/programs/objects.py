"""Broadcasts, gathers and point-to-point messages of torch.distributed's page, with a split of the group."""

import ranks
import torch
import torch.distributed as dist

device = ranks.start()
rank, size = dist.get_rank(), dist.get_world_size()
weights = torch.randn(1 << 22, device=device, dtype=torch.bfloat16)
dist.broadcast(weights, src=size - 1)
seeds = [rank]
dist.broadcast_object_list(seeds, src=0, device=device)
parts = [torch.empty_like(weights) for _ in range(size)] if rank == 0 else None
dist.gather(weights, parts, dst=0)
dist.scatter(weights, parts, src=0)
dist.reduce(weights, dst=size - 1, op=dist.ReduceOp.SUM)
dist.all_gather([torch.empty_like(weights) for _ in range(size)], weights)
half = torch.empty(weights.numel() // size, device=device, dtype=torch.bfloat16)
dist.reduce_scatter_tensor(half, weights, op=dist.ReduceOp.AVG)
peer = (rank + 1) % size
other = torch.empty_like(weights)
requests = [dist.P2POp(dist.isend, weights, peer), dist.P2POp(dist.irecv, other, peer)]
for request in dist.batch_isend_irecv(requests):
    request.wait()
(dist.send if rank == 0 else dist.recv)(weights[1:], peer)
with dist._coalescing_manager(device=device, async_ops=False):
    for part in weights.chunk(3):
        dist.all_reduce(part)
side = torch.cuda.Stream(priority=-1)
with torch.cuda.stream(side):
    dist.all_reduce(other, async_op=True).wait()
half_precision = torch.ones(4097, device=device, dtype=torch.float16)
dist.all_reduce(half_precision, op=dist.ReduceOp.MAX)
subgroup = dist.new_group([rank], use_local_synchronization=True)
dist.all_reduce(half_precision, group=subgroup)
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    dist.all_reduce(weights)
graph.replay()
torch.cuda.synchronize()
del graph  # it holds the communicator
dist.destroy_process_group()
