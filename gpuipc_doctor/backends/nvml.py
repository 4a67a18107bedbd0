"""What NVML, NVIDIA's management library, says of the memory of single processes; the driver tells of all."""

from __future__ import annotations

import os
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.gpu import Arm
from gpuipc_doctor.marker import MARKER, carried

if TYPE_CHECKING:
    import ctypes

_LIBRARY = "libnvidia-ml.so.1"
_CALL = "nvmlDeviceGetComputeRunningProcesses_v3"
_NOT_AVAILABLE = 2**64 - 1
_MOST_PROCESSES = 256
_MPS_SERVER = "nvidia-cuda-mps"
"""How the name of the process begins that holds memory for the clients of MPS, ours among them."""


class Nvml:
    """NVML in this process, loaded by the first question; a node or a container may be without."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm

    def memory_of_this_process(self, uuid: str) -> int | None:
        """Bytes that this process holds of a GPU.

        None where NVML does not tell: in a container it may know the process by another number.
        """
        return self._held(uuid).get(os.getpid())

    def memory_of_strangers(self, uuid: str) -> int:
        """Bytes that processes hold of a GPU which are none of this run's; 0 where NVML does not tell."""
        held = self._held(uuid)
        if held.pop(os.getpid(), None) is None:  # nor does it know others by the numbers that they have here
            return 0
        return sum(nbytes for pid, nbytes in held.items() if is_stranger(pid))

    def _held(self, uuid: str) -> dict[int, int]:
        """Bytes of a GPU by process, as far as NVML tells."""
        import ctypes

        if self._library is None:
            return {}
        gpu, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        found = self._list_of_processes()
        with self._arm(_CALL):
            unknown = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu))
            if unknown or getattr(self._library, _CALL)(gpu, ctypes.byref(count), found):
                return {}
        held: Counter[int] = Counter()
        for process in found[: count.value]:
            if process.bytes != _NOT_AVAILABLE:
                held[process.pid] += process.bytes
        return held

    @cached_property
    def _list_of_processes(self) -> Any:
        """The type of an array of ``nvmlProcessInfo_v2_t`` (nvml.h)."""
        import ctypes

        class Process(ctypes.Structure):
            _fields_ = (
                ("pid", ctypes.c_uint),
                ("bytes", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint),
            )

        return Process * _MOST_PROCESSES

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


def is_stranger(pid: int) -> bool:
    """Whether a process lives and is none of this run's.

    One that is ending has no environment left to tell by (an empty one, in older kernels), and what it still
    holds may be ours. That of another user is only root's to read.
    """
    run = os.environ.get(MARKER, "").partition("/")[0]
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False
    can_tell = run and b"=" in environment and not name.startswith(_MPS_SERVER)
    return bool(can_tell) and carried(environment).partition("/")[0] != run
