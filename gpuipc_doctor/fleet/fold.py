"""From the reports of many nodes to what an admin asks: which are bad, which differ. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.fleet.summary import Figure, FindingSummary, MatchedIssue, NodeReport, State
from gpuipc_doctor.model import Exit, Relation, Status

OF_A_NODE = frozenset({"hostname", "gpu-uuid", "boot-id"})
"""Facts that differ from node to node as they should."""

OUTLYING = 5.0
"""So many robust standard deviations from the fleet's median make a figure an outlier, if it is also
`FACTOR` times as bad: the spread of healthy nodes can be very small."""

FACTOR = 1.25

COMPLAINTS = frozenset({Status.WARN.value, Status.ERROR.value, Status.FAIL.value})

REMEDIES = {
    State.UNREACHABLE: "run `ssh -oBatchMode=yes {node} true`; if it does not answer, look at its console",
    State.NOT_LAUNCHED: "run `scontrol show node {node}`; for busy nodes raise --patience",
    State.DEADLINE: "look at the console and the kernel log of {node}, or raise --deadline",
    State.KILLED: "look for `Out of memory` in the kernel log of {node}",
    State.NO_TOOL: "name the tool on the nodes with --tool, or send it with --ship and --python",
    State.REFUSED: "correct what that line names, after `--` or in the site config of the node",
    State.OTHER_VERSION: "install the same version on the node and here",
    State.UNTESTED: "check driver and bindings on {node}; a Slurm job may need --launch-option=--gres=gpu:N",
    State.UNREADABLE: "ask again with `fleet check --resume`",
    State.NO_ANSWER: "ask again with `fleet check --resume`, or run `gpuipc-doctor check --all` on {node}",
}
"""What to do about nodes without a report; ``node`` is the first of them."""

_FIGURE = re.compile(r"\b\d[\d.:]{3,}")
"""Job ids, addresses, times, sizes; an exit code or a port is shorter."""

FEWEST = 5
"""With fewer nodes there is no fleet to stand out from."""

PER_DEVIATION = 1.4826
"""The median of the absolute deviations of a normal distribution, times this, is its standard deviation."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes with the same answer: the same statuses, the same findings."""

    nodes: tuple[str, ...]
    state: State
    status: Status
    checks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IssueOnNodes:
    """A known issue that belongs to a finding, with the nodes whose reports say so in the same words."""

    issue: str
    relation: Relation
    title: str
    reason: str
    remedy: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding, wherever it was made, as its first node, the ``example``, says it."""

    check: str
    key: str
    status: Status
    nodes: tuple[str, ...]
    example: str
    where: str
    says: str
    remedy: str
    known_issues: tuple[IssueOnNodes, ...] = ()


@dataclass(frozen=True, slots=True)
class MissingReports:
    """Nodes without a report for the same reason, in the words of the first."""

    state: State
    reason: str
    nodes: tuple[str, ...]
    remedy: str

    def about(self, nodes: str) -> str:
        """What is to be told of a set of nodes."""
        if self.state is State.UNTESTED:
            return f"nothing was tested on {nodes}"
        if self.state is State.REFUSED:
            return f"{nodes} refused the command"
        return f"no report from {nodes}: {self.state.value}"


@dataclass(frozen=True, slots=True)
class FactValue:
    """A value of a fact (empty: not found), and the known issues of a version that is bad."""

    value: str
    nodes: tuple[str, ...]
    known_bad: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """A fact that is not the same everywhere; the most common value first."""

    name: str
    values: tuple[FactValue, ...]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A figure of a node that stands out among its peers', for the worse."""

    name: str
    node: str
    value: float
    median: float
    unit: str
    peers: int


@dataclass(frozen=True)
class Fleet:
    """What the node reports say together."""

    reports: Sequence[NodeReport]
    groups: tuple[Group, ...]
    findings: tuple[Problem, ...]
    silent: tuple[MissingReports, ...]
    drift: tuple[Drift, ...]
    slow: tuple[Outlier, ...]
    folder: NodeSetFormatter

    @cached_property
    def answered(self) -> list[NodeReport]:
        """The reports that are one."""
        return [one for one in self.reports if one.state is State.REPORTED]

    @property
    def started(self) -> str:
        """When the first of them was begun; empty without one."""
        return min((one.started for one in self.answered), default="")

    @property
    def telling_checks(self) -> list[str]:
        """The checks that are not fine everywhere."""
        return sorted(
            {check for one in self.groups for check, status in one.checks.items() if status in COMPLAINTS}
        )

    @property
    def simulated(self) -> tuple[str, ...]:
        """The nodes that were simulated ones."""
        return tuple(one.node for one in self.reports if one.simulated)

    def nodes(self, *statuses: Status) -> tuple[str, ...]:
        """The nodes whose worst status is one of these."""
        return tuple(node for group in self.groups if group.status in statuses for node in group.nodes)

    @property
    def sets(self) -> dict[str, tuple[str, ...]]:
        """Each node in one of them: whom to give to jobs, whom to take out, of whom nothing is known."""
        return {
            "pass": self.nodes(Status.PASS, Status.WARN),
            "fail": self.nodes(Status.FAIL),
            "unknown": self.nodes(Status.ERROR, Status.SKIP),
        }

    @property
    def exit_code(self) -> Exit:
        """As for a node; one without a report is an ERROR."""
        if self.nodes(Status.FAIL):
            return Exit.FAIL
        return Exit.ERROR if self.nodes(Status.ERROR) else Exit.OK


def fold(reports: Iterable[NodeReport]) -> Fleet:
    """All of it, from one report a node."""
    known = sorted(reports, key=lambda one: one.node)
    answered = [one for one in known if one.state is State.REPORTED]
    return Fleet(
        known,
        tuple(sorted(_groups(known), key=lambda g: (-g.status.severity, len(g.nodes), g.nodes))),
        tuple(sorted(_problems(answered), key=lambda p: (-p.status.severity, -len(p.nodes), p.check))),
        tuple(silences(known)),
        tuple(_drifts(answered)),
        tuple(_slow(answered)),
        NodeSetFormatter([one.node for one in known]),
    )


def _groups(reports: Iterable[NodeReport]) -> Iterator[Group]:
    alike: dict[object, list[NodeReport]] = defaultdict(list)
    for one in reports:
        alike[one.likeness].append(one)
    for group in alike.values():
        first = group[0]
        yield Group(tuple(one.node for one in group), first.state, first.status, first.checks)


def _problems(reports: Iterable[NodeReport]) -> Iterator[Problem]:
    """By check and key, not by each difference in words: a fleet has more of those than a reader has time."""
    found: dict[tuple[str, str, str], list[tuple[NodeReport, FindingSummary]]] = defaultdict(list)
    for one in reports:
        for told in one.findings:
            if told.status != Status.SKIP.value:
                found[told.check, told.key or told.says, told.status].append((one, told))
    for (check, key, status), places in found.items():
        nodes = tuple(dict.fromkeys(one.node for one, _ in places))
        first, causes = places[0][1], tuple(_causes(places))
        yield Problem(
            check, key, Status(status), nodes, nodes[0], first.where, first.says, first.remedy, causes
        )


def _causes(places: Iterable[tuple[NodeReport, FindingSummary]]) -> Iterator[IssueOnNodes]:
    """Those of most nodes first."""
    nodes: dict[MatchedIssue, dict[str, None]] = defaultdict(dict)
    for one, told in places:
        for known in one.known:
            if known.issue in told.issues:
                nodes[known][one.node] = None
    for known, those in sorted(nodes.items(), key=lambda item: -len(item[1])):
        yield IssueOnNodes(known.issue, known.relation, known.title, known.reason, known.remedy, tuple(those))


def silences(reports: Iterable[NodeReport]) -> Iterator[MissingReports]:
    """Nodes without a report, by state and cause, most nodes first."""
    silent: dict[tuple[State, str], list[NodeReport]] = defaultdict(list)
    for one in reports:
        if one.state is not State.REPORTED:
            silent[one.state, _cause(one)].append(one)
    for (state, _), those in sorted(silent.items(), key=lambda item: -len(item[1])):
        nodes = tuple(one.node for one in those)
        yield MissingReports(state, those[0].reason, nodes, REMEDIES[state].format(node=nodes[0]))


def _cause(report: NodeReport) -> str:
    """The reason without the names of the node and without figures."""
    bare = report.reason.replace(report.node, "").replace(report.node.partition(".")[0], "")
    return _FIGURE.sub("", bare)


def _drifts(reports: Sequence[NodeReport]) -> Iterator[Drift]:
    """The facts of which nodes have different values."""
    models = [", ".join(f"{n} × {name}" for name, n in sorted(one.devices.items())) for one in reports]
    if len(set(models)) > 1:
        yield Drift("GPUs", _held(zip((one.node for one in reports), models, strict=True)))
    bad = {one.node: one.bad for one in reports if one.bad}
    for name in sorted({name for one in reports for name in one.facts} - OF_A_NODE):
        held = _held((one.node, ", ".join(one.facts.get(name, ()))) for one in reports)
        if 1 < len(held) < max(len(reports), 3):  # a value for each node is no drift
            yield Drift(name, tuple(replace(e, known_bad=_issues(name, e.nodes, bad)) for e in held))


def _held(values: Iterable[tuple[str, str]]) -> tuple[FactValue, ...]:
    """From nodes with their values: the most common value first."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, value in values:
        nodes[value].append(node)
    commonest = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(FactValue(value, tuple(those)) for value, those in commonest)


def _issues(
    name: str, nodes: Iterable[str], bad: Mapping[str, Mapping[str, Sequence[str]]]
) -> tuple[str, ...]:
    """Those that all of the nodes have by this fact."""
    of_each = [frozenset(bad.get(node, {}).get(name, ())) for node in nodes]
    return tuple(sorted(frozenset.intersection(*of_each)))


def _slow(reports: Sequence[NodeReport]) -> Iterator[Outlier]:
    """Nodes that stand out among those with the same GPUs, by median and median absolute deviation."""
    peers: dict[tuple[str, str], list[tuple[str, Figure]]] = defaultdict(list)
    for one in reports:
        kind = str(sorted(one.devices.items()))
        for name, figure in one.figures.items():
            peers[name, kind].append((one.node, figure))
    for (name, _), figures in sorted(peers.items()):
        if len(figures) < FEWEST:
            continue
        values = [figure.value for _, figure in figures if math.isfinite(figure.value)]
        middle = median(values)
        spread = PER_DEVIATION * median(abs(value - middle) for value in values)
        for node, figure in figures:
            if _is_worse(figure, middle, spread):
                yield Outlier(name, node, figure.value, middle, figure.unit, len(figures))


def _is_worse(figure: Figure, middle: float, spread: float) -> bool:
    """Whether it is both far from the median and a good deal worse."""
    distance = middle - figure.value if figure.more_is_better else figure.value - middle
    if distance <= OUTLYING * spread or not middle:
        return False
    ratio = middle / figure.value if figure.more_is_better and figure.value else figure.value / middle
    return ratio >= FACTOR
