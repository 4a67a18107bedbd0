"""What the documents say of a failure, for its bug report. An empty answer is reported as missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.histories import documents as histories
from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.log_lines import most_telling
from gpuipc_doctor.model import EvidenceKind, Status
from gpuipc_doctor.node.inventory import NAMES
from gpuipc_doctor.present.blocks import Block, Lines, Verbatim
from gpuipc_doctor.present.text import fold_subjects, ranges
from gpuipc_doctor.report import merged_results, node_content, sentences
from gpuipc_doctor.report.comparison import compare
from gpuipc_doctor.report.merged_results import Paragraph
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.ticket.subject import Subject

Answer = Callable[[Subject], Iterable[Block]]

FRAMES = 40
STACKS = 6
LOG_LINES = 8
FINDINGS = 5

_TRIED = {EvidenceKind.TRIAL, EvidenceKind.RERUN, EvidenceKind.CONTROL}
_ELSEWHERE = {EvidenceKind.ISSUE, *_TRIED}

_NO_VERSION = {
    "gpu-model",
    "memlock",
    "dev-shm",
    "ptrace-scope",
    "perf-event-paranoid",
    "namespaces",
    "mpi4py",
}
"""Facts that are no version and no property of the node's hardware or confinement."""


def title(subject: Subject) -> str:
    """The report's title, one line."""
    if subject.bad:
        first = subject.bad[0]
        return f"{', '.join(first.checks)}: {sentences.summary(first.finding)}"
    return job_content.sentence(subject.job) if subject.job else "nothing failed"


def fails(subject: Subject) -> Iterator[Block]:
    """What failed, in which call, and what was expected."""
    if isinstance(subject.about, Report):
        for paragraph in subject.bad[:FINDINGS]:
            says = sentences.summary(paragraph.finding)
            lines = [f"{paragraph.status.value} {node_content.title(subject.about, paragraph)}: {says}"]
            for role in merged_results.culprits(paragraph.results[0]):
                if role.operation and role.operation not in says:
                    lines.append(f"{role.role} was in {role.operation}")
            yield Lines(tuple(lines))
        titles = {check.id: check.title for check in subject.about.checks}
        if subject.bad:
            yield Lines(tuple(f"expected of {check}: {titles.get(check, check)}" for check in subject.checks))
    else:
        job = subject.about
        yield Lines((f"{job_content.sentence(job)}.", *job.verdict.reasons, *job.ras))
        if job.verdict.cause is Cause.GROWS:
            yield Lines((f"expected: {job.verdict.operation} levels off",))
        elif job.verdict.cause not in (Cause.RUNS, Cause.UNKNOWN):
            yield Lines(("expected: every rank continues",))


def incidence(subject: Subject) -> Iterator[Block]:
    """How often it failed, if the checks were repeated."""
    if not isinstance(subject.about, Report):
        return
    ran = merged_results.repetitions(subject.about)
    for paragraph in subject.bad if ran > 1 else ():
        word = "Always" if paragraph.times == ran else "Once" if paragraph.times == 1 else "Sometimes"
        yield Lines(
            (f"{word}: {', '.join(paragraph.checks)} failed in {paragraph.times} of {ran} repetitions",)
        )


def reproduce(subject: Subject) -> Iterator[Block]:
    """The commands, the program and the settings with which it fails."""
    if job := subject.job:
        number = job.size or len(job.ranks)
        hosts = len({rank.host for rank in job.ranks})
        where = f"{hosts} nodes" if hosts > 1 else "one node"
        programs = dict.fromkeys(rank.program for rank in job.ranks)
        yield Lines((f"{number} ranks on {where} run {', '.join(programs)}",))
    if subject.checks:
        yield Verbatim((f"gpuipc-doctor check {' '.join(subject.checks)}",))
    if source(subject):
        yield Lines(("a C program: reproducer.c in the bundle, or gpuipc-doctor report REPORT --format c",))
    yield from _settings(subject)


def program(subject: Subject) -> Iterator[Block]:
    if source(subject):
        yield Lines(("reproducer.c",))


def source(subject: Subject) -> str:
    """A self-contained C program that reproduces the failure; empty if there is none."""
    from gpuipc_doctor.histories import c_drivers, c_program

    if not isinstance(subject.about, Report):
        return ""
    try:
        return c_program.source(histories.reproducer(subject.about))
    except (histories.BadHistory, c_drivers.NotInC):
        return ""


def _settings(subject: Subject) -> Iterator[Block]:
    """The set variables that GPU and MPI libraries read."""
    found: dict[str, None] = {}
    for fact in (fact for report in subject.reports[:1] for fact in report.inventory):
        name = fact.name.removeprefix("env:")
        if name != fact.name and fact.value is not None:
            found[f"{name}={fact.value}"] = None
    settings = ((rank.rank, item) for rank in subject.ranks for item in rank.settings.items())
    ranks = by_key((f"{name}={value}", rank) for rank, (name, value) in settings)
    for setting, numbers in ranks.items():
        found[setting if len(numbers) == len(subject.ranks) else f"{setting}  # ranks {ranges(numbers)}"] = (
            None
        )
    if found:
        yield Verbatim(tuple(found))


def versions(subject: Subject) -> Iterator[Block]:
    """What is installed and loaded, how processes are confined, and the GPUs."""
    rows = [
        f"{name} {fact.value} ({fact.source})"
        for name in NAMES
        if name not in _NO_VERSION
        for fact in subject.facts(name)
    ]
    if rows:
        yield Lines(tuple(rows))
    yield from gpus(subject)


def gpus(subject: Subject) -> Iterator[Block]:
    devices = [device for report in subject.reports[:1] for device in report.devices]
    if devices:
        models = Counter(device.name for device in devices)
        yield Lines(tuple(f"{count} × {name}" for name, count in models.items()))
        yield Verbatim(tuple(f"{each.label} {each.name} {each.pci} {each.uuid}" for each in devices))
    elif models_listed := subject.facts("gpu-model"):
        yield Lines(tuple(str(fact.value) for fact in models_listed))


def evidence(subject: Subject) -> Iterator[Block]:
    """What was observed beside the failure, the first errors that were printed, and the stacks."""
    items = [item for each in subject.bad[:FINDINGS] for item in each.finding.evidence]
    if seen := [sentences.line(item) for item in items if item.kind not in _ELSEWHERE]:
        yield Lines(tuple(dict.fromkeys(seen)))
    printed = [line for role in subject.culprits for line in role.log_tail if line.strip()]
    if telling := most_telling(list(dict.fromkeys(printed)), LOG_LINES):
        yield Verbatim(tuple(telling))
    shown = list(subject.stacks.items())
    if isinstance(subject.about, Report) and not (seen or telling or shown):
        yield Lines(tuple(_found(subject.about, subject.bad[:FINDINGS])))
    for name, frames in shown[:STACKS]:
        yield Verbatim((name, *(f"  {frame}" for frame in frames[:FRAMES])))
    if len(shown) > STACKS:
        yield Lines((f"{len(shown) - STACKS} more stacks in the bundle",))
    if subject.files:
        yield Lines(tuple(f"attached: {name}" for name in subject.files))


def _found(report: Report, bad: Iterable[Paragraph]) -> Iterator[str]:
    """Findings without other evidence: on which GPUs, and where the check passed."""
    for one in bad:
        yield ": ".join(filter(None, (one.where, sentences.summary(one.finding))))
        beside = [
            each.devices
            for each in report.results
            if each.check in one.checks and each.finding.status is Status.PASS and each.devices
        ]
        if passed := fold_subjects(beside):
            yield f"{', '.join(one.checks)} passed on {passed}"


def tried(subject: Subject) -> Iterator[Block]:
    """Controls, reruns and workarounds; other reports; the known issues that were considered."""
    lines = []
    for paragraph in subject.bad[:FINDINGS]:
        items = paragraph.finding.evidence
        lines += [sentences.line(item) for item in items if item.kind in _TRIED]
        if paragraph.passed_beside:
            lines.append(f"passed beside it: {', '.join(paragraph.passed_beside)}")
    known = [(each.relation, each.issue, each.title) for paragraph in subject.bad for each in paragraph.joins]
    known += [(each.relation, each.id, each.title) for each in (subject.job.issues if subject.job else ())]
    lines += [f"known issue {issue} {relation.value.upper()}: {says}" for relation, issue, says in known]
    if lines:
        yield Lines(tuple(dict.fromkeys(lines)))
    yield from worked(subject)
    yield from other_reports(subject)


def worked(subject: Subject) -> Iterator[Block]:
    """Whether the checks passed in the earlier report, and what has changed since that report."""
    if subject.before is None or not isinstance(subject.about, Report):
        return
    comparison = compare(subject.before, subject.about)
    was = {
        each.check: each.before
        for each in comparison.verdicts
        if each.check in subject.checks and each.before
    }
    if was:
        yield Lines(
            tuple(f"{check}: {status.value} on {comparison.before.started}" for check, status in was.items())
        )
        changes = [
            f"{each.name}: {each.before or 'absent'}, now {each.after or 'absent'}"
            for each in comparison.inventory
        ]
        yield Lines(tuple(changes) or ("no version or setting has changed since the earlier report",))


def other_reports(subject: Subject) -> Iterator[Block]:
    """Results of the same checks in each report, if there are several."""
    lines = []
    for report in subject.reports if len(subject.reports) > 1 else ():
        of_checks = [result for result in report.results if result.check in subject.checks]
        if status := merged_results.worst(of_checks):
            module = _module(report)
            lines.append(f"{report.host}{f' ({module} kernel module)' if module else ''}: {status.value}")
    if lines:
        yield Lines(tuple(lines))


def _module(report: Report) -> str | None:
    """Which of NVIDIA's kernel modules the report's node had."""
    return next((fact.value for fact in report.inventory if fact.name == "nvidia-module"), None)


ANSWERS: Mapping[str, Answer] = {
    "fails": fails,
    "gpus": gpus,
    "incidence": incidence,
    "other-module": lambda subject: (
        other_reports(subject) if len({_module(each) for each in subject.reports} - {None}) > 1 else ()
    ),
    "other-node": lambda subject: (
        other_reports(subject) if len({each.host for each in subject.reports}) > 1 else ()
    ),
    "program": program,
    "worked": worked,
}
"""Name of an `Ask.answer` → function that gives it."""
