"""Content of a sample: table rows, lines for a file, or JSON (``sample.schema.json``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from gpuipc_doctor.model import Json
from gpuipc_doctor.node.memory_usage import GpuUse, Key, Sample
from gpuipc_doctor.present.text import sanitise

Growth = Callable[[Key], float | None]

SCHEMA = Path(__file__).with_name("sample.schema.json")
FORMAT = 1

NO_FIGURES = "(not counted by NVML)"

HEADERS = ("GPU", "what", "used", "of", "growth a minute")


def time(sample: Sample, unit: str = "seconds") -> str:
    """The sample's local time with its offset, as in ISO 8601."""
    return datetime.fromtimestamp(sample.at).astimezone().isoformat(timespec=unit)


def size(nbytes: float) -> str:
    """Bytes as ``1.50 GiB`` or ``12 MiB``: two decimals for GiB, none for MiB."""
    return f"{nbytes / 2**30:.2f} GiB" if abs(nbytes) >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def change(growth: float | None) -> str:
    """Growth as ``+12 MiB`` or ``level``; ``-`` if there are too few samples."""
    if growth is None:
        return "-"
    return f"{'+' if growth > 0 else ''}{size(growth)}" if growth else "level"


def rows(sample: Sample, growth: Growth) -> Iterator[tuple[str, ...]]:
    """The table's rows: each GPU, then its processes, then used memory that no process holds."""
    for gpu in sample.gpus:
        if gpu.trouble:
            yield gpu.label, sanitise(gpu.trouble), "", "", ""
            continue
        name = sanitise(gpu.name) or gpu.pci
        yield gpu.label, name, _known(gpu.used), _known(gpu.total), change(growth((gpu.label, 0)))
        for process in gpu.processes or ():
            what = f"{process.pid} {sanitise(process.name)}".strip()
            yield "", what, _known(process.used), "", change(growth((gpu.label, process.pid)))
        if gpu.used is None:
            yield "", NO_FIGURES, "", "", ""
        if (rest := _of_no_process(gpu)) is not None:
            yield "", "(no process)", size(rest), "", ""


def _known(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


def _of_no_process(gpu: GpuUse) -> int | None:
    """Bytes in use that no process holds: the driver's own memory, and lost memory. None if unknown."""
    told = [process.used for process in gpu.processes or ()]
    known = [used for used in told if used is not None]
    if gpu.used is None or gpu.processes is None or len(known) < len(told):
        return None
    return gpu.used - sum(known)


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
    document = {
        "format": FORMAT,
        "at": time(sample, "milliseconds"),
        "host": host,
        "simulated": simulated,
        "gpus": [_gpu(gpu, growth) for gpu in asdict(sample)["gpus"]],
    }
    return json.dumps(document, separators=(",", ":"))


def _gpu(gpu: Json, growth: Growth) -> Json:
    def with_growth(what: Json, pid: int) -> Json:
        used = what.pop("used")
        return {**what, "used_bytes": used, "growth_bytes_per_minute": growth((gpu["label"], pid))}

    for load in ("busy", "watts"):
        del gpu[load]
    processes = gpu.pop("processes")
    in_use = with_growth(gpu, 0)
    total = in_use.pop("total")
    if in_use["trouble"]:
        total = in_use["used_bytes"] = None
    each = None if processes is None else [with_growth(process, process["pid"]) for process in processes]
    return {**in_use, "total_bytes": total, "processes": each}
