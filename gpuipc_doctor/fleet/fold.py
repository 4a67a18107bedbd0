"""Merge the reports of many nodes: which nodes are bad, and which differ. Pure functions."""

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
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.report_types import Relation

OF_A_NODE = frozenset({"hostname", "gpu-uuid", "boot-id", "gpu-serials", "nvlink-peers"})
"""Facts that are meant to differ between nodes."""

OUTLYING = 5.0
"""An outlier is this many robust standard deviations from the fleet's median, and also worse than the median
by the factor `FACTOR`, since healthy nodes can be very similar."""

FACTOR = 1.25

COMPLAINTS = frozenset({Status.WARN.value, Status.ERROR.value, Status.FAIL.value})

REMEDIES = {
    State.UNREACHABLE: "run `ssh -oBatchMode=yes {node} true`; if it does not answer, check its console",
    State.NOT_LAUNCHED: "run `scontrol show node {node}`; for busy nodes raise --patience",
    State.DEADLINE: "check console and dmesg of {node}; or raise --deadline",
    State.KILLED: "look for `Out of memory` in dmesg of {node}",
    State.NO_TOOL: "give the tool's path on the nodes with --tool, or send the tool with --ship and --python",
    State.REFUSED: "correct the option (after `--`) or the line of the site config that the message names",
    State.OTHER_VERSION: "install the same version of the tool on the node and on this machine",
    State.UNTESTED: "check driver and bindings on {node}; a Slurm job may need --launch-option=--gres=gpu:N",
    State.UNREADABLE: "rerun with `fleet check --resume`",
    State.NO_ANSWER: "rerun with `fleet check --resume`, or run `gpuipc-doctor check --all` on {node}",
}
"""State → remedy; ``{node}`` stands for the first node in this state."""

_FIGURE = re.compile(r"\b\d[\d.:]{3,}")
"""Numbers that differ between messages of one cause: job ids, addresses, times and sizes. Exit codes and
ports are shorter, so they are kept."""

EXPECTED_SKIPS = frozenset({"disabled", "no-fabric-here", "suppressed"})
"""Keys of SKIPs that a site config requests."""

FEWEST = 5
"""Minimum number of nodes among which outliers are looked for."""

PER_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, divided by the median of its absolute deviations."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes whose statuses and findings are identical."""

    nodes: tuple[str, ...]
    state: State
    status: Status
    checks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IssueOnNodes:
    """A known issue of a finding, and the nodes on which it has the same title, reason and remedy."""

    issue: str
    relation: Relation
    title: str
    reason: str
    remedy: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding with all nodes that have it. The texts are those of the first node, the ``example``."""

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
class SkippedCheck:
    """A check that was skipped, but not at the site's request, with the first node's reason."""

    check: str
    key: str
    nodes: tuple[str, ...]
    says: str


@dataclass(frozen=True, slots=True)
class MissingReports:
    """Nodes whose reports are missing for the same reason; the first node's words give the reason."""

    state: State
    reason: str
    nodes: tuple[str, ...]
    remedy: str

    def about(self, nodes: str) -> str:
        """A sentence on these nodes."""
        if self.state is State.UNTESTED:
            return f"nothing was tested on {nodes}"
        if self.state is State.REFUSED:
            return f"{nodes} refused the command"
        return f"no report from {nodes}: {self.state.value}"


@dataclass(frozen=True, slots=True)
class FactValue:
    """A value of a fact (empty if not found), the nodes with it, and the known issues that affect this
    version."""

    value: str
    nodes: tuple[str, ...]
    known_bad: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """A fact that differs between nodes; most common value first."""

    name: str
    values: tuple[FactValue, ...]

    @property
    def is_known_bad(self) -> bool:
        return any(held.known_bad for held in self.values)


@dataclass(frozen=True, slots=True)
class Outlier:
    """A node's figure that is worse than those of its peers."""

    name: str
    node: str
    value: float
    median: float
    unit: str
    peers: int


@dataclass(frozen=True)
class Fleet:
    """Merged results of all node reports."""

    reports: Sequence[NodeReport]
    groups: tuple[Group, ...]
    findings: tuple[Problem, ...]
    silent: tuple[MissingReports, ...]
    drift: tuple[Drift, ...]
    slow: tuple[Outlier, ...]
    skipped: tuple[SkippedCheck, ...]
    folder: NodeSetFormatter
    is_unsaved: bool = False
    """Whether a report could not be written: then no run ends with 0."""

    @cached_property
    def answered(self) -> list[NodeReport]:
        """Reports of nodes that answered."""
        return [report for report in self.reports if report.state is State.REPORTED]

    @property
    def started(self) -> str:
        """Start of the first report; empty without one."""
        return min((report.started for report in self.answered), default="")

    @property
    def telling_checks(self) -> list[str]:
        """Checks that are not fine on some node."""
        return sorted(
            {check for group in self.groups for check, status in group.checks.items() if status in COMPLAINTS}
        )

    @property
    def simulated(self) -> tuple[str, ...]:
        """The simulated nodes."""
        return tuple(report.node for report in self.reports if report.simulated)

    def nodes(self, *statuses: Status) -> tuple[str, ...]:
        """Nodes whose worst status is one of ``statuses``."""
        return tuple(node for group in self.groups if group.status in statuses for node in group.nodes)

    @property
    def sets(self) -> dict[str, tuple[str, ...]]:
        """Three disjoint sets of nodes: usable, to drain, unknown."""
        return {
            "pass": self.nodes(Status.PASS, Status.WARN),
            "fail": self.nodes(Status.FAIL),
            "unknown": self.nodes(Status.ERROR, Status.SKIP),
        }

    @property
    def exit_code(self) -> Exit:
        """The exit code, as for a single node; a missing report counts as ERROR."""
        if self.nodes(Status.FAIL):
            return Exit.FAIL
        if self.nodes(Status.ERROR):
            return Exit.ERROR
        return Exit.INTERNAL if self.is_unsaved else Exit.OK


def fold(reports: Iterable[NodeReport]) -> Fleet:
    """Merge the reports, one per node."""
    known = sorted(reports, key=lambda one: one.node)
    answered = [report for report in known if report.state is State.REPORTED]
    return Fleet(
        known,
        tuple(sorted(_groups(known), key=lambda g: (-g.status.severity, len(g.nodes), g.nodes))),
        tuple(sorted(_problems(answered), key=lambda p: (-p.status.severity, -len(p.nodes), p.check))),
        tuple(silences(known)),
        tuple(_drifts(answered)),
        tuple(_slow(answered)),
        tuple(sorted(_skipped(answered), key=lambda one: (-len(one.nodes), one.check))),
        NodeSetFormatter([report.node for report in known]),
    )


def _groups(reports: Iterable[NodeReport]) -> Iterator[Group]:
    alike = by_key((report.likeness, report) for report in reports)
    for group in alike.values():
        first = group[0]
        yield Group(tuple(report.node for report in group), first.state, first.status, first.checks)


def _problems(reports: Iterable[NodeReport]) -> Iterator[Problem]:
    """Problems by check and key, because the texts differ too often in a fleet."""
    found: dict[tuple[str, str, str], list[tuple[NodeReport, FindingSummary]]] = defaultdict(list)
    for report in reports:
        for told in report.findings:
            if told.status != Status.SKIP.value:
                found[told.check, told.key or told.says, told.status].append((report, told))
    for (check, key, status), places in found.items():
        nodes = tuple(dict.fromkeys(one.node for one, _ in places))
        first, causes = places[0][1], tuple(_causes(places))
        yield Problem(
            check, key, Status(status), nodes, nodes[0], first.where, first.says, first.remedy, causes
        )


def _skipped(reports: Iterable[NodeReport]) -> Iterator[SkippedCheck]:
    """SKIPs by check and key, except those that the site requested."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for report in reports:
        for finding in report.findings:
            if finding.status == Status.SKIP.value and finding.key not in EXPECTED_SKIPS:
                found[finding.check, finding.key].setdefault(report.node, finding.says)
    for (check, key), says in found.items():
        yield SkippedCheck(check, key, tuple(says), next(iter(says.values())))


def _causes(places: Iterable[tuple[NodeReport, FindingSummary]]) -> Iterator[IssueOnNodes]:
    """The findings' known issues; those on most nodes come first."""
    nodes: dict[MatchedIssue, dict[str, None]] = defaultdict(dict)
    for one, told in places:
        for known in one.known:
            if known.issue in told.issues:
                nodes[known][one.node] = None
    for known, those in sorted(nodes.items(), key=lambda item: -len(item[1])):
        yield IssueOnNodes(known.issue, known.relation, known.title, known.reason, known.remedy, tuple(those))


def silences(reports: Iterable[NodeReport]) -> Iterator[MissingReports]:
    """Nodes without a report, grouped by state and cause, the largest group first."""
    silent = by_key(
        ((report.state, _cause(report)), report) for report in reports if report.state is not State.REPORTED
    )
    for (state, _), those in sorted(silent.items(), key=lambda item: -len(item[1])):
        nodes = tuple(report.node for report in those)
        yield MissingReports(state, those[0].reason, nodes, REMEDIES[state].format(node=nodes[0]))


def _cause(report: NodeReport) -> str:
    """The reason without node names and figures."""
    bare = report.reason.replace(report.node, "").replace(report.node.partition(".")[0], "")
    return _FIGURE.sub("", bare)


def _drifts(reports: Sequence[NodeReport]) -> Iterator[Drift]:
    models = [", ".join(f"{n} × {name}" for name, n in sorted(report.devices.items())) for report in reports]
    if len(set(models)) > 1:
        yield Drift("GPUs", _held(zip((report.node for report in reports), models, strict=True)))
    bad = {report.node: report.bad for report in reports if report.bad}
    found = []
    for name in {name for report in reports for name in report.facts} - OF_A_NODE:
        held = _held((report.node, ", ".join(report.facts.get(name, ()))) for report in reports)
        if 1 < len(held) < max(len(reports), 3):  # a different value on each node is no drift
            found.append(Drift(name, tuple(replace(e, known_bad=_issues(name, e.nodes, bad)) for e in held)))
    weights = {name: weight for weight, name in enumerate(MATTERS)}
    yield from sorted(found, key=lambda d: (not d.is_known_bad, weights.get(d.name, len(MATTERS)), d.name))


MATTERS = (
    *("nvidia-driver", "nvidia-module", "amdgpu", "rocm", "libcuda", "cuda-driver", "hip-driver"),
    *("cray-mpich", "mpich", "openmpi", "intel-mpi", "mvapich", "ucx", "nccl", "rccl"),
    *("libfabric", "shs-libfabric", "shs", "cxi-driver", "mlnx-ofed", "psm2", "kernel"),
)
"""Components in the order in which their drift matters: drivers, MPI, fabric, kernel. All others follow."""


def _held(values: Iterable[tuple[str, str]]) -> tuple[FactValue, ...]:
    """Values and the nodes that have them, most common first."""
    nodes = by_key((value, node) for node, value in values)
    commonest = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(FactValue(value, tuple(those)) for value, those in commonest)


def _issues(
    name: str, nodes: Iterable[str], bad: Mapping[str, Mapping[str, Sequence[str]]]
) -> tuple[str, ...]:
    """Known issues that this value of the fact implies on each of the nodes."""
    of_each = [frozenset(bad.get(node, {}).get(name, ())) for node in nodes]
    return tuple(sorted(frozenset.intersection(*of_each)))


def _slow(reports: Sequence[NodeReport]) -> Iterator[Outlier]:
    """Outliers among nodes with the same GPUs, by median and median absolute deviation."""
    peers: dict[tuple[str, str], list[tuple[str, Figure]]] = defaultdict(list)
    for report in reports:
        kind = str(sorted(report.devices.items()))
        for name, figure in report.figures.items():
            peers[name, kind].append((report.node, figure))
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
    distance = middle - figure.value if figure.more_is_better else figure.value - middle
    if distance <= OUTLYING * spread or not middle:
        return False
    ratio = middle / figure.value if figure.more_is_better and figure.value else figure.value / middle
    return ratio >= FACTOR
