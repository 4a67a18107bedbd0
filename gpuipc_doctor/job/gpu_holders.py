"""Processes that use a GPU, as listed by NVML and AMD's kernel driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.model import Node
from gpuipc_doctor.stacks.process_list import PROC
from gpuipc_doctor.vendors import SUPPORTED, SupportedVendor

if TYPE_CHECKING:
    from gpuipc_doctor.node.memory_usage import GpuUse, Sample

_BACKENDS = {word: backend for backend, vendor in SUPPORTED.items() for word in (backend, vendor.component)}
"""What may stand before a GPU's number → its backend."""

LABEL = re.compile(rf"({'|'.join(_BACKENDS)}):\d+")

START_UP_S = 60.0
SHORT_START_UP_S = 8.0
"""Seconds for the GPU driver to start, in cases where the verdict does not need the driver's answer."""


def pids(label: str, node: Node) -> tuple[int, ...]:
    """Pids of processes with memory on ``cuda:0`` or ``hip:0`` (numbered in PCI order). Raises `NoSuchJob`.

    Drivers list pids of the node, which differ from those inside a container.
    """
    vendor, _, number = label.partition(":")
    backend = _BACKENDS[vendor]
    wanted = f"{backend}:{number}"
    gpus = _gpus((backend,), node)
    found = next((gpu for gpu in gpus if gpu.label == wanted), None)
    if found is None:
        raise NoSuchJob(f"GPU {label} not found; found: {', '.join(gpu.label for gpu in gpus) or 'none'}")
    if found.trouble or found.processes is None:
        raise NoSuchJob(f"cannot list the processes on {label}: {found.trouble or 'not listed'}")
    listed = tuple(process.pid for process in found.processes)
    if not listed:
        raise NoSuchJob(f"no process uses {label}")
    ours = tuple(pid for pid in listed if (PROC / str(pid)).exists())
    if not ours:
        numbers = ", ".join(map(str, listed))
        raise NoSuchJob(f"{label} is used by pid {numbers} outside this container: use the tool on the host")
    return ours


def _gpus(
    backends: Sequence[str], node: Node, start_up_s: float = START_UP_S, *, loads: bool = False
) -> Sequence[GpuUse]:
    from gpuipc_doctor.node import memory_watching  # most jobs' ranks are on no GPU
    from gpuipc_doctor.report import sentences

    samples: list[Sample] = []
    end = memory_watching.watch(node, backends, 0.0, samples.append, start_up_s=start_up_s, loads=loads)
    if end.trouble:
        raise NoSuchJob(f"cannot list GPUs: {sentences.summary(end.trouble)}")
    if not samples:
        raise NoSuchJob("; ".join(end.absent) or "no GPU found")
    return samples[-1].gpus


def now(node: Node) -> Sequence[GpuUse]:
    """The node's GPUs with their processes, utilisation and power. Raises `NoSuchJob` if none can be
    listed."""
    return _gpus(tuple(SUPPORTED), node, start_up_s=SHORT_START_UP_S, loads=True)


def of_ranks(gpus: Sequence[GpuUse], ranks: Mapping[int, Process]) -> dict[int, GpuUse]:
    """Rank → its one GPU: the GPU on which the process has memory, or that of its number on this node.

    In a container, the driver lists pids that differ from the container's.
    """
    known = {gpu.label: gpu for gpu in gpus if not gpu.trouble}
    held = {pid: labels for pid, labels in holders(gpus).items() if len(labels) == 1}
    if all(process.pid in held for process in ranks.values()):
        return {rank: known[held[process.pid][0]] for rank, process in ranks.items()}
    for backend, vendor in SUPPORTED.items():
        labels = {rank: f"{backend}:{_index(process, vendor)}" for rank, process in ranks.items()}
        if len({*labels.values()} & known.keys()) == len(ranks):
            return {rank: known[label] for rank, label in labels.items()}
    return {}


def _index(process: Process, vendor: SupportedVendor) -> int | None:
    """The number of a process's GPU by its number on the node and the GPUs that it may see."""
    lists = {name: value for name in vendor.hides if (value := process.settings.get(name))}
    visible = [part for part in lists.pop(vendor.choice.variable, "").split(",") if part]
    if lists or not all(map(str.isdecimal, visible)):  # a second list renumbers the first one's
        return None
    if len(visible) == 1:
        return int(visible[0])
    if process.local is None or (visible and process.local >= len(visible)):
        return None
    return int(visible[process.local]) if visible else process.local


def holders(gpus: Sequence[GpuUse]) -> dict[int, tuple[str, ...]]:
    """Pid → the GPUs on which the process has memory, numbered as by `nvidia-smi` and `rocm-smi`."""
    held = by_key((process.pid, gpu.label) for gpu in gpus for process in gpu.processes or ())
    return {pid: tuple(labels) for pid, labels in held.items()}


def used(gpus: Sequence[GpuUse]) -> dict[int, int]:
    """Bytes of device memory by pid, on all GPUs together."""
    total: dict[int, int] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            total[process.pid] = total.get(process.pid, 0) + (process.used or 0)
    return total


def watch(node: Node, interval_s: float, is_over: Callable[[Sequence[GpuUse]], bool]) -> None:
    """Read the memory use of the node's GPUs every ``interval_s`` seconds, in one worker, until ``is_over``
    is true for a reading.

    Raises `NoSuchJob` if no GPU can be read, and `KeyboardInterrupt`.
    """
    from gpuipc_doctor.node import memory_watching  # most jobs' ranks are on no GPU
    from gpuipc_doctor.report import sentences

    over = False

    def listen(sample: Sample) -> object:
        nonlocal over
        over = is_over(sample.gpus)
        return memory_watching.ENOUGH if over else None

    end = memory_watching.watch(node, tuple(SUPPORTED), interval_s, listen, start_up_s=START_UP_S)
    if end.trouble:
        raise NoSuchJob(f"cannot list GPUs: {sentences.summary(end.trouble)}")
    if end.absent:
        raise NoSuchJob("; ".join(end.absent))
    if not over:
        raise KeyboardInterrupt
