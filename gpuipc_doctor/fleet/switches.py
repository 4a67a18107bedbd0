"""Which switch is to blame, where failures between nodes follow the topology. Pure.

A switch whose nodes pass among themselves and fail with all others is cut off; none of its nodes is bad for
that. Where all that was tried between two switches fails, while both reach others, what links them is bad.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.pair_runs import Outcome, Pair, Run

Topology = Mapping[str, str]
"""Of each node the switch that it is plugged into."""

Link = frozenset[str]
"""Two switches."""

FEWEST = 2
"""Nodes below a switch that fail across it, to blame it: one that fails alone is a bad node."""

FEWEST_SILENT = 3
"""The same where its nodes do not pass among themselves either: two nodes may both be bad."""


OTHERS = 3
"""Switches that reach others, with which one fails that is cut off, if there are so many."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A switch from which no message gets out, and its nodes."""

    switch: str
    nodes: tuple[str, ...]


class Switches:
    """What the runs say of switches: those that are ``cut``, and ``links`` between which nothing passed."""

    def __init__(self, runs: Sequence[Run], topology: Topology) -> None:
        self._topology = topology
        self._proven = {node for run in runs if run.outcome is Outcome.PASS for node in run.pair}
        self._inner_pass: set[str] = set()
        self._inner_met: set[str] = set()
        self._passes: set[Link] = set()
        self._failing: dict[Link, set[Pair]] = defaultdict(set)
        for run in runs:
            one, other = (topology.get(node) for node in run.pair)
            if one is None or other is None:
                continue
            link = frozenset((one, other))
            if one == other:
                self._inner_met |= set(run.pair)
                if run.outcome is Outcome.PASS:
                    self._inner_pass.add(one)
            elif run.outcome is Outcome.PASS:
                self._passes.add(link)
            elif run.outcome is Outcome.FAIL:
                self._failing[link].add(run.pair)
        self._reaching = {switch for link in self._passes for switch in link}
        self._suspects = {
            switch
            for switch in {switch for link in self._failing for switch in link} - self._reaching
            if len(self._failed(switch)) >= FEWEST
        }
        self.cut, self.links = self._judge()

    def _failed(self, switch: str, beside: Collection[str] | None = None) -> dict[str, set[str]]:
        """The nodes of a switch that failed across it, with whom; ``beside``: these alone."""
        failed: dict[str, set[str]] = defaultdict(set)
        for link, pairs in self._failing.items():
            if switch in link:
                for pair in pairs:
                    own, other = pair if self._topology[pair[0]] == switch else pair[::-1]
                    if beside is None or other in beside:
                        failed[own].add(other)
        return failed

    def _judge(self) -> tuple[list[Cut], list[tuple[str, str]]]:
        below: dict[str, list[str]] = defaultdict(list)
        for node, switch in self._topology.items():
            below[switch].append(node)
        cut = []
        for switch in sorted(self._suspects):
            failed = self._failed(switch, self._proven)
            partners = {other for others in failed.values() for other in others}
            fewest = FEWEST if switch in self._inner_pass else FEWEST_SILENT
            reach = {self._topology[other] for other in partners} & self._reaching
            enough = min(OTHERS, len(below) - 1 - len(self._suspects - {switch}))
            if len(failed) >= fewest and len(partners) >= FEWEST and len(reach) >= max(enough, 1):
                cut.append(Cut(switch, tuple(below[switch])))
        names = {each.switch for each in cut}
        links = []
        for link, pairs in self._failing.items():
            if link & names or link in self._passes:
                continue
            sound = [pair for pair in pairs if set(pair) <= self._proven]
            if len({node for pair in sound for node in pair}) >= 2 * FEWEST and len(sound) >= FEWEST:
                links.append((min(link), max(link)))
        return cut, sorted(links)

    def explains(self, pair: Iterable[str]) -> bool:
        """Whether a failure between two nodes is a switch's, or that of a link between switches."""
        one, other = (self._topology.get(node, "") for node in pair)
        if one == other:
            return False
        cut = {each.switch for each in self.cut}
        return bool({one, other} & cut) or (min(one, other), max(one, other)) in self.links

    def to_try(self, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
        """Pairs that tell a switch from its nodes: nodes below it together, then some of them with others."""
        return [*self._inner(nodes, proven), *self._across(proven)]

    def _inner(self, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
        below: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            if (switch := self._topology.get(node, "")) in self._suspects and node not in self._inner_met:
                below[switch].append(node)
        pairs = [(one, other) for each in below.values() for one, other in list(pairwise(each))[::2]]
        alone = {switch: each[-1] for switch, each in below.items() if len(each) % 2}
        partners = {self._topology.get(node, ""): node for node in proven}
        return pairs + [(node, partners[switch]) for switch, node in alone.items() if switch in partners]

    def _across(self, proven: Collection[str]) -> list[Pair]:
        """Two nodes of each switch that reaches no other, with those of the nearest other switch."""
        sound: dict[str, list[str]] = defaultdict(list)
        for node, switch in self._topology.items():
            sound[switch] += [node] * (node in proven)
        order = {switch: place for place, switch in enumerate(sound)}
        others = self._reaching - self._suspects or self._suspects
        pairs: list[Pair] = []
        for switch in sorted(self._suspects & self._inner_pass):
            tried = {each for link in self._failing if switch in link for each in link} | {switch}
            if len((tried & others) - {switch}) >= OTHERS:
                continue
            fresh = [each for each in others - tried if len(sound[each]) >= FEWEST]
            if fresh:
                partner = min(fresh, key=lambda each: (abs(order[each] - order[switch]), each))
                pairs += zip(sound[switch][:FEWEST], sound[partner][:FEWEST], strict=False)
        return pairs
