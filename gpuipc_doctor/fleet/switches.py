"""Find bad switches if failures between nodes follow the topology. Pure functions.

A switch whose nodes pass among themselves and fail with all others is cut off; its nodes are not bad. If all
pairs between two switches fail while both reach others, their link is bad.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.pair_runs import Outcome, Pair, Run

Topology = Mapping[str, str]
"""Node → the switch that it is connected to."""

Link = frozenset[str]
"""Two switches."""

FEWEST = 2
"""A switch is blamed only if this many nodes below it fail with nodes of other switches."""

FEWEST_SILENT = 3
"""Like `FEWEST`, for a switch whose nodes also fail with each other: two nodes may both be bad."""


OTHERS = 3
"""Number of other switches whose nodes must have failed with nodes of a cut-off switch. If fewer other
switches are usable, all usable ones must have failed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A switch from which no message gets out, and its nodes."""

    switch: str
    nodes: tuple[str, ...]
    is_certain: bool = True
    """Whether messages pass below the switch; if not, its nodes may be bad instead of the switch."""


def _inferred(runs: Sequence[Run], topology: Topology) -> Topology:
    """Node → switch, for nodes missing from the topology that passed only with nodes below one switch."""
    passed: dict[str, set[str]] = defaultdict(set)
    known: Topology = topology
    while True:
        before = sum(map(len, passed.values()))
        for run in runs:
            for node, partner in (run.pair, run.pair[::-1]):
                if run.outcome is Outcome.PASS and node not in topology and partner in known:
                    passed[node].add(known[partner])
        found = {node: min(switches) for node, switches in passed.items() if len(switches) == 1}
        if sum(map(len, passed.values())) == before:
            return found
        known = {**topology, **found}


class Switches:
    """The switches that are ``cut`` off, and the ``links`` (pairs of switches) on which everything failed."""

    def __init__(self, runs: Sequence[Run], topology: Topology) -> None:
        self._topology = {**topology, **_inferred(runs, topology)}
        self._sizes = Counter(self._topology.values())
        self._unplaced = {node for run in runs for node in run.pair} - self._topology.keys()
        self._met: dict[str, set[str]] = defaultdict(set)
        self._proven = {node for run in runs if run.outcome is Outcome.PASS for node in run.pair}
        self._answering = {node for run in runs if run.outcome is not Outcome.SILENT for node in run.pair}
        self._inner_pass: set[str] = set()
        self._inner_met: set[str] = set()
        self._passes: set[Link] = set()
        self._failing: dict[Link, set[Pair]] = defaultdict(set)
        self._unanswered: set[str] = set()
        """Switches whose nodes were paired with nodes of another switch, of which one did not answer."""
        for run in runs:
            one, other = map(self._switch, run.pair)
            if run.outcome is Outcome.SILENT:
                self._unanswered |= {one, other} if one != other else set()
                continue
            link = frozenset((one, other))
            self._met[run.pair[0]].add(other)
            self._met[run.pair[1]].add(one)
            if one == other:
                self._inner_met |= set(run.pair)
                if run.outcome is Outcome.PASS:
                    self._inner_pass.add(one)
            elif run.outcome is Outcome.PASS:
                self._passes.add(link)
            else:
                self._failing[link].add(run.pair)
        self._reaching = {switch for link in self._passes for switch in link}
        self._suspects = {switch for link in self._failing for switch in link} - self._reaching
        self.cut, self.links = self._judge()
        crossed = {switch for link in {*self._passes, *self._failing} for switch in link}
        switches = set(topology.values())
        self.uncrossed = sorted(switches - crossed) if len(switches) > 1 else []
        """Switches without a known result of a message to or from another switch."""

    def _switch(self, node: str) -> str:
        """The node's switch; a node that the topology lacks has a switch of its own."""
        return self._topology.get(node, f"?{node}")

    def _failed(self, switch: str, beside: Collection[str] | None = None) -> dict[str, set[str]]:
        """Node below ``switch`` → the nodes below other switches with which it failed. ``beside``: the only
        other nodes to consider."""
        failed: dict[str, set[str]] = defaultdict(set)
        for link, pairs in self._failing.items():
            if switch in link:
                for pair in pairs:
                    own, other = pair if self._switch(pair[0]) == switch else pair[::-1]
                    if beside is None or other in beside:
                        failed[own].add(other)
        return failed

    def _judge(self) -> tuple[list[Cut], list[tuple[str, str]]]:
        below: dict[str, list[str]] = defaultdict(list)
        for node, switch in self._topology.items():
            below[switch].append(node)
        cut = []
        for switch in sorted(self._suspects & set(below)):
            failed = self._failed(switch, self._proven)
            if switch in self._inner_pass:  # a node that also fails below it may be bad
                failed = {own: others for own, others in failed.items() if own in self._proven}
            partners = {other for others in failed.values() for other in others}
            fewest = FEWEST if switch in self._inner_pass else FEWEST_SILENT
            reach = set(map(self._switch, partners)) & self._reaching
            enough = min(OTHERS, len(below) - 1 - len(self._suspects & set(below) - {switch}))
            if len(failed) >= fewest and len(partners) >= FEWEST and len(reach) >= max(enough, 1):
                cut.append(Cut(switch, tuple(below[switch]), switch in self._inner_pass))
        names = {each.switch for each in cut}
        links = []
        for link, pairs in self._failing.items():
            if link & names or link in self._passes or not link <= self._reaching:
                continue
            sound = [pair for pair in pairs if set(pair) <= self._proven]
            if len({node for pair in sound for node in pair}) >= 2 * FEWEST and len(sound) >= FEWEST:
                links.append((min(link), max(link)))
        return cut, sorted(links)

    def explains(self, pair: Iterable[str]) -> bool:
        """Whether a failure between two nodes is explained by a switch or by a link between switches."""
        one, other = map(self._switch, pair)
        if one == other:
            return False
        cut = {each.switch for each in self.cut}
        return bool({one, other} & cut) or (min(one, other), max(one, other)) in self.links

    def suspected(self, pair: Iterable[str]) -> set[str]:
        """The switches that may explain a failure between two nodes, because no message has crossed them."""
        one, other = map(self._switch, pair)
        if one == other:
            return set()
        fewest = 1 if self._unplaced else 2  # a node that the topology lacks may be below the same switch
        return {switch for switch in {one, other} & self._suspects if self._sizes[switch] >= fewest}

    def is_nowhere(self, node: str) -> bool:
        """Whether the topology lacks the node, which may then be below a switch that no message crossed."""
        return node not in self._topology and bool(set(self._sizes) - self._reaching - self._met[node])

    def to_try(self, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
        """Pairs that distinguish a bad switch from bad nodes: nodes below the switch with each other and with
        other nodes."""
        return [*self._inner(nodes, proven), *self._across(proven), *self._unknown(nodes, proven)]

    def _inner(self, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
        below: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            switch = self._topology.get(node, "")
            if switch in self._suspects and node in self._answering and node not in self._inner_met:
                below[switch].append(node)
        pairs = [(one, other) for each in below.values() for one, other in list(pairwise(each))[::2]]
        alone = {switch: each[-1] for switch, each in below.items() if len(each) % 2}
        partners = {self._topology.get(node, ""): node for node in proven}
        return pairs + [(node, partners[switch]) for switch, node in alone.items() if switch in partners]

    def _unknown(self, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
        """Pairs that show whether a failing node, which the topology lacks, is below a switch that is cut
        off.

        The failing node's partner has passed below this switch, or is the switch's only node.
        """
        partners = {self._topology.get(node, ""): node for node in proven}
        switches = self._suspects & self._inner_pass & set(partners)
        for node in nodes:
            switch = self._topology.get(node, "")
            if self._sizes[switch] == 1:
                partners[switch] = node
                switches |= {switch} & self._suspects
        failing = [
            node for node in nodes if node not in self._topology and self._switch(node) in self._suspects
        ]
        return [
            (node, partners[switch])
            for node in failing
            for switch in sorted(switches)
            if switch not in self._met[node]
        ]

    def _across(self, proven: Collection[str]) -> list[Pair]:
        """Two nodes of each switch that reaches no other, or whose messages to others all met a silent node,
        paired with nodes of the nearest other switch."""
        sound: dict[str, list[str]] = defaultdict(list)
        for node, switch in self._topology.items():
            sound[switch] += [node] * (node in proven)
        order = {switch: place for place, switch in enumerate(sound)}
        others = self._reaching & set(order) - self._suspects or set(order)
        pairs: list[Pair] = []
        unanswered = self._unanswered & set(self.uncrossed)
        for switch in sorted((self._suspects | unanswered) & self._inner_pass):
            # A partner without any pass is no evidence.
            partners = set[str]().union(*self._failed(switch, proven).values())
            tried = set(map(self._switch, partners))
            if len(tried & others) >= OTHERS:
                continue
            fresh = [each for each in others - tried - {switch} if len(sound[each]) >= FEWEST]
            if fresh:
                partner = min(fresh, key=lambda each: (abs(order[each] - order[switch]), each))
                pairs += zip(sound[switch][:FEWEST], sound[partner][:FEWEST], strict=False)
        return pairs
