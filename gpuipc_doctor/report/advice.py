"""What to do about a failure that nothing explains: to whom it is reported, with commands to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpuipc_doctor.model import EvidenceKind, Status
from gpuipc_doctor.present.blocks import ALSO, DO, Item
from gpuipc_doctor.report.merged_results import Paragraph
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.vendors import SUPPORTED

REPORT_IT = "send a bug report to {whom}"
"""Remedy for a FAIL that has no other remedy and matches no known issue."""
RERUN = "rerun with --output r.json, then "
"""Beginning of a remedy that needs the JSON report."""

_MPI = {
    "mpich": "MPICH's project",
    "cray-mpich": "HPE (Cray MPICH)",
    "openmpi": "Open MPI's project",
    "intel-mpi": "Intel (MPI)",
    "mvapich": "MVAPICH's project",
}


def items(report: Report, paragraph: Paragraph, remedy: str, file: str) -> Iterator[Item]:
    """What to do; each command that needs the JSON report is a line of its own. ``file``: the report's path,
    if it was written."""
    says, also, command = remedy.partition(f": {RERUN}")
    if is_unexplained(paragraph):
        to_whom = REPORT_IT.format(whom=addressee(report, paragraph))
        yield from _with_report(to_whom, "gpuipc-doctor report --format ticket r.json", DO, file)
        if also:
            yield from _with_report(says, command, ALSO, file)
    elif also:
        yield from _with_report(says, command, DO, file)
    else:
        yield Item(remedy, DO)


def _with_report(says: str, command: str, lead: str, file: str) -> Iterator[Item]:
    yield Item(f"{says}:" if file else f"{says}: {RERUN}".rstrip(), lead)
    yield Item(command.replace("r.json", shlex.quote(file)) if file else command, depth=len(lead))


def is_unexplained(paragraph: Paragraph) -> bool:
    """Whether no cause, known issue or message explains a FAIL, which then may be news for a vendor."""
    finding = paragraph.finding
    is_history = "history" in finding.values  # whose error alone is no cause: all its calls are valid
    explains = any(
        item.kind is EvidenceKind.CAUSE
        or (
            item.kind is EvidenceKind.RECOGNISED and item.values.get("confidence") != "low" and not is_history
        )
        for item in finding.evidence
    )
    has_cure = finding.remedy and not is_history
    return paragraph.status is Status.FAIL and not (has_cure or paragraph.joins or explains)


def addressee(report: Report, paragraph: Paragraph) -> str:
    """Whose software failed, in words: the MPI's or library's project, or the vendors of the GPUs."""
    kind = paragraph.checks[0].partition("-")[0]
    backends = [label.partition(":")[0] for result in paragraph.results for label in result.devices]
    vendors = [SUPPORTED[name] for name in dict.fromkeys(backends) if name in SUPPORTED]
    if kind == "mpi":
        return next((_MPI[fact.name] for fact in report.stack if fact.name in _MPI), "the MPI's project")
    if kind in ("fabric", "allocator"):
        return {"fabric": "libfabric's project", "allocator": "the allocator's project"}[kind]
    if kind == "collective":
        names = [f"{vendor.collectives.name}'s project" for vendor in vendors]
        return " and ".join(names) or "the collective library's project"
    return " and ".join(vendor.name for vendor in vendors) or "the GPU's vendor"
