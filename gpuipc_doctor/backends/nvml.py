"""What NVML, NVIDIA's management library, says of the memory of single processes; the driver tells of all."""

from __future__ import annotations

import os
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.model import Json
from gpuipc_doctor.supervise.marker import MARKER, carried
from gpuipc_doctor.supervise.tree import name_of

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
        self._handles: dict[str, ctypes.c_void_p] = {}

    def memory_of_this_process(self, uuid: str) -> int | None:
        """Bytes that this process holds of a GPU.

        None where NVML does not tell: in a container it may know the process by another number.
        """
        return self._held(uuid).get(os.getpid())

    def memory_used(self, uuid: str) -> int | None:
        """Bytes of a GPU that are in use, by all processes together; None where NVML does not tell."""
        import ctypes

        memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        gpu = self._gpu(uuid)
        if gpu is None or self._library is None:
            return None
        with self._arm("nvmlDeviceGetMemoryInfo"):
            failed = self._library.nvmlDeviceGetMemoryInfo(gpu, memory)
        return None if failed else memory[2]

    def memory_of_strangers(self, uuid: str, *, has_context: bool) -> int:
        """Bytes that processes hold of a GPU which are none of this run's; 0 where NVML does not tell."""
        held = self._held(uuid)
        if has_context and os.getpid() not in held:  # nor does it know others by the numbers they have here
            return 0
        return sum(nbytes for pid, nbytes in held.items() if is_stranger(pid))

    def holders(self, uuid: str) -> list[dict[str, Json]]:
        """Who holds memory of a GPU; in a container, maybe by numbers that mean nobody there."""
        return [
            {
                "pid": pid,
                "name": name_of(pid),
                "held": nbytes,
                "whose": "none of this run's" if is_stranger(pid) else "maybe this run's",
            }
            for pid, nbytes in self._held(uuid).items()
            if nbytes
        ]

    def _held(self, uuid: str) -> dict[int, int]:
        """Bytes of a GPU by process, as far as NVML tells."""
        import ctypes

        if self._library is None:
            return {}
        gpu, count = self._gpu(uuid), ctypes.c_uint(_MOST_PROCESSES)
        found = self._list_of_processes()
        with self._arm(_CALL):
            if gpu is None or getattr(self._library, _CALL)(gpu, ctypes.byref(count), found):
                return {}
        held: Counter[int] = Counter()
        for process in found[: count.value]:
            if process.bytes != _NOT_AVAILABLE:
                held[process.pid] += process.bytes
        return held

    def _gpu(self, uuid: str) -> ctypes.c_void_p | None:
        """NVML's handle of a GPU; None where it has none to give."""
        import ctypes

        if self._library is None:
            return None
        if uuid not in self._handles:
            gpu = ctypes.c_void_p()
            with self._arm("nvmlDeviceGetHandleByUUID"):
                unknown = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu))
            if unknown:
                return None
            self._handles[uuid] = gpu
        return self._handles[uuid]

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
    except OSError:
        return False
    can_tell = run and b"=" in environment and (name := name_of(pid)) and not name.startswith(_MPS_SERVER)
    return bool(can_tell) and carried(environment).partition("/")[0] != run
