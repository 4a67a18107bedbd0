"""The worker's part: which GPUs have too little free memory for tests, and who holds the rest.

NVML lists the processes that hold memory of a GPU. What the device counts and no living process holds is
lost, with an exception: managed memory is counted for no process. It is mapped from ``/dev/nvidia-uvm``
(NVIDIA's open kernel module, uvm.c), so a process's mappings of that file bound it.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.api import DriverError, Worker
from gpuipc_doctor.api.driver_errors import TEST_CONTEXTS, room_for
from gpuipc_doctor.files import reading
from gpuipc_doctor.files.node_files import quietly
from gpuipc_doctor.model import Json
from gpuipc_doctor.node.memory_usage import Holder, Room
from gpuipc_doctor.stacks import rights

if TYPE_CHECKING:
    from gpuipc_doctor.worker.nvml import Nvml

_MAPS_BYTES = 32 << 20
"""Most bytes read of a process's mappings: it may have 65,530, each with a path."""

CONTEXT_OVERHEAD = 6 << 20
"""Bytes of the device, counted for no process, for each context of an H200 (5.5 to 8.8 MiB)."""

ENDING_S = 0.5
"""Seconds until a second look, since a process that is ending may hold its memory a little longer."""


def look(w: Worker) -> None:
    """Tell the `rooms`, then keep NVML: without persistence mode, GPUs shut down with it."""
    w.tell({"rooms": rooms(w)})
    time.sleep(float(1 << 30))


def rooms(w: Worker) -> list[dict[str, Json]]:
    """Each GPU without room for tests, as a `Room`; empty if NVML tells nothing.

    Parameters, in ``rooms``: ``uuids`` of the GPUs, empty for all; ``root``; ``names``: whether to look up
    users' names, which can take long; ``sees_all``: whether this process certainly sees all processes.
    """
    from gpuipc_doctor.worker.nvml import Nvml

    try:
        nvml = Nvml(w.armed)
        found = _rooms(w, nvml)
        if found:
            time.sleep(ENDING_S)
            found = _rooms(w, nvml)
    except (OSError, DriverError):
        return []
    return [asdict(room) for room in found]


def _rooms(w: Worker, nvml: Nvml) -> list[Room]:
    told, found = w.params["rooms"], list[Room]()
    for number in range(len(told["uuids"]) or nvml.count()):
        with suppress(DriverError):
            device = nvml.by_uuid(told["uuids"][number]) if told["uuids"] else nvml.by_index(number)
            found += _room(w, nvml, device)
    return found


def _room(w: Worker, nvml: Nvml, device: Any) -> Iterator[Room]:
    memory = nvml.memory(device)
    if memory.free >= room_for(TEST_CONTEXTS, memory.total):
        return
    pci, told = nvml.pci(device), w.params["rooms"]
    root = Path(told["root"])
    if is_numa(root, pci):
        return
    listed = nvml.processes(device)
    if listed is None:
        yield Room(pci, memory.total, memory.free, hidden="NVML does not list them for this GPU")
        return
    figures = (*(nvml.processes(device, "Graphics") or ()), *listed)
    held = {pid: None if (nbytes or 0) > memory.total else nbytes for pid, nbytes in figures}
    with w.armed("read /proc"):
        holders = tuple(holder_of(root, pid, nbytes, told["names"]) for pid, nbytes in held.items())
    hidden = "" if told["sees_all"] else rights.hiding()
    if any(nbytes is None for nbytes in held.values()):
        hidden = "NVML does not tell how much each of them holds"
    elif memory.has_reservation:
        hidden = hidden or "this driver counts its own reservation as used"
    elif any(one.is_alive and one.managed is None for one in holders):
        hidden = hidden or "their managed memory cannot be seen; run this as root"
    theirs = sum((one.held or 0) + (one.managed or 0) + CONTEXT_OVERHEAD for one in holders if one.is_alive)
    yield Room(pci, memory.total, memory.free, max(memory.used - theirs, 0), holders, hidden)


def is_numa(root: Path, pci: str) -> bool:
    """Whether a GPU's memory is a NUMA node, of which pages of files take all that is free, and return it.

    Linux lists its state in ``numa_status`` (NVIDIA's open kernel module, nv-procfs.c).
    """
    return "online" in quietly(root / f"proc/driver/nvidia/gpus/{pci}/numa_status").lower()


def holder_of(root: Path, pid: int, held: int | None, may_look_up: bool) -> Holder:
    """What ``/proc`` tells of a process. ``may_look_up``: see `look`."""
    of_node = root / "proc" / str(pid)
    proc = of_node if of_node.is_dir() else Path("/proc") / str(pid)
    name, _, rest = quietly(proc / "stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return Holder(pid, held, is_alive=is_alive(pid))
    up_s = (quietly(root / "proc/uptime") or quietly(Path("/proc/uptime"))).partition(" ")[0]
    age_s = float(up_s or 0) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    parent = int(fields[1])
    uid = re.search(r"^Uid:\s+(\d+)", quietly(proc / "status"), re.MULTILINE)
    job = re.search(r"/job_(\d+)(?:/|$)", quietly(proc / "cgroup"), re.MULTILINE)
    return Holder(
        pid,
        held,
        name,
        user=user_of(root, int(uid[1]), may_look_up) if uid else "",
        job=job[1] if job else "",
        age_s=max(age_s, 0.0),
        has_parent=parent > 1,
        managed=_managed(proc / "maps"),
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def user_of(root: Path, uid: int, may_look_up: bool) -> str:
    if may_look_up and root == Path("/"):
        with suppress(KeyError):
            return pwd.getpwuid(uid).pw_name
    named = re.search(rf"^([^:\n]+):[^:\n]*:{uid}:", quietly(root / "etc/passwd"), re.MULTILINE)
    return named[1] if named else f"uid {uid}"


def _managed(maps: Path) -> int | None:
    """Bytes that a process maps of ``/dev/nvidia-uvm``; None if they cannot be read."""
    try:
        text = reading.sample(maps, _MAPS_BYTES).decode(errors="replace")
    except reading.Unreadable:
        return None
    return sum(_sizes(text))


def _sizes(maps: str) -> Iterator[int]:
    for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .* /dev/nvidia-uvm$", maps, re.MULTILINE):
        yield int(end, 16) - int(begin, 16)
