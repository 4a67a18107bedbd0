"""The worker's part: read all GPUs' memory repeatedly and record samples."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from gpuipc_doctor.api import DriverError, Worker
from gpuipc_doctor.node.memory_sysfs import Amdgpu
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse, Sample
from gpuipc_doctor.supervise.tree import name_of
from gpuipc_doctor.worker.nvml import DRIVER_NOT_LOADED, NOT_SUPPORTED, Nvml


class Source(Protocol):
    def read(self) -> list[GpuUse]:
        """Current state of every GPU of one vendor."""


class Nvidia:
    """NVIDIA's GPUs, with the numbers of NVML and `nvidia-smi`."""

    def __init__(self, nvml: Nvml, *, loads: bool = False) -> None:
        """``loads``: also read utilisation and power."""
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
                gpus.append(GpuUse(f"nvidia:{index}", "", "", trouble=str(error)))
        if failed and all(gpu.trouble for gpu in gpus):
            raise failed
        return gpus

    def _gpu(self, index: int) -> GpuUse:
        nvml, device = self._nvml, self._nvml.by_index(index)
        name, pci = nvml.name(device), nvml.pci(device)
        total, used = self._memory(device)
        held = nvml.processes(device)
        processes = (
            None if held is None else tuple(ProcessUse(pid, name_of(pid), nbytes) for pid, nbytes in held)
        )
        busy, watts = nvml.load(device) if self._loads else (None, None)
        return GpuUse(f"nvidia:{index}", pci, name, used, total, processes, busy=busy, watts=watts)

    def _memory(self, device: Any) -> tuple[int, int] | tuple[None, None]:
        try:
            total, used, *_ = self._nvml.memory(device)
            return total, used
        except DriverError as error:
            if error.fault.code != NOT_SUPPORTED:
                raise
            return None, None


def sample(w: Worker) -> None:
    """Record a `Sample` every ``interval`` seconds, or only one sample if that is 0. If no GPU can be read,
    record the reason (``absent``) and end."""
    sources, absent = _sources(w)
    interval, began = w.params["interval"], time.monotonic()
    while gpus := [gpu for source in sources for gpu in source.read()]:
        w.tell(asdict(Sample(time.time(), tuple(gpus))))
        if not interval:
            return
        time.sleep(interval - (time.monotonic() - began) % interval)
    w.record(absent=absent)


def _sources(w: Worker) -> tuple[list[Source], list[str]]:
    sources: list[Source] = []
    absent: list[str] = []
    if "cuda" in w.params["backends"]:
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
    if "hip" in w.params["backends"]:
        amd = Amdgpu(w, Path(w.params["root"]))
        known = amd.read()
        if any(not gpu.trouble for gpu in known):
            sources.append(amd)
        else:
            absent.append(f"AMD: {known[0].trouble if known else 'no such GPU on the PCI bus'}")
    return sources, absent
