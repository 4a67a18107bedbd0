"""Who is tried with whom, and who is to blame: a bad link is not a bad node. Pure.

A probe between two nodes that fails speaks against both and against what lies between them. So each node is
tried with partners until it has passed with one, and is *proven*, or has failed beside two that are. In the
first round neighbours are tried, all at once; in the later ones whoever is not proven, beside whoever is.
The cost grows with the nodes (at most three runs for each) and not with the pairs, of which a thousand nodes
have half a million.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_ROUNDS = 4

FAILURES = 2
"""Beside so many proven partners a node must have failed to be blamed."""

Pair = tuple[str, str]


class Outcome(enum.Enum):
    """How a probe between two nodes ended."""

    PASS = "pass"
    FAIL = "fail"
    SILENT = "silent"
    """There was no answer: it could not be started, or its report is lost."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the probe between two nodes."""

    pair: Pair
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Blame:
    """What the runs say together. No node and no pair is in two of these."""

    nodes: tuple[str, ...] = ()
    """Failed beside two proven partners and passed with nobody."""
    pairs: tuple[Pair, ...] = ()
    """Failed each time, while both ends pass with others."""
    flaky: tuple[Pair, ...] = ()
    """Failed once and passed once."""
    unclear: tuple[str, ...] = ()
    """Failed, and too few proven partners were there to tell."""
    silent: tuple[str, ...] = ()
    """Never answered."""


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

    def failures(self, node: str) -> int:
        """Beside how many proven partners it has failed."""
        return sum(
            partner in self.proven and Outcome.FAIL in outcomes
            for partner, outcomes in self.with_partner(node)
        )

    def is_judged(self, node: str) -> bool:
        return node in self.proven or self.failures(node) >= FAILURES

    def suspect_pairs(self) -> Iterator[Pair]:
        """Pairs that failed while both ends have passed, with others."""
        for pair, outcomes in self.outcomes.items():
            if Outcome.FAIL in outcomes and pair <= self.proven:
                one, other = sorted(pair)
                yield one, other


def next_round(nodes: Sequence[str], rounds: Sequence[Sequence[Run]], *, across: bool = False) -> list[Pair]:
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
    open_nodes = [node for node in nodes if not record.is_judged(node)]
    pairs = (
        _with_proven(open_nodes, nodes, record) if record.proven else _among_themselves(open_nodes, record)
    )
    seen_once = [pair for pair in record.suspect_pairs() if len(record.outcomes[frozenset(pair)]) == 1]
    return [*pairs, *sorted(seen_once)]


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
        if partner := idle.take(record.met[node]):
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


def blame(nodes: Sequence[str], rounds: Sequence[Sequence[Run]]) -> Blame:
    """Who is to blame, by all rounds together."""
    record = _Record(run for done in rounds for run in done)
    bad, unclear, silent = [], [], []
    for node in nodes:
        if node in record.proven:
            continue
        outcomes = [outcome for _, seen in record.with_partner(node) for outcome in seen]
        if record.failures(node) >= FAILURES:
            bad.append(node)
        elif Outcome.FAIL in outcomes:
            unclear.append(node)
        else:
            silent.append(node)
    suspects = sorted(record.suspect_pairs())
    flaky = [pair for pair in suspects if Outcome.PASS in record.outcomes[frozenset(pair)]]
    pairs = [pair for pair in suspects if pair not in set(flaky)]
    return Blame(tuple(bad), tuple(pairs), tuple(flaky), tuple(unclear), tuple(silent))
