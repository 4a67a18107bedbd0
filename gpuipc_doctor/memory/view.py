"""Samples as a person reads them: the rows of a table, or lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from gpuipc_doctor.memory.usage import GpuUse, Key, Sample
from gpuipc_doctor.report.text import sanitise

Growth = Callable[[Key], float | None]

HEADERS = ("GPU", "what", "used", "of", "growth a minute")


def time(sample: Sample) -> str:
    """ISO 8601, local time with its offset."""
    return datetime.fromtimestamp(sample.at).astimezone().isoformat(timespec="seconds")


def size(nbytes: float) -> str:
    """``1.50 GiB``, ``12 MiB``: to the hundredth of a GiB, or the MiB."""
    return f"{nbytes / 2**30:.2f} GiB" if abs(nbytes) >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def change(growth: float | None) -> str:
    """``+12 MiB``, ``level``; ``-`` as long as nobody can tell."""
    if growth is None:
        return "-"
    return f"{'+' if growth > 0 else ''}{size(growth)}" if growth else "level"


def rows(sample: Sample, growth: Growth) -> Iterator[tuple[str, ...]]:
    """Cells below `HEADERS`: each GPU, then its processes and what none of them accounts for."""
    for gpu in sample.gpus:
        if gpu.trouble:
            yield gpu.label, sanitise(gpu.trouble), "", "", ""
            continue
        name = sanitise(gpu.name) or gpu.pci
        yield gpu.label, name, size(gpu.used), size(gpu.total), change(growth((gpu.label, 0)))
        for process in gpu.processes or ():
            used = "not told" if process.used is None else size(process.used)
            yield "", _process(process.pid, process.name), used, "", change(growth((gpu.label, process.pid)))
        if (rest := _of_no_process(gpu)) is not None:
            yield "", "of no process", size(rest), "", ""


def _process(pid: int, name: str) -> str:
    return f"{pid} {sanitise(name)}".strip()


def _of_no_process(gpu: GpuUse) -> int | None:
    """Bytes in use that no process accounts for: the driver's own, and what is lost."""
    told = [process.used for process in gpu.processes or ()]
    known = [used for used in told if used is not None]
    return gpu.used - sum(known) if gpu.processes is not None and len(known) == len(told) else None


def lines(sample: Sample, growth: Growth) -> Iterator[str]:
    """A line for each GPU, with its processes."""
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
