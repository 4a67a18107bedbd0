"""A node's summary: its results in a few kilobytes, so that ten thousand nodes merge in seconds.

It holds what distinguishes nodes (worst status of each check, findings by identity, versions and settings,
figures), but no evidence, which is in the node's full report. A missing answer also has a summary, whose
`State` gives the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator
from datetime import datetime, timedelta

import msgspec  # noqa: TID253 - who imports a module of the fleet reads node reports

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import fold_subjects
from gpuipc_doctor.report import error_counters, merged_results, sentences
from gpuipc_doctor.report_types import Relation, Report
from gpuipc_doctor.surveys import HEALTH

SCHEMA = "gpuipc-doctor/node/1"

MAX_TEXT = 400
"""Maximum characters of a sentence; the full report has all."""


class State(enum.Enum):
    """Whether a node has answered, or why not."""

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
    """The file with the node's answer is damaged."""
    NO_ANSWER = "no report"


class MatchedIssue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A known issue related to a finding, from the node's full report."""

    issue: str
    relation: Relation
    title: str
    reason: str
    remedy: str


class FindingSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding that is not PASS, with all subjects of the node that have it."""

    check: str
    key: str
    status: str
    identity: tuple[str, ...]
    where: str = ""
    says: str = ""
    remedy: str = ""
    """Empty for a SKIP, so that a thousand nodes do not repeat how to install what a check needs."""
    issues: tuple[str, ...] = ()
    """The known issues of the finding; older summaries have none."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measurement, or the node's median of several."""

    value: float
    unit: str
    more_is_better: bool


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's summary. ``facts``: name → sorted values found. ``checks``: check → worst status."""

    node: str
    state: State
    schema: str = msgspec.field(default_factory=lambda: SCHEMA)  # so that the field is always written
    reason: str = ""
    """The reason in words if there is no report."""
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
    """Known issues named in the findings."""
    bad: dict[str, tuple[str, ...]] = {}
    """Component with an affected version → its issues."""
    errors: dict[str, int] | None = None
    """GPU, link and counter → errors counted since the driver was loaded; None: not reported."""

    @property
    def status(self) -> Status:
        """Worst status of the tested checks: SKIP if all were skipped, ERROR if there is none."""
        if self.state is not State.REPORTED or not self.checks:
            return Status.ERROR
        tested = {Status(status) for status in self.checks.values()} - {Status.SKIP}
        return max(tested, key=lambda status: status.severity, default=Status.SKIP)

    @property
    def is_well(self) -> bool:
        """Whether the status is PASS, WARN or SKIP. The head node then needs no full report."""
        return self.status not in (Status.ERROR, Status.FAIL)

    @property
    def likeness(self) -> tuple[object, ...]:
        """Key that is equal for nodes with equal results."""
        checks = tuple(sorted(self.checks.items()))
        return (
            self.state.value,
            checks,
            tuple(sorted((finding.check, finding.identity) for finding in self.findings)),
        )


def of(report: Report, node: str, exit_code: int) -> NodeReport:
    """Summarise a node's full report."""
    facts: dict[str, set[str]] = {}
    for fact in report.inventory:
        if fact.value is not None:
            facts.setdefault(fact.name, set()).add(fact.value)
    devices: dict[str, int] = {}
    for device in report.devices:
        devices[device.name] = devices.get(device.name, 0) + 1
    worst = {
        check: merged_results.worst(results) for check, results in merged_results.by_check(report).items()
    }
    state, reason = _state(report)
    findings = tuple(_told(report))
    affected = (join for join in report.joins if join.relation in (Relation.CONFIRMED, Relation.LATENT))
    bad = by_key((join.component, join.issue) for join in affected if join.component)
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
        bad={component: tuple(issues) for component, issues in bad.items()},
        errors=error_counters.totals(
            [role.records for result in report.results if result.check == HEALTH for role in result.roles]
        ),
    )


def named(report: NodeReport, node: str) -> NodeReport:
    """The same report under the name of ``node``, since a node's own summary has no name."""
    return msgspec.structs.replace(report, node=node)


def clocked(report: NodeReport, now: datetime) -> NodeReport:
    """Add the offset of the node's clock, in minutes, to the facts. ``now``: time of the answer."""
    try:
        began = datetime.fromisoformat(report.started).astimezone()
        minutes = round((began + timedelta(seconds=report.elapsed_s) - now).total_seconds() / 60)
    except (ValueError, OverflowError):
        return report
    apart = f"{abs(minutes)} min {'ahead' if minutes > 0 else 'behind'}" if minutes else "as here"
    return msgspec.structs.replace(report, facts={**report.facts, "clock": (apart,)})


def _state(report: Report) -> tuple[State, str]:
    """Whether the report is an answer, and the reason if it is not: the run was interrupted, or used no GPU.
    With a FAIL, even an interrupted run is an answer."""
    if report.worst() is Status.FAIL:
        return State.REPORTED, ""
    if report.interrupted:
        return State.KILLED, "the run was interrupted"
    if report.nothing_tested:
        why = (r.finding for r in report.results if r.finding.status in (Status.SKIP, Status.ERROR))
        return State.UNTESTED, next(map(sentences.summary, why), "no probe ran on a GPU")
    return State.REPORTED, ""


def _told(report: Report) -> Iterator[FindingSummary]:
    groups = by_key(
        ((result.check, result.finding.identity), result)
        for result in report.results
        if result.finding.status is not Status.PASS
    )
    for (check, identity), results in groups.items():
        finding = results[0].finding
        yield FindingSummary(
            check,
            finding.key,
            finding.status.value,
            identity,
            fold_subjects(result.devices for result in results),
            sentences.headline(finding)[:MAX_TEXT],
            finding.remedy[:MAX_TEXT] if finding.status is not Status.SKIP else "",
            tuple(join.issue for join in merged_results.joins_of(report.joins, results)),
        )


def _known(report: Report, issues: Container[str]) -> Iterator[MatchedIssue]:
    for join in report.joins:
        if join.issue in issues:
            texts = (text[:MAX_TEXT] for text in (join.title, join.reason, join.remedy))
            yield MatchedIssue(join.issue, join.relation, *texts)


def _figures(report: Report) -> dict[str, Figure]:
    """The node's median of each measurement and, of several GPUs or pairs, also the slowest's median: one
    slow GPU of eight does not move the node's."""
    from statistics import median

    values: dict[str, dict[tuple[str, ...], list[float]]] = {}
    shape: dict[str, tuple[str, bool]] = {}
    for result in report.results:
        for measurement in result.finding.measured:
            name = f"{result.check}: {measurement.name}"
            values.setdefault(name, {}).setdefault(result.devices, []).append(measurement.value)
            shape[name] = (measurement.unit, measurement.more_is_better)
    found: dict[str, Figure] = {}
    for name, subjects in values.items():
        found[name] = Figure(median(value for each in subjects.values() for value in each), *shape[name])
        if len(subjects) > 1:
            slowest = (min if found[name].more_is_better else max)(map(median, subjects.values()))
            found[f"{name}, slowest"] = Figure(slowest, *shape[name])
    return found


class BadSummary(ValueError):
    """The text is not a summary of this version; the message is one line with place and reason."""


class GarbledSummary(BadSummary):
    """The text is not JSON."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(NodeReport)


def dumps(node_report: NodeReport) -> bytes:
    """One line of JSON without default values: ten thousand files then take 40 MB."""
    return _ENCODER.encode(node_report) + b"\n"


def loads(data: bytes) -> NodeReport:
    """Parse a summary. Raises `BadSummary`."""
    try:
        found = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise BadSummary(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GarbledSummary(f"this is not JSON: {error}") from None
    if found.schema != SCHEMA:
        raise BadSummary(f'"schema" is {found.schema[:80]!r}, not {SCHEMA!r}')
    statuses = {*found.checks.values(), *(told.status for told in found.findings)}
    if wrong := sorted(statuses - Status.__members__.keys()):
        raise BadSummary(f"{wrong[0][:40]!r} is not a status")
    return found


def silent(node: str, state: State, reason: str) -> NodeReport:
    """The summary of a node that gave no answer."""
    return NodeReport(node=node, state=state, reason=reason[:MAX_TEXT])
