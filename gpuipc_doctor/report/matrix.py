"""The screen: a header, the health matrix, a paragraph for each thing that is not PASS, the totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuipc_doctor.model import Report
from gpuipc_doctor.report import exits, prose, table
from gpuipc_doctor.report.digest import by_check, not_reached, repetitions, totals
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page
from gpuipc_doctor.report.text import counted

_FACTS = {
    "kernel": "Linux {}",
    "nvidia-driver": "NVIDIA {}",
    "nvidia-module": "{} module",
    "cuda-driver": "CUDA {}",
    "rocm": "ROCm {}",
    "hip-runtime": "HIP {}",
    "gpu-model": "the kernel lists {}",
}
"""The facts of the header, and how each is written there; `gpuipc-doctor inventory` shows all."""

_STACK = {
    "mpich": "MPICH {}",
    "cray-mpich": "Cray MPICH {}",
    "openmpi": "Open MPI {}",
    "intel-mpi": "Intel MPI {}",
    "mvapich": "MVAPICH {}",
    "ucx": "UCX {}",
    "libfabric": "libfabric {}",
    "shs-libfabric": "libfabric of SHS {}",
}
"""The same of what messages went through."""


def render(report: Report, *, width: int = 80, color: bool = False, exit_code: int | None = None) -> str:
    """The screen for ``report``, in lines of at most ``width`` columns, ending in a newline.

    ``exit_code`` is what the run will exit with, by default the code of the default style.
    """
    page = Page(min(max(width, MIN_WIDTH), MAX_WIDTH), color)
    code = exits.code(report) if exit_code is None else exit_code
    blocks = [
        list(_header(report, page)),
        *table.blocks(report, page),
        *prose.blocks(report, page),
        list(_totals(report, code, page)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _header(report: Report, page: Page) -> Iterator[str]:
    if report.simulated:
        yield from page.notice(f"SIMULATED (profile {report.simulated}): no real GPU was tested", "WARN")
    facts = [
        _FACTS[fact.name].format(fact.value)
        for fact in report.inventory
        if fact.value and fact.name in _FACTS and not (fact.name == "gpu-model" and report.devices)
    ]
    stack = [_STACK[fact.name].format(fact.value) for fact in report.stack if fact.name in _STACK]
    yield from page.join([report.host, _device_names(report), *facts, *stack])
    checks = len(by_check(report))
    size = f"{report.tier.label} tier, {counted(checks, 'check')}"
    if (times := repetitions(report)) > 1:
        size += f" {times} times"
    size += f", {report.elapsed_s:.1f} s"
    when = report.started.replace("T", " ")[:19]
    yield from page.join([size, when, f"gpuipc-doctor {report.tool_version}"])


def _device_names(report: Report) -> str:
    names = Counter(device.name for device in report.devices)
    return " + ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items()) or "no GPU found"


def _totals(report: Report, exit_code: int, page: Page) -> Iterator[str]:
    """What was left undone, then how many checks ended how, with the exit code at the line's right end."""
    if report.interrupted:
        yield from page.notice("INTERRUPTED: this is what was learned until then.", "FAIL")
    if report.nothing_tested:
        yield from page.notice("NOTHING WAS TESTED: no probe ran on a GPU.", "FAIL")
    counts = totals(report)
    words = [f"{counts[status]} {status.value}" for status in sorted(counts, key=lambda s: -s.severity)]
    if missing := len(not_reached(report)):
        words.append(f"{missing} not run")
    if report.simulated:
        words.insert(0, f"SIMULATED ({report.simulated})")
    yield from page.close(words or ["no findings"], f"exit {exit_code}", report.worst().value)
