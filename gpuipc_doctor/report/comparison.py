"""A comparison of two reports as data, and its exit code."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuipc_doctor.model import Device, Exit, Status, Subject, Tier
from gpuipc_doctor.report import acceptance, check_changes, inventory_changes, merged_results, speed
from gpuipc_doctor.report.acceptance import Verdict
from gpuipc_doctor.report.check_changes import ChangeKind, CheckChange
from gpuipc_doctor.report.inventory_changes import Change
from gpuipc_doctor.report.speed import Speeds, SpeedVerdict
from gpuipc_doctor.report_types import Join, Relation, Report, Result

TOLERANCE = 0.10
"""A change of speed up to this fraction is not reported."""


MEANINGS = {
    Exit.OK: "nothing is worse, slower or no longer tested",
    Exit.INTERNAL: "gpuipc-doctor itself failed",
    Exit.USAGE: "the command line is wrong, or a file is not a report",
    Exit.NOTHING: "in one of the reports no probe ran on a GPU: nothing to compare",
    Exit.WARN: "something is slower, or has become a WARN",
    Exit.ERROR: "something is no longer tested (ERROR, SKIP, not run, a missing GPU)",
    Exit.FAIL: "something newly fails; with --accept: anything fails",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two compared reports."""

    host: str
    started: str
    tier: Tier
    tool_version: str
    simulated: str
    untried: str
    """What screens say of GPUs whose backend was never run on one."""
    interrupted: bool
    probes_run: int
    nothing_tested: bool
    repetitions: int


@dataclass(frozen=True, slots=True)
class IssueChange:
    """A known issue whose relation to the node changed; a relation is None if the node did not have the
    issue."""

    issue: str
    title: str
    before: Relation | None
    after: Relation | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between two reports."""

    before: Side
    after: Side
    notes: tuple[str, ...]
    """Differences that limit the comparison."""
    inventory: tuple[Change, ...]
    devices: tuple[Match, ...]
    verdicts: tuple[CheckChange, ...]
    issues: tuple[IssueChange, ...]
    speeds: Speeds
    tolerance: float
    acceptance: Verdict | None = None
    """The verdict on the node of the later report; None if it was not asked for."""
    reason: str = ""
    """The reason for that verdict."""

    def turned(self, turn: ChangeKind) -> list[CheckChange]:
        return [verdict for verdict in self.verdicts if verdict.turn is turn]

    @property
    def exit_code(self) -> Exit:
        if self.acceptance is Verdict.REJECT:
            return Exit.FAIL
        changes = self._exit_code_of_changes
        unknown = self.acceptance is Verdict.CANNOT_TELL and changes in (Exit.OK, Exit.WARN)
        return Exit.ERROR if unknown else changes

    @property
    def _exit_code_of_changes(self) -> Exit:
        worse = {verdict.after for verdict in self.turned(ChangeKind.WORSE)}
        if Status.FAIL in worse:
            return Exit.FAIL
        if self.before.nothing_tested or self.after.nothing_tested:
            return Exit.NOTHING
        if self.turned(ChangeKind.NO_LONGER_TESTED) or any(
            match.fate is DeviceChange.GONE for match in self.devices
        ):
            return Exit.ERROR
        return Exit.WARN if worse or self.speeds.of(SpeedVerdict.SLOWER) else Exit.OK


def compare(
    before: Report,
    after: Report,
    tolerance: float = TOLERANCE,
    *,
    accept: bool = False,
    required: Collection[Subject] = (),
) -> Comparison:
    """The comparison of two reports. ``accept``: with the verdict on the node, whatever it was before, which
    cannot be ACCEPT if one of the ``required`` was not tested."""
    matches = match(before.devices, after.devices)
    old = _relabelled(before.results, labels_now(matches))
    verdict, reason = _accepted(after, required) if accept else (None, "")
    return Comparison(
        before=_side(before),
        after=_side(after),
        notes=tuple(_notes(before, after)),
        inventory=tuple(inventory_changes.changes(before.inventory, after.inventory)),
        devices=matches,
        verdicts=tuple(check_changes.verdicts(old, after.results)),
        issues=tuple(_issues(before.joins, after.joins)),
        speeds=speed.compare(old, after.results, tolerance),
        acceptance=verdict,
        reason=reason,
        tolerance=tolerance,
    )


def _accepted(report: Report, required: Collection[Subject]) -> tuple[Verdict, str]:
    """The verdict on the node and its reason. Few checks can reject a node but not accept it."""
    verdict = acceptance.verdict(report)
    if verdict is Verdict.ACCEPT and not acceptance.applies(report):
        return Verdict.CANNOT_TELL, (
            "the later report does not say that it has all checks of the acceptance tier: "
            "write it with `gpuipc-doctor check --all`, of 0.3.0 or newer"
        )
    untested = acceptance.untested(report.checks, report.results)
    lacking = [f"{subject.title} ({why})" for subject, why in untested.items() if subject in required]
    if verdict is Verdict.ACCEPT and lacking:
        return Verdict.CANNOT_TELL, f"required, but not tested: {', '.join(lacking)}"
    return verdict, acceptance.reason(report)


def _side(report: Report) -> Side:
    return Side(
        host=report.host,
        started=report.started,
        tier=report.tier,
        tool_version=report.tool_version,
        simulated=report.simulated,
        untried=report.untried,
        interrupted=report.interrupted,
        probes_run=report.probes_run,
        nothing_tested=report.nothing_tested,
        repetitions=merged_results.repetitions(report),
    )


def _relabelled(results: Sequence[Result], now: dict[str, str | None]) -> list[Result]:
    """Results of the earlier report with the later report's labels; those of missing devices are dropped."""
    relabelled = []
    for result in results:
        labels = [now.get(label, label) for label in result.devices]
        if None not in labels:
            relabelled.append(replace(result, devices=tuple(filter(None, labels))))
    return relabelled


def _notes(before: Report, after: Report) -> Iterator[str]:
    if before.host != after.host:
        yield f"the reports come from two nodes: {before.host} and {after.host}"
    for name, report in (("the earlier report", before), ("the later report", after)):
        if report.interrupted:
            yield f"{name} was interrupted, so some checks did not run"
        if report.nothing_tested:
            yield f"{name} has tested nothing: no probe ran on a GPU"
    if before.tier is not after.tier:
        yield f"the tiers differ: {before.tier.label} and {after.tier.label}"
    if before.tool_version != after.tool_version:
        yield (
            f"the versions of gpuipc-doctor differ ({before.tool_version}, {after.tool_version}); the "
            "checks may differ too"
        )
    if before.known_issues and after.known_issues and before.known_issues != after.known_issues:
        yield (
            f"the editions of the known issues differ ({before.known_issues}, {after.known_issues}); "
            "recognised issues may differ too"
        )
    if _is_earlier(after.started, before.started):
        yield f"AFTER is older than BEFORE: {after.started}, {before.started}"


def _is_earlier(one: str, other: str) -> bool:
    try:
        return datetime.fromisoformat(one) < datetime.fromisoformat(other)
    except (ValueError, TypeError):  # no time, or a time without an offset
        return False


def _issues(before: Sequence[Join], after: Sequence[Join]) -> Iterator[IssueChange]:
    was, now = ({join.issue: join for join in joins} for joins in (before, after))
    for issue, join in {**was, **now}.items():
        old, new = (joins[issue].relation if issue in joins else None for joins in (was, now))
        if old is not new:
            yield IssueChange(issue, join.title, old, new)


# -- devices: GPUs may be renumbered between two reports ---------------------------------------------------


class DeviceChange(enum.Enum):
    """The change of a device between two reports."""

    SAME = "same"
    RENUMBERED = "renumbered"
    REPLACED = "replaced"
    GONE = "gone"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Match:
    """A device in each report; None if missing."""

    before: Device | None
    after: Device | None
    fate: DeviceChange


def match(before: Sequence[Device], after: Sequence[Device]) -> tuple[Match, ...]:
    """Match the devices of both reports by uuid, which survives renumbering, else by label.

    A uuid that occurs twice in one report identifies no device.
    """
    uuids_before, by_uuid = _by_uuid(before), _by_uuid(after)
    partners = {device: by_uuid[uuid] for uuid, device in uuids_before.items() if uuid in by_uuid}
    taken = set(partners.values())
    by_label = {device.label: device for device in after if device not in taken}
    for device in before:
        if device not in partners and (found := by_label.pop(device.label, None)):
            partners[device] = found
    matched = set(partners.values())
    return (
        *(Match(device, partners.get(device), _change(device, partners.get(device))) for device in before),
        *(Match(None, device, DeviceChange.NEW) for device in after if device not in matched),
    )


def _change(before: Device, after: Device | None) -> DeviceChange:
    if after is None:
        return DeviceChange.GONE
    if before.uuid != after.uuid:
        return DeviceChange.REPLACED
    return DeviceChange.SAME if before.label == after.label else DeviceChange.RENUMBERED


def _by_uuid(devices: Sequence[Device]) -> dict[str, Device]:
    times = Counter(device.uuid for device in devices)
    return {device.uuid: device for device in devices if device.uuid and times[device.uuid] == 1}


def labels_now(matches: Sequence[Match]) -> dict[str, str | None]:
    """Label before → label of the same device after; None if missing."""
    return {
        match.before.label: match.after.label if match.after else None for match in matches if match.before
    }
