"""What NVML, NVIDIA's management library, says of the memory of single processes; the driver tells of all."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.gpu import Arm

if TYPE_CHECKING:
    import ctypes

_LIBRARY = "libnvidia-ml.so.1"
_CALL = "nvmlDeviceGetComputeRunningProcesses_v3"
_NOT_AVAILABLE = 2**64 - 1
_MOST_PROCESSES = 256


class Nvml:
    """NVML in this process, loaded by the first question; a node or a container may be without."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm

    def memory_of_this_process(self, uuid: str) -> int | None:
        """Bytes that this process holds of a GPU.

        None where NVML does not tell: in a container it may know the process by another number.
        """
        import ctypes

        class Process(ctypes.Structure):
            """``nvmlProcessInfo_v2_t`` (nvml.h)."""

            _fields_ = (
                ("pid", ctypes.c_uint),
                ("bytes", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint),
            )

        if self._library is None:
            return None
        gpu, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        found = (Process * _MOST_PROCESSES)()
        with self._arm(_CALL):
            unknown = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu))
            if unknown or getattr(self._library, _CALL)(gpu, ctypes.byref(count), found):
                return None
        held = (process.bytes for process in found[: count.value] if process.pid == os.getpid())
        return next((int(nbytes) for nbytes in held if nbytes != _NOT_AVAILABLE), None)

    @cached_property
    def _library(self) -> ctypes.CDLL | None:
        """The library, initialised; None where that fails."""
        import ctypes

        try:
            with self._arm("nvmlInit_v2"):
                library: Any = ctypes.CDLL(_LIBRARY)
                failed = library.nvmlInit_v2() or not hasattr(library, _CALL)
        except (OSError, AttributeError):
            return None
        return None if failed else library
