"""A pipeline of two stages (PyTorch's documentation of torch.distributed.pipelining)."""

import ranks
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

device = ranks.start()
rank, size = dist.get_rank(), dist.get_world_size()
for schedule in (ScheduleGPipe, Schedule1F1B):
    stage = PipelineStage(ranks.model().to(device, torch.bfloat16), rank, size, device)
    runner = schedule(
        stage, n_microbatches=4, loss_fn=lambda out, wanted: (out - wanted).float().square().mean()
    )
    batch = torch.randn(64, 2048, device=device, dtype=torch.bfloat16)
    for _ in range(2):
        if rank == 0:
            runner.step(batch)
        else:
            runner.step(target=batch, losses=[])
dist.destroy_process_group()
