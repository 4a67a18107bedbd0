"""The memory of GPUs by process, from NVML; the driver reports the sum of all processes only."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuipc_doctor.api.gpu import DriverError
from gpuipc_doctor.model import Json
from gpuipc_doctor.nvml import Nvml
from gpuipc_doctor.supervise.keeper import MARKER
from gpuipc_doctor.supervise.tree import carried, name_of

_MPS_SERVER = "nvidia-cuda-mps"
"""How the name of the process begins that holds memory for the clients of MPS, ours among them."""


class ProcessMemory:
    """The memory of GPUs by process, as far as NVML reports it; without NVML, nothing is known."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}

    def of_this_process(self, uuid: str) -> int | None:
        """Bytes that this process holds of a GPU.

        None where NVML does not report it: in a container it may know the process by another number.
        """
        return self._held(uuid).get(os.getpid())

    def used(self, uuid: str) -> int | None:
        """Bytes of a GPU that are in use, by all processes together; None where NVML does not report it."""
        with suppress(DriverError):
            if self._nvml:
                return self._nvml.memory(self._gpu(self._nvml, uuid))[1]
        return None

    def of_strangers(self, uuid: str, *, has_context: bool) -> int:
        """Bytes that processes hold of a GPU which are none of this run's; 0 where NVML does not report them.

        ``has_context``: this process has one there, so NVML must list it if its list is to be believed.
        """
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

    def _held(self, uuid: str) -> Counter[int]:
        """Bytes of a GPU by process."""
        held: Counter[int] = Counter()
        with suppress(DriverError):
            found = self._nvml.processes(self._gpu(self._nvml, uuid)) if self._nvml else None
            for pid, nbytes in found or ():
                if nbytes is not None:
                    held[pid] += nbytes
        return held

    def _gpu(self, nvml: Nvml, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = nvml.by_uuid(uuid)
        return self._handles[uuid]


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
