"""The processes that use a GPU, as NVML and the kernel driver of AMD's GPUs list them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.memory import watching
from gpuipc_doctor.memory.usage import GpuUse, Sample
from gpuipc_doctor.model import Node
from gpuipc_doctor.report import sentences
from gpuipc_doctor.supervise.tree import PROC

LABEL = re.compile(r"(cuda|nvidia|hip|amd):(\d+)")

_VENDORS = {"cuda": "nvidia", "hip": "amd"}

START_UP_S = 60.0


def pids(label: str, node: Node) -> tuple[int, ...]:
    """The processes with memory on ``cuda:0`` or ``hip:0``, which count in PCI order. Raises `NoSuchJob`.

    Drivers list pids of the node: in a container, those of its processes are other ones.
    """
    vendor, _, number = label.partition(":")
    wanted = f"{_VENDORS.get(vendor, vendor)}:{number}"
    gpus = _gpus(("cuda",) if wanted.startswith("nvidia") else ("hip",), node)
    found = next((gpu for gpu in gpus if gpu.label == wanted), None)
    if found is None:
        raise NoSuchJob(f"no GPU {label} here; found: {', '.join(gpu.label for gpu in gpus) or 'none'}")
    if found.trouble or found.processes is None:
        raise NoSuchJob(f"which processes use {label} cannot be told: {found.trouble or 'not listed'}")
    listed = tuple(process.pid for process in found.processes)
    if not listed:
        raise NoSuchJob(f"no process uses {label}")
    ours = tuple(pid for pid in listed if (PROC / str(pid)).exists())
    if not ours:
        numbers = ", ".join(map(str, listed))
        raise NoSuchJob(f"{label} is used by pid {numbers} of the node, unknown in this pid namespace")
    return ours


def _gpus(backends: Sequence[str], node: Node) -> Sequence[GpuUse]:
    samples: list[Sample] = []
    end = watching.watch(node, backends, 0.0, samples.append, start_up_s=START_UP_S)
    if end.trouble:
        raise NoSuchJob(f"GPUs cannot be asked: {sentences.summary(end.trouble)}")
    if not samples:
        raise NoSuchJob("; ".join(end.absent) or "no GPU here")
    return samples[-1].gpus


def memory(node: Node) -> dict[int, int]:
    """Bytes of device memory by pid, on all GPUs together; empty where no GPU can be asked."""
    used: dict[int, int] = {}
    try:
        gpus = _gpus(("cuda", "hip"), node)
    except NoSuchJob:
        return used
    for gpu in gpus:
        for process in gpu.processes or ():
            used[process.pid] = used.get(process.pid, 0) + (process.used or 0)
    return used
