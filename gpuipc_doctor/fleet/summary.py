"""A node report: one node's answer in a few kilobytes, for folding ten thousand of them in seconds.

It holds what tells nodes apart (worst status of each check, the findings by their identity, versions and
settings, figures), and no evidence: that stays in the node's full report beside it. No answer is an answer,
too: its `State` says why there is none.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import cast

import msgspec  # noqa: TID253 - who imports a module of the fleet reads node reports

from gpuipc_doctor.model import Json, Relation, Report, Result, Status
from gpuipc_doctor.present.text import fold_subjects
from gpuipc_doctor.report import digest, documents, sentences

SCHEMA = "gpuipc-doctor/node/1"

MAX_TEXT = 400
"""Characters of a sentence; the full report has the rest."""


class State(enum.Enum):
    """Whether a node has answered, and what stood in the way if not."""

    REPORTED = "reported"
    UNREACHABLE = "not reachable"
    NOT_LAUNCHED = "launch failed"
    DEADLINE = "deadline"
    KILLED = "killed"
    NO_TOOL = "tool missing"
    REFUSED = "command refused"
    OTHER_VERSION = "other version of the tool"
    UNTESTED = "nothing was tested"
    UNREADABLE = "unreadable"
    """There is a file of its answer, and it is damaged."""
    NO_ANSWER = "no report"


class MatchedIssue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A known issue that has something to do with a finding, as the node's report joins the two."""

    issue: str
    relation: Relation
    title: str
    reason: str
    remedy: str


class FindingSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding that is not PASS, on all subjects of the node where it is the same.

    ``issues``: of the known issues that belong to it; summaries written before there were any have none.
    """

    check: str
    key: str
    status: str
    identity: tuple[str, ...]
    where: str = ""
    says: str = ""
    remedy: str = ""
    """Empty for a SKIP: a thousand nodes do not say again how to install what a check needs."""
    issues: tuple[str, ...] = ()


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measurement: the median of the node's, where there are several."""

    value: float
    unit: str
    more_is_better: bool


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """``facts``: of each name the values found, sorted. ``checks``: the worst status of each."""

    node: str
    state: State
    schema: str = msgspec.field(default_factory=lambda: SCHEMA)  # so that it is always written
    reason: str = ""
    """In words, where there is no report."""
    host: str = ""
    started: str = ""
    elapsed_s: float = 0.0
    exit_code: int | None = None
    tool: str = ""
    simulated: str = ""
    devices: dict[str, int] = {}
    facts: dict[str, tuple[str, ...]] = {}
    checks: dict[str, str] = {}
    findings: tuple[FindingSummary, ...] = ()
    figures: dict[str, Figure] = {}
    known: tuple[MatchedIssue, ...] = ()
    """The known issues that its findings name."""
    bad: dict[str, tuple[str, ...]] = {}
    """Of each component whose version is among those known to be bad, the issues."""

    @property
    def status(self) -> Status:
        """The worst status of the tested checks: SKIP where all were skipped, ERROR where there is none."""
        if self.state is not State.REPORTED or not self.checks:
            return Status.ERROR
        tested = {Status(one) for one in self.checks.values()} - {Status.SKIP}
        return max(tested, key=lambda status: status.severity, default=Status.SKIP)

    @property
    def is_well(self) -> bool:
        """Whether the summary is all that the head needs: the node passed, with WARN or SKIP at worst."""
        return self.status not in (Status.ERROR, Status.FAIL)

    @property
    def likeness(self) -> tuple[object, ...]:
        """What nodes with the same answer share."""
        checks = tuple(sorted(self.checks.items()))
        return (self.state.value, checks, tuple(sorted((one.check, one.identity) for one in self.findings)))


def of(report: Report, node: str, exit_code: int) -> NodeReport:
    """The summary of a node's full report."""
    facts: dict[str, set[str]] = {}
    for fact in report.inventory:
        if fact.value is not None:
            facts.setdefault(fact.name, set()).add(fact.value)
    devices: dict[str, int] = {}
    for device in report.devices:
        devices[device.name] = devices.get(device.name, 0) + 1
    worst = {check: digest.worst(results) for check, results in digest.by_check(report).items()}
    state, reason = _state(report)
    findings = tuple(_told(report))
    return NodeReport(
        node=node,
        state=state,
        reason=reason[:MAX_TEXT],
        host=report.host,
        started=report.started,
        elapsed_s=report.elapsed_s,
        exit_code=exit_code,
        tool=report.tool_version,
        simulated=report.simulated,
        devices=devices,
        facts={name: tuple(sorted(values)) for name, values in sorted(facts.items())},
        checks={check: status.value for check, status in worst.items() if status},
        findings=findings,
        figures=_figures(report),
        known=tuple(_known(report, {issue for told in findings for issue in told.issues})),
        bad=_bad(report),
    )


def _bad(report: Report) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for join in report.joins:
        if join.component and join.relation in (Relation.CONFIRMED, Relation.LATENT):
            found[join.component] = (*found.get(join.component, ()), join.issue)
    return found


def named(report: NodeReport, node: str) -> NodeReport:
    """The same report as that of ``node``: a node's own summary leaves its name to the head."""
    return msgspec.structs.replace(report, node=node)


def clocked(report: NodeReport, now: datetime) -> NodeReport:
    """With the clock of the node among its facts, by ``now``, when its answer came, to the minute."""
    try:
        began = datetime.fromisoformat(report.started).astimezone()
        minutes = round((began + timedelta(seconds=report.elapsed_s) - now).total_seconds() / 60)
    except (ValueError, OverflowError):
        return report
    apart = f"{abs(minutes)} min {'ahead' if minutes > 0 else 'behind'}" if minutes else "as here"
    return msgspec.structs.replace(report, facts={**report.facts, "clock": (apart,)})


def _state(report: Report) -> tuple[State, str]:
    """A FAIL is an answer however the run ended; what did not come to its end, or saw no GPU, is none."""
    if report.worst() is Status.FAIL:
        return State.REPORTED, ""
    if report.interrupted:
        return State.KILLED, "its run was interrupted"
    if report.nothing_tested:
        why = (r.finding for r in report.results if r.finding.status in (Status.SKIP, Status.ERROR))
        return State.UNTESTED, next(map(sentences.summary, why), "no probe ran on a GPU")
    return State.REPORTED, ""


def _told(report: Report) -> Iterator[FindingSummary]:
    groups: dict[tuple[str, tuple[str, ...]], list[Result]] = {}
    for result in report.results:
        if result.finding.status is not Status.PASS:
            groups.setdefault((result.check, result.finding.identity), []).append(result)
    for (check, identity), results in groups.items():
        finding = results[0].finding
        yield FindingSummary(
            check,
            finding.key,
            finding.status.value,
            identity,
            fold_subjects(result.devices for result in results),
            sentences.summary(finding)[:MAX_TEXT],
            finding.remedy[:MAX_TEXT] if finding.status is not Status.SKIP else "",
            tuple(join.issue for join in digest.joins_of(report.joins, results)),
        )


def _known(report: Report, issues: Container[str]) -> Iterator[MatchedIssue]:
    for join in report.joins:
        if join.issue in issues:
            texts = (text[:MAX_TEXT] for text in (join.title, join.reason, join.remedy))
            yield MatchedIssue(join.issue, join.relation, *texts)


def _figures(report: Report) -> dict[str, Figure]:
    """By check and name of the measurement."""
    from statistics import median

    values: dict[str, list[float]] = {}
    shape: dict[str, tuple[str, bool]] = {}
    for result in report.results:
        for one in result.finding.measured:
            name = f"{result.check}: {one.name}"
            values.setdefault(name, []).append(one.value)
            shape[name] = (one.unit, one.more_is_better)
    return {name: Figure(median(each), *shape[name]) for name, each in values.items()}


def schema() -> Json:
    whole = documents.schema(SCHEMA, NodeReport, "What one node of a fleet answered.")
    described = cast(dict[str, dict[str, object]], whole.get("$defs", {}))
    _may_be_left_out(cast(dict[str, object], whole), NodeReport)
    for kind in (FindingSummary, Figure, MatchedIssue):
        _may_be_left_out(described[kind.__name__], kind)
    return whole


def _may_be_left_out(described: dict[str, object], kind: type[msgspec.Struct]) -> None:
    """Require no more than the fields that `dumps` always writes."""
    left_out = {one.name for one in msgspec.structs.fields(kind) if one.default is not msgspec.NODEFAULT}
    left_out |= {one.name for one in msgspec.structs.fields(kind) if one.default_factory is dict}
    described["required"] = [name for name in cast(list[str], described["required"]) if name not in left_out]


class BadSummary(ValueError):
    """Not a node report of this version; the text says where and why, in one line."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(NodeReport)


def dumps(node_report: NodeReport) -> bytes:
    """A line of JSON, without the fields that have their default: ten thousand files then take 40 MB."""
    return _ENCODER.encode(node_report) + b"\n"


def loads(data: bytes) -> NodeReport:
    """Raises `BadSummary`."""
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:  # of which a ValidationError is one
        raise BadSummary(str(error)) from None
    if found.schema != SCHEMA:
        raise BadSummary(f'"schema" is {found.schema[:80]!r}, not {SCHEMA!r}')
    statuses = {*found.checks.values(), *(told.status for told in found.findings)}
    if wrong := sorted(statuses - Status.__members__.keys()):
        raise BadSummary(f"{wrong[0][:40]!r} is no status")
    return found


def silent(node: str, state: State, reason: str) -> NodeReport:
    """The report of a node that gave none."""
    return NodeReport(node=node, state=state, reason=reason[:MAX_TEXT])
