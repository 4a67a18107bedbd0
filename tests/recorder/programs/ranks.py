"""Two ranks of PyTorch that may share one GPU: to NCCL each is a node of its own (NCCL_HOSTID)."""

import os

import torch
import torch.distributed as dist


def start() -> torch.device:
    """This rank's GPU, with the process group made as PyTorch's documentation does."""
    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    if gpus < int(os.environ["WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = f"node{rank}"
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if os.environ.get("EAGER") else None)
    return device


def model(width: int = 2048) -> torch.nn.Module:
    """A perceptron of some 50 MB."""
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    return torch.nn.Sequential(*layers)
