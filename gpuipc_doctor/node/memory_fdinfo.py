"""Intel's GPUs through what their kernel drivers, xe and i915, tell of open files: bytes by process.

Keys: https://docs.kernel.org/gpu/drm-usage-stats.html; xe names a GPU's memory ``vram0``, i915 ``local0``.
Neither tells how much a GPU has. Experimental: never run on an Intel GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import kernel_driver, matching, quietly
from gpuipc_doctor.node.gpus import intel_gpus_of
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse
from gpuipc_doctor.supervise.tree import name_of
from gpuipc_doctor.vendors import Vendor

_PLACE = re.compile(r"^drm-pdev:\s*(\S+)$", re.MULTILINE)
_CLIENT = re.compile(r"^drm-client-id:\s*(\d+)$", re.MULTILINE)
_BYTES = re.compile(r"^drm-(resident|total)-(?:vram|local)\d+:\s*(\d+)(?: (KiB|MiB))?$", re.MULTILINE)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


class IntelDrm:
    """GPUs below ``root`` that are no part of a processor, in PCI order."""

    def __init__(self, w: Worker, root: Path, vendor: Vendor) -> None:
        self._worker = w
        self._root = root
        self._vendor = vendor
        self._devices = intel_gpus_of(root)

    def read(self) -> list[GpuUse]:
        held = self._held() if self._devices else {}
        return [self._gpu(index, device, held) for index, device in enumerate(self._devices)]

    def _gpu(self, index: int, device: Path, held: dict[tuple[str, int], int]) -> GpuUse:
        name = f"{self._vendor.gpu} {quietly(device / 'device').removeprefix('0x')} ({kernel_driver(device)})"
        pids = sorted(pid for pci, pid in held if pci == device.name)
        processes = tuple(ProcessUse(pid, name_of(pid), held[device.name, pid]) for pid in pids)
        return GpuUse(f"{self._vendor.backend}:{index}", device.name, name, None, None, processes)

    def _held(self) -> dict[tuple[str, int], int]:
        """(PCI address, pid) → bytes. Files of one client are counted once."""
        held: dict[tuple[str, int], int] = {}
        with self._worker.armed("read /proc/*/fdinfo"):
            clients = {(pci, pid, client): nbytes for pci, pid, client, nbytes in self._clients()}
        for (pci, pid, _), nbytes in clients.items():
            held[pci, pid] = held.get((pci, pid), 0) + nbytes
        return held

    def _clients(self) -> Iterator[tuple[str, int, str, int]]:
        for link in matching(self._root, "/proc/[0-9]*/fd/*"):
            try:
                is_gpu = str(link.readlink()).startswith("/dev/dri/")
            except OSError:  # closed, or another user's
                continue
            text = quietly(link.parent.parent / "fdinfo" / link.name) if is_gpu else ""
            pci, client = _PLACE.search(text), _CLIENT.search(text)
            if pci and client:
                yield pci[1], int(link.parent.parent.name), client[1], _resident(text)


def _resident(text: str) -> int:
    """Bytes on the GPU: the resident ones where the driver tells them, else all."""
    found = {"resident": 0, "total": 0}
    kinds = set()
    for kind, number, unit in _BYTES.findall(text):
        kinds.add(kind)
        found[kind] += int(number) * _UNITS[unit]
    return found["resident" if "resident" in kinds else "total"]
