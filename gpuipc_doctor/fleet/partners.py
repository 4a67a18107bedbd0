"""Choose pairs of nodes, and distinguish bad nodes from bad links. Pure functions.

A failed probe between two nodes is evidence against both and against the link. So each node is tested until
it has passed with a partner (it is then *proven*) or has failed `FAILURES` times with proven partners. The
first round pairs neighbours, all at once; later rounds pair each unproven node with a proven one. A single
failure does not count, since a node may lose one message in twenty. The cost grows with the number of nodes,
not of pairs (half a million for a thousand nodes).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.crossings import Outcome, Pair, Run, Topology
from gpuipc_doctor.fleet.switches import Cut, Switches, judge_switches, pairs_to_try
from gpuipc_doctor.grouping import by_key

MAX_ROUNDS = 8

FAILURES = 5
"""Failures that make a node bad (with at least two proven partners) or make a pair bad."""

UNSTABLE = 2
"""A node in this many flaky pairs is unstable."""

_NO_TOPOLOGY: Topology = {}


@dataclass(frozen=True, slots=True)
class Blame:
    """The verdict of the runs. No node or pair is in two fields."""

    nodes: tuple[str, ...] = ()
    """Nodes that failed with `FAILURES` proven partners and passed with none."""
    pairs: tuple[Pair, ...] = ()
    """Pairs that failed each time, while both nodes pass with others."""
    flaky: tuple[Pair, ...] = ()
    """Pairs that failed and passed, or were not tested often enough."""
    unclear: tuple[str, ...] = ()
    """Nodes that failed, but with too few proven partners for a verdict."""
    silent: tuple[str, ...] = ()
    """Nodes that never answered."""
    unstable: tuple[str, ...] = ()
    """Nodes that failed with several partners and passed with several others."""
    cut: tuple[Cut, ...] = ()
    """Switches that no message leaves; their nodes are not listed as bad."""
    suspected: tuple[str, ...] = ()
    """Switches that may be cut off: no message left them, and too few were sent for a verdict."""
    uncrossed: tuple[str, ...] = ()
    """Switches for which no message to another switch was sent, or none was answered."""
    links: tuple[tuple[str, str], ...] = ()
    """Pairs of switches between which nothing passes, while their nodes pass with others."""


class _Record:
    def __init__(self, runs: Iterable[Run]) -> None:
        self.outcomes: dict[frozenset[str], list[Outcome]] = defaultdict(list)
        self.met: dict[str, set[str]] = defaultdict(set)
        self.proven: set[str] = set()
        self.uses: dict[str, int] = defaultdict(int)
        for run in runs:
            one, other = run.pair
            self.outcomes[frozenset(run.pair)].append(run.outcome)
            for node, partner in ((one, other), (other, one)):
                self.met[node].add(partner)
                self.uses[node] += 1
                if run.outcome is Outcome.PASS:
                    self.proven.add(node)

    def with_partner(self, node: str) -> Iterator[tuple[str, list[Outcome]]]:
        for partner in self.met[node]:
            yield partner, self.outcomes[frozenset((node, partner))]

    def is_bad(self, node: str) -> bool:
        """Whether the node has passed with no partner and failed often enough with proven ones."""
        failed = [
            outcomes.count(Outcome.FAIL)
            for partner, outcomes in self.with_partner(node)
            if partner in self.proven and Outcome.FAIL in outcomes
        ]
        return node not in self.proven and len(failed) > 1 and sum(failed) >= FAILURES

    def is_decided(self, pair: Pair) -> bool:
        """Whether the pair has passed once, or failed often enough to be bad."""
        return Outcome.PASS in self.outcomes[frozenset(pair)] or self.is_bad_pair(pair)

    def is_bad_pair(self, pair: Pair) -> bool:
        outcomes = self.outcomes[frozenset(pair)]
        return Outcome.PASS not in outcomes and outcomes.count(Outcome.FAIL) >= FAILURES

    def suspect_pairs(self) -> Iterator[Pair]:
        """Pairs that failed while both nodes have passed with others."""
        for pair, outcomes in self.outcomes.items():
            if Outcome.FAIL in outcomes and pair <= self.proven:
                one, other = sorted(pair)
                yield one, other


def next_round(
    nodes: Sequence[str],
    rounds: Sequence[Sequence[Run]],
    *,
    across: bool = False,
    topology: Topology = _NO_TOPOLOGY,
) -> list[Pair]:
    """The next pairs after these rounds; empty after `MAX_ROUNDS` rounds, or if no pair helps.

    ``nodes`` are in topological order. With ``across`` the first round pairs each node with a node of the
    other half, so that messages cross switches. In a later round a node may be in several pairs, which must
    run one at a time.
    """
    if len(rounds) >= MAX_ROUNDS:
        return []
    if not rounds:
        return _neighbours(nodes, across=across)
    record = _Record(run for done in rounds for run in done)
    switches = judge_switches([run for done in rounds for run in done], topology)
    open_nodes = [node for node in nodes if node not in record.proven and not _is_bad(node, record, switches)]
    inner = pairs_to_try(switches.crossings, open_nodes, record.proven)
    within = {node for pair in inner for node in pair}
    others = [node for node in open_nodes if node not in within]
    pairs = (
        _with_proven(others, nodes, record, topology) if record.proven else _among_themselves(others, record)
    )
    unsure = [
        pair
        for pair in record.suspect_pairs()
        if not switches.explains(pair) and not record.is_decided(pair) and not within & set(pair)
    ]
    return [*inner, *pairs, *sorted(unsure)]


def _neighbours(nodes: Sequence[str], *, across: bool) -> list[Pair]:
    """Pair each node once; an odd last node waits for the next round."""
    half = len(nodes) // 2
    if across:
        return list(zip(nodes[:half], nodes[half:], strict=False))
    return [(one, other) for one, other in list(pairwise(nodes))[::2]]


def _with_proven(
    open_nodes: Iterable[str], nodes: Sequence[str], record: _Record, topology: Topology
) -> list[Pair]:
    """Pair each undecided node with an untried proven node: if possible below its switch, and the least
    used."""
    uses = {node: record.uses[node] for node in nodes if node in record.proven}
    idle = _LeastUsed(uses)
    beside = by_key((switch, node) for node in uses if (switch := topology.get(node)))
    pairs = []
    for node in open_nodes:
        near = beside.get(topology.get(node, ""), [])
        if near and not record.met[node] & set(near):
            pairs.append((node, min(near, key=uses.__getitem__)))
        elif partner := idle.take(record.met[node]) or idle.take(set()):
            pairs.append((node, partner))
    return pairs


def _among_themselves(open_nodes: Sequence[str], record: _Record) -> list[Pair]:
    """Pair undecided nodes with each other while no node is proven."""
    left, pairs = list(open_nodes), []
    shift = max(len(left) // 2, 1)
    order = [node for start in range(shift) for node in left[start::shift]]
    while order:
        node = order.pop(0)
        partner = next((other for other in order if other not in record.met[node]), None)
        if partner is not None:
            order.remove(partner)
            pairs.append((node, partner))
    return pairs


class _LeastUsed:
    """Returns nodes, least used first, in constant time per node."""

    def __init__(self, uses: dict[str, int]) -> None:
        self._by_use: dict[int, list[str]] = defaultdict(list)
        for node, count in uses.items():
            self._by_use[count].append(node)

    def take(self, but: set[str]) -> str | None:
        for count in sorted(self._by_use):
            for place, node in enumerate(self._by_use[count]):
                if node not in but:
                    del self._by_use[count][place]
                    if not self._by_use[count]:
                        del self._by_use[count]
                    self._by_use[count + 1].append(node)
                    return node
        return None


def _is_bad(node: str, record: _Record, switches: Switches) -> bool:
    """Whether the node has enough failures, and at least one is not explained by a switch."""
    if not record.is_bad(node) or switches.is_nowhere(node):
        return False
    return any(
        partner in record.proven and Outcome.FAIL in outcomes and not switches.suspected((node, partner))
        for partner, outcomes in record.with_partner(node)
    )


def blame(nodes: Sequence[str], rounds: Sequence[Sequence[Run]], topology: Topology = _NO_TOPOLOGY) -> Blame:
    """The verdict after all rounds."""
    record = _Record(run for done in rounds for run in done)
    switches = judge_switches([run for done in rounds for run in done], topology)
    cut = {node for each in switches.cut for node in each.nodes}
    bad, unclear, silent = [], [], []
    for node in nodes:
        if node in record.proven:
            continue
        if _is_bad(node, record, switches):
            bad.append(node)
        elif any(Outcome.FAIL in outcomes for _, outcomes in record.with_partner(node)):
            if node not in cut:
                unclear.append(node)
        elif node not in cut:
            silent.append(node)
    unexplained = [pair for pair in sorted(record.suspect_pairs()) if not switches.explains(pair)]
    suspects = [pair for pair in unexplained if not switches.suspected(pair)]
    flaky = [pair for pair in suspects if not record.is_bad_pair(pair)]
    often = Counter(node for pair in flaky for node in pair)
    unstable = tuple(sorted(node for node, number in often.items() if number >= UNSTABLE))
    return Blame(
        tuple(bad),
        tuple(pair for pair in suspects if pair not in set(flaky)),
        tuple(pair for pair in flaky if not set(pair) & set(unstable)),
        tuple(unclear),
        tuple(silent),
        unstable,
        switches.cut,
        tuple(sorted({switch for pair in unexplained for switch in switches.suspected(pair)})),
        tuple(switches.crossings.uncrossed),
        switches.links,
    )
