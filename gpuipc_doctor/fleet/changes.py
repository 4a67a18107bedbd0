"""Compare two runs over a fleet, before and after an upgrade: nodes that got worse, better or lost.

Each node is compared with itself, check by check and by the keys of findings. A change that many nodes
have in common is reported once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpuipc_doctor.fleet import fold
from gpuipc_doctor.fleet.fold import Fleet, MissingReports, Outlier
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.fleet.summary import FindingSummary, NodeReport, State, silent
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.report.check_changes import ChangeKind, turn_of

NOT_ASKED = "not among the nodes of this run"

MEANINGS = {
    Exit.OK: "nothing is worse, slower or no longer tested, and no report is missing",
    Exit.INTERNAL: "gpuipc-doctor itself failed",
    Exit.USAGE: "the command line is wrong, or a directory has no node reports",
    Exit.NOTHING: "no node answered in both runs: nothing to compare",
    Exit.WARN: "something is slower, or has become a WARN",
    Exit.ERROR: "a node, or a check on it, is no longer tested",
    Exit.FAIL: "a node has a new FAIL",
}


@dataclass(frozen=True, slots=True)
class CheckTransition:
    """How a check's result changed, alike on some nodes; the texts are the first node's.

    ``key`` is that of the later run's finding; if the later run has none, of the earlier run's.
    """

    check: str
    key: str
    before: Status | None
    after: Status | None
    turn: ChangeKind
    nodes: tuple[str, ...]
    says: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """Values of a fact on some nodes before and after; a value that was not found is empty."""

    before: str
    after: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactChange:
    """A fact that changed on some nodes: changed values first, then unchanged ones, each with its nodes."""

    name: str
    changes: tuple[ChangedValue, ...]


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A changed figure: its medians, and the median change per node.

    ``ratio`` is later / earlier, or earlier / later if more is better: above 1 is slower.
    """

    name: str
    unit: str
    before: float
    after: float
    ratio: float
    nodes: int

    @property
    def is_slower(self) -> bool:
        return self.ratio > 1


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between two runs over a fleet."""

    before: Fleet
    after: Fleet
    both: int
    """Nodes that answered in both runs."""
    findings: tuple[CheckTransition, ...]
    lost: tuple[MissingReports, ...]
    """Nodes that answered only in the earlier run, by reason."""
    new: tuple[str, ...]
    """Nodes that answered only in the later run."""
    facts: tuple[FactChange, ...]
    figures: tuple[SpeedChange, ...]
    slow: tuple[Outlier, ...]
    """Figures of single nodes that have become outliers among their peers."""
    folder: NodeSetFormatter

    def turned(self, turn: ChangeKind) -> list[CheckTransition]:
        return [move for move in self.findings if move.turn is turn]

    @property
    def nodes(self) -> Mapping[str, tuple[str, ...]]:
        """Nodes by their worst change. ``lost`` and ``new`` have the nodes that answered in one run only."""
        lost = {node for silence in self.lost for node in silence.nodes}
        left = {report.node for report in self.after.answered} - set(self.new)
        sets = {"lost": tuple(sorted(lost)), "new": self.new}
        for turn in ChangeKind:
            if turn is not ChangeKind.SAME:
                turned = {node for move in self.turned(turn) for node in move.nodes} & left
                sets[turn.value] = tuple(sorted(turned))
                left -= turned
        sets[ChangeKind.SAME.value] = tuple(sorted(left))
        return sets

    @property
    def exit_code(self) -> Exit:
        worse = {move.after for move in self.turned(ChangeKind.WORSE)}
        if Status.FAIL in worse:
            return Exit.FAIL
        if not self.both:
            return Exit.NOTHING
        if self.lost or self.turned(ChangeKind.NO_LONGER_TESTED):
            return Exit.ERROR
        slower = self.slow or any(pace.is_slower for pace in self.figures)
        return Exit.WARN if worse or slower else Exit.OK


def compare(before: Iterable[NodeReport], after: Iterable[NodeReport]) -> Changes:
    """Compare two runs over a fleet."""
    was, now = fold.fold(before), fold.fold(after)
    old, new = ({report.node: report for report in fleet.answered} for fleet in (was, now))
    pairs = [(old[node], one) for node, one in new.items() if node in old]
    newly = [(None, one) for node, one in new.items() if node not in old]
    slow_before = {(outlier.name, outlier.node) for outlier in was.slow}
    there = {report.node: report for report in now.reports}
    gone = [node for node in old if node not in new]
    lost = (there.get(node) or silent(node, State.NO_ANSWER, NOT_ASKED) for node in gone)

    def weight(move: CheckTransition) -> tuple[object, ...]:
        severity = move.after.severity if move.after else 0
        return list(ChangeKind).index(move.turn), -severity, -len(move.nodes), move.check, move.key

    return Changes(
        was,
        now,
        len(pairs),
        tuple(sorted(_moves([*pairs, *newly]), key=weight)),
        tuple(fold.silences(lost)),
        tuple(one.node for _, one in newly),
        tuple(_shifts(pairs)),
        tuple(sorted(_paces(pairs), key=lambda pace: -pace.ratio)),
        tuple(outlier for outlier in now.slow if (outlier.name, outlier.node) not in slow_before),
        NodeSetFormatter(sorted({report.node for fleet in (was, now) for report in fleet.reports})),
    )


_Pairs = Sequence[tuple[NodeReport, NodeReport]]


def _moves(pairs: Iterable[tuple[NodeReport | None, NodeReport]]) -> Iterator[CheckTransition]:
    """Checks that changed, and checks that stayed bad."""
    groups: dict[tuple[str, str, Status | None, Status | None, ChangeKind], list[str]] = defaultdict(list)
    examples: dict[object, FindingSummary | None] = {}
    for was, now in pairs:
        old = was.checks if was else {}
        for check in dict.fromkeys((*now.checks, *old)):
            before, after = (
                Status(status) if status else None for status in (old.get(check), now.checks.get(check))
            )
            if before is after and after not in (Status.FAIL, Status.ERROR):
                continue
            if was is None and after is not Status.FAIL:  # a PASS on a new node is not listed
                continue
            known = _found(was, check, before)
            found = _found(now, check, after)
            turn = turn_of(before, after)
            if before is after is Status.FAIL and known.keys() != found.keys():
                turn = ChangeKind.FAILS_OTHERWISE
            for key, told in _telling(known, found, turn).items():
                group = (check, key, before, after, turn)
                groups[group].append(now.node)
                examples.setdefault(group, told)
    for group, nodes in groups.items():
        check, _, before, after, turn = group
        told = examples[group]
        said = (told.says, told.remedy) if told else ("", "")
        yield CheckTransition(check, told.key if told else "", before, after, turn, tuple(nodes), *said)


def _found(report: NodeReport | None, check: str, status: Status | None) -> dict[str, FindingSummary]:
    if report is None or status is None:
        return {}
    return {
        told.key or told.says: told
        for told in report.findings
        if told.check == check and told.status == status.value
    }


def _telling(
    known: dict[str, FindingSummary], found: dict[str, FindingSummary], turn: ChangeKind
) -> dict[str, FindingSummary | None]:
    """The findings that represent a change: new findings or, if there are none, findings that disappeared."""
    fresh = {key: told for key, told in found.items() if key not in known}
    gone = turn in (ChangeKind.BETTER, ChangeKind.NEWLY_TESTED)
    return {**((known if gone else fresh) or found or known)} or {"": None}


def _shifts(pairs: _Pairs) -> Iterator[FactChange]:
    names = sorted({name for pair in pairs for report in pair for name in report.facts} - fold.OF_A_NODE)
    for name in names:
        rows: dict[tuple[str, str], list[str]] = defaultdict(list)
        for was, now in pairs:
            before, after = (", ".join(report.facts.get(name, ())) for report in (was, now))
            rows[before, after].append(now.node)
        is_each_nodes_own = len(rows) >= max(len(pairs), 3)
        if any(before != after for before, after in rows) and not is_each_nodes_own:
            ordered = sorted(rows.items(), key=lambda row: (row[0][0] == row[0][1], -len(row[1]), row[0]))
            yield FactChange(name, tuple(ChangedValue(*values, tuple(nodes)) for values, nodes in ordered))


def _paces(pairs: _Pairs) -> Iterator[SpeedChange]:
    """Figures that changed on most nodes; single outliers are reported elsewhere."""
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    kinds = {}
    for was, now in pairs:
        for name, figure in now.figures.items():
            before = was.figures.get(name)
            if before and before.unit == figure.unit and min(before.value, figure.value) > 0:
                figures[name].append((before.value, figure.value))
                kinds[name] = figure
    for name, values in figures.items():
        is_turned = kinds[name].more_is_better
        ratio = median(old / new if is_turned else new / old for old, new in values)
        if len(values) >= fold.FEWEST and not 1 / fold.FACTOR < ratio < fold.FACTOR:
            old, new = (median(side) for side in zip(*values, strict=True))
            yield SpeedChange(name, kinds[name].unit, old, new, ratio, len(values))
