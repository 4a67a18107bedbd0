"""Content of a sample: table rows, lines for a file, or JSON (``sample.schema.json``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from gpuipc_doctor.model import Json
from gpuipc_doctor.node.memory_usage import GpuUse, GpuUsers, Key, Sample
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.vendors import SUPPORTED

Growth = Callable[[Key], float | None]

SCHEMA = Path(__file__).with_name("sample.schema.json")
FORMAT = 2

HEADERS = ("GPU", "what", "used", "of", "growth a minute")


def time(sample: Sample, unit: str = "seconds") -> str:
    """The sample's local time with its offset, as in ISO 8601."""
    return datetime.fromtimestamp(sample.at).astimezone().isoformat(timespec=unit)


def size(nbytes: float) -> str:
    """Bytes as ``1.50 GiB``, ``12 MiB`` or ``4 KiB``: two decimals for GiB, else none."""
    if 0 < abs(nbytes) < 2**20:
        return f"{nbytes / 2**10:.0f} KiB"
    return f"{nbytes / 2**30:.2f} GiB" if abs(nbytes) >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def change(growth: float | None) -> str:
    """Growth as ``+12 MiB`` or ``level``; ``-`` if there are too few samples."""
    if growth is None:
        return "-"
    return f"{'+' if growth > 0 else ''}{size(growth)}" if growth else "level"


def rows(sample: Sample, growth: Growth, users: GpuUsers | None = None) -> Iterator[tuple[str, ...]]:
    """The table's rows: each GPU, then its processes, then used memory that no process holds."""
    known = {holder.pid: holder for holder in users.holders} if users else {}
    for gpu in sample.gpus:
        if gpu.trouble:
            yield gpu.label, sanitise(gpu.trouble), "", "", ""
            continue
        name = sanitise(gpu.name) or gpu.pci
        yield gpu.label, name, _known(gpu.used), _known(gpu.total), change(growth((gpu.label, 0)))
        for process in gpu.processes or ():
            holder = known.get(process.pid)
            name = process.name or (holder.name if holder else "")
            words = (f"{process.pid} {name}".strip(), *(holder.about if holder else ()))
            what = sanitise(", ".join(words))
            yield "", what, _known(process.used), "", change(growth((gpu.label, process.pid)))
        if gpu.used is None:
            vendor = SUPPORTED[gpu.label.partition(":")[0]]
            yield "", f"(not counted by {'NVML' if vendor.manages else 'the kernel'})", "", "", ""
        elif gpu.processes is not None:
            yield "", "(no process)", _known(_of_no_process(gpu)), "", ""


def _known(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


def _of_no_process(gpu: GpuUse) -> int | None:
    """Bytes in use that no process holds: the driver's own memory, and lost memory.

    None if the driver does not tell how much each process holds, or tells more than is in use.
    """
    told = [process.used for process in gpu.processes or ()]
    known = [used for used in told if used is not None]
    if gpu.used is None or gpu.processes is None or len(known) < len(told):
        return None
    return rest if (rest := gpu.used - sum(known)) >= 0 else None


def beside(users: GpuUsers | None) -> Iterator[str]:
    """Lines on device files that are open without memory on a GPU, and on files that were left behind."""
    if users is None:
        return
    if users.others:
        yield "Device files open, without memory on a GPU:"
    for other in users.others:
        process = other.process
        about = sanitise(", ".join((f"{process.pid} {process.name}", *process.about)))
        yield f"  {about}: {' '.join(other.files)}"
    if users.left:
        yield f"Left in /dev/shm, which no {'visible ' if users.hidden else ''}process has open:"
    for left in users.left:
        ended = f"; process {left.pid} has ended" if left.pid else ""
        yield f"  {sanitise(left.name)}: {size(left.held)}, of {left.user}{ended}"
    if users.hidden:
        yield f"There may be more, and files may be in use: {users.hidden}"


def lines(sample: Sample, growth: Growth) -> Iterator[str]:
    """One line per GPU, with its processes."""
    parts: list[str] = []
    for label, what, used, total, grows in rows(sample, growth):
        if label and parts:
            yield "; ".join(parts)
            parts = []
        begin = f"{time(sample)} {label} " if label else ""
        how = {"": "", "-": "", "level": ", level"}.get(grows, f", {grows} a minute")
        of = f" of {total}" if total else ""
        parts.append(f"{begin}{what}: {used}{of}{how}" if used else f"{begin}{what}")
    yield "; ".join(parts)


# -- the log ------------------------------------------------------------------------------------------------


def log_line(sample: Sample, growth: Growth, *, host: str, simulated: str) -> str:
    """One line of the log, without newline."""
    return json.dumps(_document(sample, growth, host, simulated), separators=(",", ":"))


def dumps(sample: Sample, growth: Growth, *, host: str, simulated: str, users: GpuUsers | None) -> str:
    """One sample with who uses the GPUs; None: that could not be told."""
    return json.dumps({**_document(sample, growth, host, simulated), "users": _users(users)}, indent=2)


def _users(users: GpuUsers | None) -> Json:
    if users is None:
        return None
    told: Json = asdict(users)
    for process in (*told["holders"], *(other["process"] for other in told["others"])):
        del process["held"], process["managed"]  # of GPUs that have no room
    return told


def _document(sample: Sample, growth: Growth, host: str, simulated: str) -> Json:
    return {
        "format": FORMAT,
        "at": time(sample, "milliseconds"),
        "host": host,
        "simulated": simulated,
        "gpus": [_gpu(gpu, growth) for gpu in asdict(sample)["gpus"]],
    }


def _gpu(gpu: Json, growth: Growth) -> Json:
    def with_growth(what: Json, pid: int) -> Json:
        used = what.pop("used")
        return {**what, "used_bytes": used, "growth_bytes_per_minute": growth((gpu["label"], pid))}

    for load in ("busy", "watts", "limit"):
        del gpu[load]
    processes = gpu.pop("processes")
    in_use = with_growth(gpu, 0)
    total = in_use.pop("total")
    if in_use["trouble"]:
        total = in_use["used_bytes"] = None
    each = None if processes is None else [with_growth(process, process["pid"]) for process in processes]
    return {**in_use, "total_bytes": total, "processes": each}
