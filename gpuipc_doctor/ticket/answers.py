"""Answers for a ticket's fields, from the documents. An empty answer is reported as missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuipc_doctor.comparison import compare
from gpuipc_doctor.histories import documents as histories
from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.log_lines import most_telling
from gpuipc_doctor.model import Report, RoleOutcome, Status
from gpuipc_doctor.present.blocks import Block, Lines, Verbatim
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.report import digest, node_content, sentences
from gpuipc_doctor.ticket.subject import Subject

Answer = Callable[[Subject], Iterable[Block]]

FRAMES = 40
STACKS = 6
LOG_LINES = 8
FINDINGS = 5

_CORRUPTION = frozenset(
    [
        "wrong-data",
        "stale",
        "other-memory",
        "overwrote-others",
        "writes-lost",
        "wrong-when-repeated",
        "one-handle",
    ]
)
_CRASHES = frozenset(["crashed", "exited", "aborted", "returned-error"])
_HANGS = frozenset(["hung", "unkillable"])
_SLOW = frozenset({"out-of-line"})
_IMPACTS = (
    (_CORRUPTION, "Data corruption"),
    (_CRASHES, "Application crash"),
    (_HANGS, "Application hang"),
    (_SLOW, "Lower performance than expected"),
)
"""(keys of findings, their impact in NCCL's form). The form has no impact for growing memory."""

_COMPONENTS = {"hsa": "ROCR-Runtime", "hip": "HIP", "nccl": "rccl"}
"""Prefix of a call's name → AMD's component that contains it."""


def title(subject: Subject) -> str:
    """The ticket's title, one line."""
    if subject.bad:
        first = subject.bad[0]
        return f"{', '.join(first.checks)}: {sentences.summary(first.finding)}"
    return job_content.sentence(subject.job) if subject.job else "nothing failed"


def _description(subject: Subject) -> Iterator[Block]:
    if isinstance(subject.about, Report):
        for paragraph in subject.bad[:FINDINGS]:
            heading = node_content.title(subject.about, paragraph)
            said = f"{paragraph.status.value} {heading}: {sentences.summary(paragraph.finding)}"
            controls = (
                [f"Passed here: {', '.join(paragraph.passed_beside)}"] if paragraph.passed_beside else []
            )
            yield Lines((said, *node_content.evidence(paragraph, ()), *controls))
    else:
        job = subject.about
        yield Lines((f"{job_content.sentence(job)}.", *job.verdict.reasons, *job.ras))


def _expected(subject: Subject) -> Iterator[Block]:
    if isinstance(subject.about, Report):
        titles = {check.id: check.title for check in subject.about.checks}
        if subject.bad:
            yield Lines(tuple(f"expected of {check}: {titles.get(check, check)}" for check in subject.checks))
    elif subject.about.verdict.cause is Cause.GROWS:
        yield Lines((f"{subject.about.verdict.operation} levels off",))
    elif subject.about.verdict.cause not in (Cause.RUNS, Cause.UNKNOWN):
        yield Lines(("every rank continues",))


def _impact(subject: Subject) -> Iterator[Block]:
    job = subject.job
    if subject.bad:
        keys = [paragraph.finding.key for paragraph in subject.bad]
        found = [words for which, words in _IMPACTS if not which.isdisjoint(keys)]
        if found:
            yield Lines(tuple(found))
    elif job and job.verdict.cause not in (Cause.RUNS, Cause.UNKNOWN, Cause.GROWS):
        yield Lines(("Application hang",))


def _incidence(subject: Subject) -> Iterator[Block]:
    if not isinstance(subject.about, Report):
        return
    ran = digest.repetitions(subject.about)
    for paragraph in subject.bad if ran > 1 else ():
        word = "Always" if paragraph.times == ran else "Once" if paragraph.times == 1 else "Sometimes"
        yield Lines(
            (f"{word}: {', '.join(paragraph.checks)} failed in {paragraph.times} of {ran} repetitions",)
        )


def _worked(subject: Subject) -> Iterator[Block]:
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


def _reproduce(subject: Subject) -> Iterator[Block]:
    if job := subject.job:
        programs = dict.fromkeys(rank.program for rank in job.ranks)
        yield Lines((
            f"{_scale(subject)} run {', '.join(programs)}",
            "add the command that started the job: reports keep no command lines",
        ))  # fmt: skip
    if subject.checks:
        yield Verbatim((f"gpuipc-doctor check {' '.join(subject.checks)}",))


def _reproducer(subject: Subject) -> Iterator[Block]:
    if program(subject):
        yield Lines(("reproducer.c in the bundle; also printed by gpuipc-doctor report REPORT --format c",))


def program(subject: Subject) -> str:
    """A self-contained C program that reproduces the failure; empty if there is none."""
    from gpuipc_doctor.histories import c_program

    if not isinstance(subject.about, Report):
        return ""
    try:
        return c_program.source(histories.reproducer(subject.about))
    except (histories.BadHistory, c_program.NotInC):
        return ""


def _errors(subject: Subject) -> Iterator[Block]:
    lines = [line for role in _culprits(subject) for line in role.log_tail if line.strip()]
    if telling := most_telling(list(dict.fromkeys(lines)), LOG_LINES):
        yield Verbatim(tuple(telling))


def _stacks(subject: Subject) -> Iterator[Block]:
    shown = list(stacks(subject).items())
    for name, frames in shown[:STACKS]:
        yield Verbatim((name, *(f"  {frame}" for frame in frames[:FRAMES])))
    if len(shown) > STACKS:
        yield Lines((f"{len(shown) - STACKS} more in the bundle",))


def stacks(subject: Subject) -> Mapping[str, tuple[str, ...]]:
    """The stacks in the documents, innermost frame first, by their origin."""
    found = {}
    for number, role in enumerate(_culprits(subject)):
        for kind, frames in (
            ("native", role.native_stack),
            ("python", role.python_stack),
            ("kernel", role.kernel),
        ):
            if frames:
                found[f"{kind} stack of {role.role} in {role.operation or 'no call'} ({number + 1})"] = frames
    places: dict[tuple[str, ...], list[int]] = {}
    for rank in subject.job.ranks if subject.job else ():
        if rank.path:
            places.setdefault(tuple(reversed(rank.path)), []).append(rank.rank)
    return found | {f"rank{'s' * (len(those) > 1)} {ranges(those)}": path for path, those in places.items()}


def _culprits(subject: Subject) -> list[RoleOutcome]:
    return [role for each in subject.bad for role in digest.culprits(each.results[0])]


def _settings(subject: Subject, prefix: str = "") -> Iterator[Block]:
    """The set variables that GPU and MPI libraries read, or a sentence which says that none is set."""
    found: dict[str, None] = {}
    for fact in (fact for report in subject.reports[:1] for fact in report.inventory):
        name = fact.name.removeprefix("env:")
        if name != fact.name and name.startswith(prefix) and fact.value is not None:
            found[f"{name}={fact.value}"] = None
    ranks: dict[str, list[int]] = {}
    for rank in subject.job.ranks if subject.job else ():
        for name, value in rank.settings.items():
            if name.startswith(prefix):
                ranks.setdefault(f"{name}={value}", []).append(rank.rank)
    everywhere = len(subject.job.ranks) if subject.job else 0
    for setting, numbers in ranks.items():
        found[setting if len(numbers) == everywhere else f"{setting}  # ranks {ranges(numbers)}"] = None
    if found:
        yield Verbatim(tuple(found))
    elif prefix and not _has_refused_environment(subject):
        yield Lines((f"no {prefix} variable that gpuipc-doctor knows is set",))


def _has_refused_environment(subject: Subject) -> bool:
    return bool(subject.job and any("environ" in rank.refused for rank in subject.job.ranks))


def _issues(subject: Subject) -> Iterator[Block]:
    said = [
        f"{each.relation.value}: {each.issue}: {each.title}"
        for paragraph in subject.bad
        for each in paragraph.joins
    ]
    said += [
        f"{each.relation.value}: {each.id}: {each.title}"
        for each in (subject.job.issues if subject.job else ())
    ]
    if said:
        yield Lines(tuple(dict.fromkeys(said)))


def _gpus(subject: Subject) -> Iterator[Block]:
    devices = [device for report in subject.reports[:1] for device in report.devices]
    if devices:
        yield Lines(
            tuple(f"{count} × {name}" for name, count in Counter(device.name for device in devices).items())
        )
        yield Verbatim(tuple(f"{each.label} {each.name} {each.pci} {each.uuid}" for each in devices))
    elif models := subject.facts("gpu-model"):
        yield Lines(tuple(str(fact.value) for fact in models))


def _stable_kernel(subject: Subject) -> Iterator[Block]:
    for fact in subject.facts("kernel")[:1]:
        release = "a" if "-rc" in str(fact.value) else "not a"
        yield Lines((f"{fact.value}: {release} release candidate, according to its name",))


def _both_modules(subject: Subject) -> Iterator[Block]:
    """Results of the same checks with each of NVIDIA's kernel modules, if there are reports with both."""
    ended = {}
    for report in subject.reports:
        module = next((fact.value for fact in report.inventory if fact.name == "nvidia-module"), None)
        of_checks = [result for result in report.results if result.check in subject.checks]
        if module and (status := digest.worst(of_checks)):
            ended[module] = f"{module}: {status.value}"
    if len(ended) > 1:
        yield Lines(tuple(ended.values()))


def _peer_modules(subject: Subject) -> Iterator[Block]:
    rows = [fact for name in ("nvidia-peermem", "gdrcopy") if (fact := subject.asked(name))]
    if rows:
        yield Lines(tuple(f"{fact.name}: {fact.value or 'not loaded'} ({fact.source})" for fact in rows))


def _mpi_library(subject: Subject) -> Iterator[Block]:
    if found := [fact for fact in subject.facts("openmpi") if "/" in fact.source]:
        yield Lines(tuple(fact.source for fact in found))


def _network(subject: Subject) -> Iterator[Block]:
    names = ("cxi-devices", "mlnx-ofed", "libfabric-providers")
    if found := [f"{name}: {fact.value}" for name in names for fact in subject.facts(name)]:
        yield Lines(tuple(found))


def _scale_lines(subject: Subject) -> Iterator[Block]:
    if scale := _scale(subject):
        yield Lines((scale,))


def _scale(subject: Subject) -> str:
    if job := subject.job:
        number = job.size or len(job.ranks)
        hosts = len({rank.host for rank in job.ranks})
        return f"{number} ranks on {hosts} nodes" if hosts > 1 else f"{number} ranks on one node"
    ranks = {
        role.role for each in subject.bad for role in each.results[0].roles if role.role.startswith("rank ")
    }
    return f"{len(ranks)} ranks" if ranks else ""


def _nodes(subject: Subject) -> Iterator[Block]:
    if subject.hosts:
        yield Lines((", ".join(subject.hosts),))


def _second_node(subject: Subject) -> Iterator[Block]:
    """Facts of each node, if the documents are from two nodes."""
    if len(subject.reports) > 1 and len({report.host for report in subject.reports}) > 1:
        for report in subject.reports:
            counts = digest.totals(report)
            ended = ", ".join(
                f"{counts[status]} {status.value}" for status in reversed(Status) if counts[status]
            )
            yield Lines((f"{report.host}: {ended}",))


def _rocm_component(subject: Subject) -> Iterator[Block]:
    calls = [str(each.finding.values.get("call", "")) for each in subject.bad]
    calls += [role.operation for role in _culprits(subject)]
    found = dict.fromkeys(
        name for call in calls for begin, name in _COMPONENTS.items() if call.startswith(begin)
    )
    if found:
        yield Lines(tuple(found))


ANSWERS: Mapping[str, Answer] = {
    "both-modules": _both_modules,
    "description": _description,
    "errors": _errors,
    "expected": _expected,
    "gpus": _gpus,
    "impact": _impact,
    "incidence": _incidence,
    "issues": _issues,
    "mpi-library": _mpi_library,
    "network": _network,
    "nodes": _nodes,
    "peer-modules": _peer_modules,
    "reproduce": _reproduce,
    "reproducer": _reproducer,
    "rocm-component": _rocm_component,
    "scale": _scale_lines,
    "second-node": _second_node,
    "settings": _settings,
    "settings-FI": lambda subject: _settings(subject, "FI_"),
    "settings-UCX": lambda subject: _settings(subject, "UCX_"),
    "stable-kernel": _stable_kernel,
    "stacks": _stacks,
    "worked": _worked,
}
"""Name of an `Ask.answer` → function that gives it."""
