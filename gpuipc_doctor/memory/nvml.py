"""NVIDIA's GPUs through NVML, which makes no context and so takes no device memory.

What is asked and how it answers: https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetMemoryInfo_v2,
nvmlDeviceGetComputeRunningProcesses). The structures are nvml.h's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from gpuipc_doctor.api import DriverError, Worker
from gpuipc_doctor.memory.usage import GpuUse, ProcessUse
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.supervise.tree import name_of

LIBRARY = "libnvidia-ml.so.1"

DRIVER_NOT_LOADED = 9
"""``NVML_ERROR_DRIVER_NOT_LOADED``: the library is here, and no GPU of NVIDIA's."""

INSUFFICIENT_SIZE = 7
NOT_TOLD = 2**64 - 1
"""``NVML_VALUE_NOT_AVAILABLE`` as bytes of a process: with MIG, or where the driver does not count them."""

_MEMORY = struct.Struct("=5Q")  # of nvmlMemory_v2_t the version (and a gap), total, reserved, free, used
_MEMORY_VERSION = 40 | 2 << 24
_PLAIN_MEMORY = struct.Struct("=3Q")  # of nvmlMemory_t: total, free, used
_PROCESS = struct.Struct("=I4xQII")  # of nvmlProcessInfo_t, version 2 and 3: pid, bytes, MIG instances
_PCI_BYTES, _PCI_TEXT = 68, 36  # of nvmlPciInfo_t, version 3: its size, and where its busId is
_NAME_BYTES = 96


class Nvml:
    """NVML, initialised. Raises `OSError` where there is none, and `DriverError` where it does not work."""

    def __init__(self, w: Worker) -> None:
        import ctypes

        self._worker = w
        with w.armed(f"load {LIBRARY}"):
            self._library = ctypes.CDLL(LIBRARY)
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def read(self) -> list[GpuUse]:
        """Every GPU as it is now. Raises the last `DriverError` when not one could be read."""
        import ctypes

        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        gpus, failed = [], None
        for index in range(count.value):
            try:
                gpus.append(self._gpu(index))
            except DriverError as error:
                failed = error
                gpus.append(GpuUse(f"nvidia:{index}", "", "", trouble=str(error)))
        if failed and all(gpu.trouble for gpu in gpus):
            raise failed
        return gpus

    def _gpu(self, index: int) -> GpuUse:
        import ctypes

        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        name, pci = (ctypes.create_string_buffer(size) for size in (_NAME_BYTES, _PCI_BYTES))
        self._call("nvmlDeviceGetName", device, name, _NAME_BYTES)
        self._call("nvmlDeviceGetPciInfo_v3", device, pci)
        total, used = self._memory(device)
        return GpuUse(
            f"nvidia:{index}",
            pci.raw[_PCI_TEXT:].partition(b"\0")[0].decode("ascii", "replace").lower()[-12:],
            name.value.decode(errors="replace"),
            used,
            total,
            self._processes(device),
        )

    def _memory(self, device: Any) -> tuple[int, int]:
        """Total bytes and those in use, without what the driver reserves for itself where it tells that."""
        import ctypes

        if self._has("nvmlDeviceGetMemoryInfo_v2"):
            memory = ctypes.create_string_buffer(_MEMORY.size)
            struct.pack_into("=I", memory, 0, _MEMORY_VERSION)
            self._call("nvmlDeviceGetMemoryInfo_v2", device, memory)
            _, total, _, _, used = _MEMORY.unpack(memory)
        else:
            memory = ctypes.create_string_buffer(_PLAIN_MEMORY.size)
            self._call("nvmlDeviceGetMemoryInfo", device, memory)
            total, _, used = _PLAIN_MEMORY.unpack(memory)
        return total, used

    def _processes(self, device: Any) -> tuple[ProcessUse, ...] | None:
        """The processes with a context on the GPU; None where this driver does not tell."""
        import ctypes

        versions = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        function = next(filter(self._has, versions), "")
        if not function:
            return None
        room = 32
        while True:
            count, found = ctypes.c_uint(room), ctypes.create_string_buffer(room * _PROCESS.size)
            try:
                self._call(function, device, ctypes.byref(count), found)
            except DriverError as error:
                if error.fault.code != INSUFFICIENT_SIZE or count.value <= room:
                    return None
                room = 2 * count.value
            else:
                return tuple(_processes(found.raw[: count.value * _PROCESS.size]))

    def _has(self, function: str) -> bool:
        return hasattr(self._library, function)

    def _call(self, function: str, *arguments: Any) -> None:
        with self._worker.armed(function):
            code = getattr(self._library, function)(*arguments)
        if code:
            name = self._library.nvmlErrorString(code).decode(errors="replace")
            raise DriverError(DriverFault(function, code, name))


def _processes(found: bytes) -> Iterator[ProcessUse]:
    for pid, used, _, _ in _PROCESS.iter_unpack(found):
        yield ProcessUse(pid, name_of(pid), None if used == NOT_TOLD else used)
