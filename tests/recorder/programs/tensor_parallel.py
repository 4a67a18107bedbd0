"""Tensor and sequence parallelism with a device mesh (PyTorch's tutorial "TP_tutorial")."""

import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = ranks.start()
mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))["tensor"]
for plan in (
    {"0": ColwiseParallel(), "2": RowwiseParallel()},
    {
        "0": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    },
    {"0": ColwiseParallel(output_layouts=Replicate()), "2": RowwiseParallel(input_layouts=Replicate())},
):
    torch.manual_seed(0)
    model = parallelize_module(ranks.model().to(device, torch.bfloat16), mesh, plan)
    for _ in range(2):
        out = model(torch.randn(64, 2048, device=device, dtype=torch.bfloat16))
        out.float().square().mean().backward()
dist.destroy_process_group()
