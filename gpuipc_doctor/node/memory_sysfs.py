"""AMD's GPUs through files of the kernel driver amdgpu: no library, no context, no device memory.

``mem_info_vram_total`` and ``mem_info_vram_used``: https://docs.kernel.org/gpu/amdgpu/driver-misc.html.
``/sys/class/kfd/kfd/proc/PID/vram_GPU`` and the topology that maps it to a GPU: drivers/gpu/drm/amd/
amdkfd/kfd_process.c and kfd_topology.c. Not tried on an AMD GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import gpus_on_bus, matching, number, quietly
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse
from gpuipc_doctor.supervise.tree import name_of
from gpuipc_doctor.vendors import Vendor


class Amdgpu:
    """GPUs below ``root`` that amdgpu may drive, ordered by PCI address."""

    def __init__(self, w: Worker, root: Path, vendor: Vendor) -> None:
        self._worker = w
        self._root = root
        self._vendor = vendor
        self._devices = gpus_on_bus(root, vendor.pci, self._text)
        self._numbers = dict(self._topology())

    def read(self) -> list[GpuUse]:
        return [self._gpu(index, device) for index, device in enumerate(self._devices)]

    def _gpu(self, index: int, device: Path) -> GpuUse:
        label, pci = f"{self._vendor.backend}:{index}", device.name
        name = self._text(device / "product_name")
        used, total = (self._number(device / f"mem_info_vram_{what}") for what in ("used", "total"))
        if used is None or total is None:
            missing = device / f"mem_info_vram_{'used' if used is None else 'total'}"
            return GpuUse(label, pci, name, trouble=self._reason(missing))
        if not total:  # an APU such as MI300A, whose memory is the system's
            return GpuUse(label, pci, name, None, None, self._processes(pci))
        return GpuUse(label, pci, name, used, total, self._processes(pci))

    def _reason(self, file: Path) -> str:
        """Why no number could be read from a file."""
        shown = str(file).removeprefix(str(self._root).rstrip("/"))
        try:
            with self._worker.armed(f"read {file}"):
                file.read_bytes()
        except OSError as error:
            return f"{shown}: {error.strerror}"
        return f"{shown}: not a number"

    def _processes(self, pci: str) -> tuple[ProcessUse, ...] | None:
        kfd = self._root / "sys/class/kfd/kfd/proc"
        if pci not in self._numbers or not kfd.is_dir():
            return None
        found = []
        for file in matching(kfd, f"*/vram_{self._numbers[pci]}"):
            used = self._number(file)
            if used is not None and file.parent.name.isdecimal():  # else the process has ended
                pid = int(file.parent.name)
                found.append(ProcessUse(pid, name_of(pid), used))
        return tuple(found)

    def _topology(self) -> Iterator[tuple[str, str]]:
        """(PCI address, KFD's number) of each GPU; KFD counts memory in files named after its number."""
        for node in matching(self._root, "/sys/class/kfd/kfd/topology/nodes/*"):
            properties = dict(re.findall(r"^(\w+) (\d+)$", self._text(node / "properties"), re.MULTILINE))
            number = self._text(node / "gpu_id")
            if number not in ("", "0") and {"domain", "location_id"} <= properties.keys():
                domain, place = int(properties["domain"]), int(properties["location_id"])
                yield f"{domain:04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}", number

    def _number(self, file: Path) -> int | None:
        with self._worker.armed(f"read {file}"):
            return number(file)

    def _text(self, file: Path) -> str:
        with self._worker.armed(f"read {file}"):
            return quietly(file)
