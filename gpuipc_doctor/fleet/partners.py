"""Who is tried with whom, and who is to blame: a bad link is not a bad node. Pure.

A probe between two nodes that fails speaks against both and against what lies between them. So each node is
tried with partners until it has passed with one, and is *proven*, or has failed `FAILURES` times beside some
that are. In the first round neighbours are tried, all at once; then whoever is not proven, beside whoever is.
A failure is repeated before it is believed: a node may lose one message in twenty. The cost grows with the
nodes and not with the pairs, of which a thousand nodes have half a million.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.pair_runs import Outcome, Pair, Run
from gpuipc_doctor.fleet.switches import Cut, Switches, Topology

MAX_ROUNDS = 8

FAILURES = 5
"""So often a node must have failed beside proven partners, two at least, to be blamed, and a pair."""

UNSTABLE = 2
"""With so many partners a node has failed and passed that is unstable."""

_NO_TOPOLOGY: Topology = {}


@dataclass(frozen=True, slots=True)
class Blame:
    """What the runs say together. No node and no pair is in two of these."""

    nodes: tuple[str, ...] = ()
    """Failed beside `FAILURES` proven partners and passed with nobody."""
    pairs: tuple[Pair, ...] = ()
    """Failed each time, while both ends pass with others."""
    flaky: tuple[Pair, ...] = ()
    """Failed, and passed or were not tried often enough."""
    unclear: tuple[str, ...] = ()
    """Failed, and too few proven partners were there to tell."""
    silent: tuple[str, ...] = ()
    """Never answered."""
    unstable: tuple[str, ...] = ()
    """Failed and passed with several partners."""
    cut: tuple[Cut, ...] = ()
    """Switches that let nothing out; their nodes are in none of the others for that."""
    links: tuple[tuple[str, str], ...] = ()
    """Switches between which nothing passes, while their nodes pass with others."""


class _Record:
    """The runs so far, by node."""

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
        """Whether it has passed with nobody and failed often enough beside proven partners."""
        failed = [
            outcomes.count(Outcome.FAIL)
            for partner, outcomes in self.with_partner(node)
            if partner in self.proven and Outcome.FAIL in outcomes
        ]
        return node not in self.proven and len(failed) > 1 and sum(failed) >= FAILURES

    def is_judged(self, node: str) -> bool:
        return node in self.proven or self.is_bad(node)

    def is_decided(self, pair: Pair) -> bool:
        """Whether it has failed so often, or has passed as well."""
        return Outcome.PASS in self.outcomes[frozenset(pair)] or self.is_bad_pair(pair)

    def is_bad_pair(self, pair: Pair) -> bool:
        outcomes = self.outcomes[frozenset(pair)]
        return Outcome.PASS not in outcomes and outcomes.count(Outcome.FAIL) >= FAILURES

    def suspect_pairs(self) -> Iterator[Pair]:
        """Pairs that failed while both ends have passed, with others."""
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
    """The pairs to run next, after these rounds; none when no more can be learned in `MAX_ROUNDS`.

    ``nodes`` stand in the order of the topology, neighbours side by side. With ``across`` the first round
    tries each with one from the other half instead, so that messages cross switches. A node may stand in
    several pairs of a later round: whoever runs them runs one at a time of those.
    """
    if len(rounds) >= MAX_ROUNDS:
        return []
    if not rounds:
        return _neighbours(nodes, across=across)
    record = _Record(run for done in rounds for run in done)
    switches = Switches([run for done in rounds for run in done], topology)
    open_nodes = [node for node in nodes if not record.is_judged(node)]
    inner = switches.to_try(open_nodes, record.proven)
    within = {node for pair in inner for node in pair}
    others = [node for node in open_nodes if node not in within]
    pairs = _with_proven(others, nodes, record) if record.proven else _among_themselves(others, record)
    unsure = [
        pair
        for pair in record.suspect_pairs()
        if not switches.explains(pair) and not record.is_decided(pair) and not within & set(pair)
    ]
    return [*inner, *pairs, *sorted(unsure)]


def _neighbours(nodes: Sequence[str], *, across: bool) -> list[Pair]:
    """Each node once; of an odd number the last is left to the next round."""
    half = len(nodes) // 2
    if across:
        return list(zip(nodes[:half], nodes[half:], strict=False))
    return [(one, other) for one, other in list(pairwise(nodes))[::2]]


def _with_proven(open_nodes: Iterable[str], nodes: Sequence[str], record: _Record) -> list[Pair]:
    """Each open node with the proven partner that it has not met and that has had least to do."""
    uses = {node: record.uses[node] for node in nodes if node in record.proven}
    idle = _LeastUsed(uses)
    pairs = []
    for node in open_nodes:
        if partner := idle.take(record.met[node]) or idle.take(set()):
            pairs.append((node, partner))
    return pairs


def _among_themselves(open_nodes: Sequence[str], record: _Record) -> list[Pair]:
    """Nobody is proven yet: each open node with another one that it has not met."""
    left, pairs = list(open_nodes), []
    shift = max(len(left) // 2, 1)
    order = [node for one in range(shift) for node in left[one::shift]]
    while order:
        node = order.pop(0)
        partner = next((other for other in order if other not in record.met[node]), None)
        if partner is not None:
            order.remove(partner)
            pairs.append((node, partner))
    return pairs


class _LeastUsed:
    """Hands out nodes, the least used first, in time that does not grow with their number."""

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


def blame(nodes: Sequence[str], rounds: Sequence[Sequence[Run]], topology: Topology = _NO_TOPOLOGY) -> Blame:
    """Who is to blame, by all rounds together."""
    record = _Record(run for done in rounds for run in done)
    switches = Switches([run for done in rounds for run in done], topology)
    cut = {node for each in switches.cut for node in each.nodes}
    bad, unclear, silent = [], [], []
    for node in nodes:
        if node in record.proven:
            continue
        seen = [(partner, outcome) for partner, each in record.with_partner(node) for outcome in each]
        own = [outcome for partner, outcome in seen if not switches.explains((node, partner))]
        if record.is_bad(node) and (node not in cut or Outcome.FAIL in own):
            bad.append(node)
        elif any(outcome is Outcome.FAIL for _, outcome in seen):
            if node not in cut:
                unclear.append(node)
        elif node not in cut:
            silent.append(node)
    suspects = [pair for pair in sorted(record.suspect_pairs()) if not switches.explains(pair)]
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
        tuple(switches.cut),
        tuple(switches.links),
    )
