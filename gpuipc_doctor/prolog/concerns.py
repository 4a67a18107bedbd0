"""A report's concerns about a node, as text for one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.model import Device, EvidenceKind, Finding, Status
from gpuipc_doctor.node.gpus import JobGpus
from gpuipc_doctor.present.text import counted, fold_devices
from gpuipc_doctor.probe_types import Ending
from gpuipc_doctor.prolog.decision import Concern, Kind
from gpuipc_doctor.report import merged_results, sentences
from gpuipc_doctor.report_types import Join, Relation, Report, Result
from gpuipc_doctor.run.conclusions import IN_COMPANY
from gpuipc_doctor.run.room import MEMORY_LOST
from gpuipc_doctor.supervise.blame import NO_ROOM
from gpuipc_doctor.vendors import untried

_CAPABILITY_VERDICTS = ("not-supported", "incapable", "unfit")
"""Keys of SKIPs of what this kind of node cannot do, which is no fault."""


def concerns(report: Report) -> list[Concern]:
    """All reasons to reject the node or to consider its state unknown, as text.

    That there was no time for some GPUs is no reason if others passed the same check: a healthy node must not
    be drained because of its number of GPUs.
    """
    results = (
        result
        for of_check in merged_results.by_check(report).values()
        for result in of_check
        if not _is_excused(result, report)
    )
    found = of_results(results, report.devices, report.joins)
    if report.interrupted:
        found.append(Concern(Kind.ERROR, "ERROR interrupted before everything was tested"))
    if not found and not report.probes_run:
        found.append(Concern(Kind.ERROR, "ERROR no probe ran: the state of this node's GPUs is unknown"))
    return found or list(_untested(report))


def _untested(report: Report) -> Iterator[Concern]:
    tested = {label for result in report.results if _has_tested(result) for label in result.devices}
    left_out: dict[str, list[str]] = {}
    for result in report.results:
        if not _has_tested(result) and not _is_excused(result, report):
            for label in set(result.devices) - tested:
                left_out.setdefault(label, []).append(sentences.summary(result.finding))
    for label, reasons in left_out.items():
        yield Concern(Kind.ERROR, f"ERROR {label} was not tested: {reasons[0]}")


def _is_excused(result: Result, report: Report) -> bool:
    """Whether a GPU was not tested for lack of time while another passed the check. An operation that had not
    returned when the time was over is an ERROR."""
    is_late = _is_out_of_time(result) and result.finding.status is Status.SKIP
    return is_late and any(
        other.check == result.check and other.finding.status is Status.PASS for other in report.results
    )


def _has_tested(result: Result) -> bool:
    """Whether the result says something of its devices. That this kind of GPU lacks a feature says all."""
    return result.finding.status not in (Status.SKIP, Status.ERROR) or _lacks_capability(result)


def _lacks_capability(result: Result) -> bool:
    return result.finding.status is Status.SKIP and result.finding.key in _CAPABILITY_VERDICTS


def of_results(
    results: Iterable[Result], devices: Sequence[Device], joins: Sequence[Join] = ()
) -> list[Concern]:
    """Concerns from single results, for these devices. ``joins``: known issues that may explain them."""
    return [
        Concern(kind, _text(kind, group, devices, joins))
        for group in merged_results.grouped(results)
        if (kind := _kind(group))
    ]


def came_to_an_end(report: Report) -> bool:
    """Whether all tests were completed and no GPU hung, or failed only in the company of others: such a GPU
    is tested apart and with more time before the next job, too."""
    is_told = not any(result.finding.key == IN_COMPANY or _has_hung(result) for result in report.results)
    return is_told and not (report.interrupted or any(map(_is_out_of_time, report.results)))


def _has_hung(result: Result) -> bool:
    return any(role.ending is Ending.HUNG for role in result.roles)


def _is_out_of_time(result: Result) -> bool:
    return result.stopped == "budget"


def missing(job: JobGpus, expected: int) -> list[Concern]:
    """The job's GPUs that the kernel does not list, and whether the node has fewer GPUs than ``expected``."""
    listed = f"the kernel lists {counted(len(job.listed), 'GPU')}"
    found = [
        Concern(Kind.MISSING, f"FAIL GPU {gpu} of the job is missing: {listed} ({job.known})")
        for gpu in job.missing
    ]
    if len(job.listed) < expected:
        found.append(Concern(Kind.MISSING, f"FAIL {listed}; the site config says {expected}"))
    return found


def passed(report: Report) -> str:
    """The line for a node without a concern."""
    totals = merged_results.totals(report)
    late = {label for result in report.results if _is_excused(result, report) for label in result.devices}
    where = fold_devices(device.label for device in report.devices if device.label not in late)
    if late:
        where += f" (no time for {fold_devices(sorted(late))})"
    if report.untried:
        where += f" ({report.untried})"
    lacking = [result.finding for result in report.results if _lacks_capability(result)]
    if lacking and not any(r.devices and r.finding.status is Status.PASS for r in report.results):
        return f"SKIP on {where}: {sentences.summary(lacking[0], brief=True)}"
    warned = f", {totals[Status.WARN]} WARN" if totals[Status.WARN] else ""
    line = f"PASS {counted(totals[Status.PASS], 'check')}{warned} on {where}, {report.elapsed_s:.1f} s"
    worst, *_ = [*merged_results.grouped(report.results), None]
    if worst and worst[0].finding.status is Status.WARN:
        line += f"; WARN {worst[0].check}: {sentences.summary(worst[0].finding, brief=True)}"
    return line


def _kind(results: Sequence[Result]) -> Kind | None:
    if any(_is_out_of_time(result) for result in results):
        return Kind.BUDGET  # a worker that cannot be killed is no proof of a hang either
    if any(role.ending is Ending.UNKILLABLE for result in results for role in result.roles):
        return Kind.UNKILLABLE
    if results[0].finding.key in (NO_ROOM, MEMORY_LOST):
        return Kind.BUSY
    return {Status.FAIL: Kind.FAIL, Status.ERROR: Kind.ERROR}.get(results[0].finding.status)


def _text(kind: Kind, group: Sequence[Result], devices: Iterable[Device], joins: Sequence[Join]) -> str:
    """Equal results as ``FAIL ipc-reopen on cuda:0 GPU-8f3a… and 3 more [nvidia-ipc-reopen]: …``."""
    labels = {label for result in group for label in result.devices}
    issues = [
        join.issue for join in merged_results.joins_of(joins, group) if join.relation is not Relation.LATENT
    ]
    parts = (
        kind.word,
        ", ".join(dict.fromkeys(result.check for result in group)),
        _where([device for device in devices if device.label in labels]),
        f"[{', '.join(issues)}]" if issues else "",
    )
    said = (*_holder(group[0].finding), sentences.summary(group[0].finding, brief=True))
    return f"{' '.join(filter(None, parts))}: {'; '.join(said)}"


def _holder(finding: Finding) -> Iterator[str]:
    """The processes with most memory on the device, if relevant; largest first, since the line may be cut."""
    for item in finding.evidence:
        if item.kind is EvidenceKind.HOLDER and "pid" in item.values and "pid" not in finding.values:
            yield sentences.fill("pid {pid}{name:aside} holds {held:mib}", item.values)
            return


def _where(devices: Sequence[Device]) -> str:
    if not devices:
        return ""
    first, *others = devices
    untested = untried(device.backend for device in devices)
    aside = f" ({untested})" if untested else ""
    return f"on {first.label} {first.uuid}{aside}" + (f" and {len(others)} more" if others else "")
