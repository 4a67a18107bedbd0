"""What of a report speaks against the node, or against knowing it, in words for one line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuipc_doctor.model import Device, Ending, Relation, Report, Result, Status
from gpuipc_doctor.prolog.decision import Concern, Kind, counted
from gpuipc_doctor.report import digest
from gpuipc_doctor.report.text import fold_devices


def concerns(report: Report) -> list[Concern]:
    """All that speaks against the node, or against knowing it, each in words."""
    found = [
        Concern(kind, _text(kind, paragraph, report))
        for paragraph in digest.paragraphs(report)
        if (kind := _kind(paragraph.results))
    ]
    if report.interrupted:
        found.append(Concern(Kind.ERROR, "ERROR was interrupted before all was tested"))
    if not found and not report.probes_run:
        found.append(Concern(Kind.ERROR, "ERROR no probe ran, so nothing is known about this node's GPUs"))
    return found or list(_untested(report))


def _untested(report: Report) -> Iterator[Concern]:
    """The GPUs that checks left out and that none of them tested."""
    tested = {label for result in report.results if _has_tested(result) for label in result.devices}
    left_out: dict[str, list[str]] = {}
    for result in report.results:
        if not _has_tested(result):
            for label in set(result.devices) - tested:
                left_out.setdefault(label, []).append(result.finding.summary)
    for label, reasons in left_out.items():
        yield Concern(Kind.ERROR, f"ERROR {label} was not tested: {reasons[0]}")


def _has_tested(result: Result) -> bool:
    return result.finding.status not in (Status.SKIP, Status.ERROR)


def passed(report: Report) -> str:
    """What the line says of a node that nothing speaks against."""
    totals = digest.totals(report)
    where = fold_devices(device.label for device in report.devices)
    warned = f", {totals[Status.WARN]} WARN" if totals[Status.WARN] else ""
    return f"PASS {counted(totals[Status.PASS], 'check')}{warned} on {where}, {report.elapsed_s:.1f} s"


def _kind(results: Sequence[Result]) -> Kind | None:
    if any(role.ending is Ending.UNKILLABLE for result in results for role in result.roles):
        return Kind.UNKILLABLE
    if any(result.stopped == "budget" for result in results):
        return Kind.BUDGET
    return {Status.FAIL: Kind.FAIL, Status.ERROR: Kind.ERROR}.get(results[0].finding.status)


def _text(kind: Kind, paragraph: digest.Paragraph, report: Report) -> str:
    """``FAIL ipc-reopen on cuda:0 GPU-8f3a… and 3 more [nvidia-ipc-reopen]: importer: …``"""
    labels = {label for result in paragraph.results for label in result.devices}
    devices = [device for device in report.devices if device.label in labels]
    issues = [join.issue for join in paragraph.joins if join.relation is not Relation.LATENT]
    parts = (
        kind.word,
        ", ".join(paragraph.checks),
        _where(devices),
        f"[{', '.join(issues)}]" if issues else "",
    )
    return f"{' '.join(filter(None, parts))}: {_briefly(paragraph.results[0])}"


def _briefly(result: Result) -> str:
    """What was found, without the check's own words for where it was: the call says enough in one line."""
    summary = result.finding.summary
    for role in result.roles:
        summary = summary.replace(f" ({role.step})", "")
    return summary


def _where(devices: Sequence[Device]) -> str:
    if not devices:
        return ""
    first, *others = devices
    return f"on {first.label} {first.uuid}" + (f" and {len(others)} more" if others else "")
