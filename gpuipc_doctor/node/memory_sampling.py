"""The worker's part: read all GPUs' memory repeatedly and record samples."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from gpuipc_doctor.api import DriverError, Worker
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.node import gpu_users
from gpuipc_doctor.node.memory_fdinfo import IntelDrm
from gpuipc_doctor.node.memory_sysfs import Amdgpu
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse, Sample
from gpuipc_doctor.supervise.tree import name_of
from gpuipc_doctor.vendors import AMD, INTEL, NVIDIA
from gpuipc_doctor.worker.nvml import DRIVER_NOT_LOADED, NOT_SUPPORTED, Nvml


class Source(Protocol):
    def read(self) -> list[GpuUse]:
        """Current state of every GPU of one vendor."""


class Nvidia:
    """NVIDIA's GPUs, with the numbers of NVML and `nvidia-smi`."""

    def __init__(self, nvml: Nvml, *, loads: bool = False) -> None:
        """``loads``: also read utilisation, power and its limit."""
        self._nvml = nvml
        self._loads = loads

    def read(self) -> list[GpuUse]:
        """Current state of every GPU. Raises the last `DriverError` if none could be read."""
        gpus, failed = [], None
        for index in range(self._nvml.count()):
            try:
                gpus.append(self._gpu(index))
            except DriverError as error:
                failed = error
                gpus.append(GpuUse(f"{NVIDIA.backend}:{index}", "", "", trouble=str(error)))
        if failed and all(gpu.trouble for gpu in gpus):
            raise failed
        return gpus

    def _gpu(self, index: int) -> GpuUse:
        nvml, device = self._nvml, self._nvml.by_index(index)
        name, pci = nvml.name(device), nvml.pci(device)
        total, used = self._memory(device)
        held = nvml.processes(device)
        processes = (
            None
            if held is None
            else tuple(_of_each([*held, *(nvml.processes(device, "Graphics") or ())], total))
        )
        busy, watts, limit = nvml.load(device) if self._loads else (None, None, None)
        label = f"{NVIDIA.backend}:{index}"
        return GpuUse(label, pci, name, used, total, processes, "", busy, watts, limit)

    def _memory(self, device: Any) -> tuple[int, int] | tuple[None, None]:
        try:
            total, used, *_ = self._nvml.memory(device)
            return total, used
        except DriverError as error:
            if error.fault.code != NOT_SUPPORTED:
                raise
            return None, None


def nvidia_loads(arm: Arm) -> list[GpuUse]:
    """NVIDIA's GPUs with utilisation and power. Raises `OSError`, `DriverError`."""
    return Nvidia(Nvml(arm), loads=True).read()


def _of_each(held: Iterable[tuple[int, int | None]], total: int | None) -> Iterator[ProcessUse]:
    """The use of each process, which may be listed for several MIG instances, and for drawing also.

    A figure above the device's memory is none.
    """
    of_pid: dict[int, list[int | None]] = {}
    for pid, used in held:
        of_pid.setdefault(pid, []).append(None if used is None or used > (total or used) else used)
    for pid, figures in of_pid.items():
        known = [each for each in figures if each is not None]
        yield ProcessUse(pid, name_of(pid), sum(known) if len(known) == len(figures) else None)


def sample(w: Worker) -> None:
    """Record a `Sample` every ``interval`` seconds, or only one sample if that is 0. If no GPU can be read,
    record the reason (``absent``) and end."""
    sources, absent = _sources(w)
    interval, began = w.params["interval"], time.monotonic()
    while gpus := [gpu for source in sources for gpu in source.read()]:
        w.tell(asdict(Sample(time.time(), tuple(gpus))))
        if not interval:
            absent = []
            break
        time.sleep(interval - (time.monotonic() - began) % interval)
    w.record(absent=absent)
    if health := w.params.get("health"):
        w.record(health=w.gpu_health(**health))
    if w.params.get("users"):
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        w.record(users=asdict(gpu_users.look(w, Path(w.params["root"]), pids)))


def _sources(w: Worker) -> tuple[list[Source], list[str]]:
    sources: list[Source] = []
    absent: list[str] = []
    if NVIDIA.backend in w.params["backends"]:
        try:
            nvidia = Nvidia(Nvml(w.armed), loads=bool(w.params.get("loads")))
        except OSError as error:
            absent.append(f"NVIDIA: {error}")
        except DriverError as error:
            if error.fault.code != DRIVER_NOT_LOADED:
                raise
            absent.append(f"NVIDIA: {error}")
        else:
            if nvidia.read():
                sources.append(nvidia)
            else:
                absent.append("NVIDIA: NVML lists no GPU")
    if AMD.backend in w.params["backends"]:
        amd = Amdgpu(w, Path(w.params["root"]), AMD)
        known = amd.read()
        if any(not gpu.trouble for gpu in known):
            sources.append(amd)
        else:
            absent.append(f"AMD: {known[0].trouble if known else 'no such GPU on the PCI bus'}")
    intel = IntelDrm(w, Path(w.params["root"]), INTEL)
    if INTEL.backend in w.params["backends"] and intel.read():
        sources.append(intel)
    return sources, absent
