"""GPU memory by process, from NVML; the driver only reports the sum of all processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.model import Json
from gpuipc_doctor.stacks.process_list import MARKER
from gpuipc_doctor.supervise.tree import carried, carries, name_of
from gpuipc_doctor.worker.nvml import Nvml

_MPS_SERVER = "nvidia-cuda-mps"
"""Prefix of the name of the process that holds memory for MPS clients, including ours."""


class ProcessMemory:
    """GPU memory by process as reported by NVML; unknown without NVML."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._ours: set[int] = set()
        """Pids of this probe's processes that were seen to hold memory."""

    @property
    def is_confidential(self) -> bool:
        """Whether NVML reports that the node's GPUs are in confidential-computing mode."""
        return bool(self._nvml and self._nvml.is_confidential())

    def of_this_process(self, uuid: str) -> int | None:
        """Bytes of a GPU held by this process.

        None if NVML does not report them: in a container, NVML may know the process by another pid.
        """
        return self._held(uuid).get(os.getpid())

    def of_this_probe(self, uuid: str) -> int | None:
        """Bytes of a GPU held by the processes that have this process's marker; None if NVML does not list
        this process, or does not tell the bytes of one of them."""
        listed, marker = self._listed(uuid), os.environ.get(MARKER, "")
        self._ours |= {pid for pid in listed.keys() - self._ours if carries(pid, marker)}
        held = [listed[pid] for pid in self._ours & listed.keys()]
        known = [nbytes for nbytes in held if nbytes is not None]
        return sum(known) if os.getpid() in listed and len(known) == len(held) else None

    def of_nobody(self, uuid: str) -> tuple[int, list[int]] | None:
        """Bytes in use that no process holds, and the pids of all holders; None if NVML does not tell the
        bytes of each, or tells more than are in use."""
        with suppress(DriverError):
            found = self._nvml.processes(self._gpu(self._nvml, uuid)) if self._nvml else None
            used = self.used(uuid)
            if found is not None and used is not None:
                held = [nbytes for _, nbytes in found if nbytes is not None]
                is_told = len(held) == len(found) and sum(held) <= used
                return (used - sum(held), [pid for pid, _ in found]) if is_told else None
        return None

    def used(self, uuid: str) -> int | None:
        """Bytes of a GPU in use by all processes together; None if NVML does not report them."""
        with suppress(DriverError):
            if self._nvml:
                return self._nvml.memory(self._gpu(self._nvml, uuid)).used
        return None

    def left(self, uuid: str) -> tuple[int, int] | None:
        """(free, total) bytes of a GPU; None if NVML does not report them."""
        with suppress(DriverError):
            if self._nvml:
                memory = self._nvml.memory(self._gpu(self._nvml, uuid))
                return memory.free, memory.total
        return None

    def pcie_link(self, uuid: str) -> dict[str, Json] | None:
        """See `Nvml.pcie_link`; None if NVML does not report it."""
        with suppress(DriverError):
            if self._nvml:
                return self._nvml.pcie_link(self._gpu(self._nvml, uuid))
        return None

    def of_strangers(self, uuid: str, *, has_context: bool) -> int:
        """Bytes of a GPU held by processes outside this run; 0 if NVML does not report them.

        ``has_context``: this process has a context on the GPU, so NVML's list is trusted only if it includes
        this process.
        """
        held = self._held(uuid)
        if has_context and os.getpid() not in held:  # nor does NVML know others by their pids here
            return 0
        return sum(nbytes for pid, nbytes in held.items() if pid != os.getpid() and is_stranger(pid))

    def holders(self, uuid: str) -> list[dict[str, Json]]:
        """Processes that hold memory of a GPU; in a container, their pids may be unknown."""
        return [
            {
                "pid": pid,
                "name": name_of(pid),
                "held": nbytes,
                "whose": "not part of this run" if is_stranger(pid) else "perhaps of this test",
            }
            for pid, nbytes in self._held(uuid).items()
            if nbytes
        ]

    def _held(self, uuid: str) -> dict[int, int]:
        """Process id → bytes of a GPU that the process holds, where NVML tells them."""
        return {pid: nbytes for pid, nbytes in self._listed(uuid).items() if nbytes is not None}

    def _listed(self, uuid: str) -> dict[int, int | None]:
        """Process id → bytes of a GPU that the process holds; None if NVML does not tell them."""
        listed: dict[int, int | None] = {}
        with suppress(DriverError):
            found = self._nvml.processes(self._gpu(self._nvml, uuid)) if self._nvml else None
            for pid, nbytes in found or ():  # once for each MIG instance
                before = listed.get(pid, 0)
                listed[pid] = None if nbytes is None or before is None else before + nbytes
        return listed

    def _gpu(self, nvml: Nvml, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = nvml.by_uuid(uuid)
        return self._handles[uuid]


def is_stranger(pid: int) -> bool:
    """Whether a process is running and does not belong to this run.

    A process that is ending has no environment left (in older kernels, an empty one), and may belong to this
    run. Only root can read another user's environment.
    """
    run = os.environ.get(MARKER, "").partition("/")[0]
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    can_tell = run and b"=" in environment and (name := name_of(pid)) and not name.startswith(_MPS_SERVER)
    return bool(can_tell) and carried(environment).partition("/")[0] != run
