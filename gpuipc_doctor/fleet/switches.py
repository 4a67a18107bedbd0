"""Find bad switches if failures between nodes follow the topology. Pure functions.

A switch whose nodes pass among themselves and fail with all others is cut off; its nodes are not bad. If all
pairs between two switches fail while both reach others, their link is bad.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.crossings import Crossings, Pair, Run, Topology

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


@dataclass(frozen=True, slots=True)
class Switches:
    """The verdict on the switches."""

    cut: tuple[Cut, ...]
    """The switches that are cut off."""
    links: tuple[tuple[str, str], ...]
    """Pairs of switches between which everything failed."""
    crossings: Crossings

    def explains(self, pair: Iterable[str]) -> bool:
        """Whether a failure between two nodes is explained by a switch or by a link between switches."""
        one, other = map(self.crossings.switch_of, pair)
        if one == other:
            return False
        is_cut = any(each.switch in (one, other) for each in self.cut)
        return is_cut or (min(one, other), max(one, other)) in self.links

    def suspected(self, pair: Iterable[str]) -> set[str]:
        """The switches that may explain a failure between two nodes, because no message has crossed them."""
        one, other = map(self.crossings.switch_of, pair)
        if one == other:
            return set()
        # A node that the topology lacks may be below the same switch.
        fewest = 1 if self.crossings.unplaced else 2
        suspects = {one, other} & self.crossings.suspects
        return {switch for switch in suspects if self.crossings.sizes[switch] >= fewest}

    def is_nowhere(self, node: str) -> bool:
        """Whether the topology lacks the node, which may then be below a switch that no message crossed."""
        crossings = self.crossings
        if node in crossings.switches:
            return False
        return bool(set(crossings.sizes) - crossings.reaching - crossings.met[node])


def judge_switches(runs: Sequence[Run], topology: Topology) -> Switches:
    crossings = Crossings(runs, topology)
    cut = tuple(_find_cut(crossings))
    links = sorted(_find_bad_links(crossings, {each.switch for each in cut}))
    return Switches(cut, tuple(links), crossings)


def _find_cut(crossings: Crossings) -> Iterator[Cut]:
    """The suspects of which enough nodes failed with enough proven nodes of enough other switches."""
    suspects = crossings.suspects & set(crossings.below)
    usable = len(crossings.below) - len(suspects)
    enough = max(min(OTHERS, usable), 1)
    for switch in sorted(suspects):
        is_certain = switch in crossings.passing_below
        failed = crossings.failed_partners(switch, crossings.proven)
        if is_certain:  # a node that also fails below it may be bad
            failed = {own: others for own, others in failed.items() if own in crossings.proven}
        partners = set[str]().union(*failed.values())
        reached = set(map(crossings.switch_of, partners)) & crossings.reaching
        fewest = FEWEST if is_certain else FEWEST_SILENT
        if len(failed) >= fewest and len(partners) >= FEWEST and len(reached) >= enough:
            yield Cut(switch, tuple(crossings.below[switch]), is_certain)


def _find_bad_links(crossings: Crossings, cut: set[str]) -> Iterator[tuple[str, str]]:
    """Pairs of switches that reach others, between which enough proven nodes failed and nothing passed."""
    for link, pairs in crossings.failing.items():
        if link & cut or link in crossings.passing or not link <= crossings.reaching:
            continue
        sound = [pair for pair in pairs if crossings.proven.issuperset(pair)]
        nodes = {node for pair in sound for node in pair}
        if len(nodes) >= 2 * FEWEST and len(sound) >= FEWEST:
            yield min(link), max(link)


# -- pairs of nodes that distinguish a bad switch from bad nodes -------------------------------------------


def pairs_to_try(crossings: Crossings, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
    """Nodes below a suspected switch with each other and with other nodes; ``nodes``: those still to try."""
    return [
        *_below_suspects(crossings, nodes, proven),
        *_between_switches(crossings, proven),
        *_of_unplaced(crossings, nodes, proven),
    ]


def _below_suspects(crossings: Crossings, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
    below: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        switch = crossings.switches.get(node, "")
        untried = node in crossings.answering and node not in crossings.tried_below
        if switch in crossings.suspects and untried:
            below[switch].append(node)
    pairs = [pair for each in below.values() for pair in list(pairwise(each))[::2]]
    alone = {switch: each[-1] for switch, each in below.items() if len(each) % 2}
    partners = _proven_below(crossings, proven)
    return pairs + [(node, partners[switch]) for switch, node in alone.items() if switch in partners]


def _of_unplaced(crossings: Crossings, nodes: Sequence[str], proven: Collection[str]) -> list[Pair]:
    """Pairs that show whether a failing node, which the topology lacks, is below a switch that is cut off.

    The failing node's partner has passed below this switch, or is the switch's only node.
    """
    partners = _proven_below(crossings, proven)
    switches = crossings.suspects & crossings.passing_below & set(partners)
    for node in nodes:
        switch = crossings.switches.get(node, "")
        if crossings.sizes[switch] == 1:
            partners[switch] = node
            switches |= {switch} & crossings.suspects
    pairs = []
    for node in nodes:
        if node not in crossings.switches and crossings.switch_of(node) in crossings.suspects:
            unmet = [switch for switch in sorted(switches) if switch not in crossings.met[node]]
            pairs += [(node, partners[switch]) for switch in unmet]
    return pairs


def _proven_below(crossings: Crossings, proven: Collection[str]) -> dict[str, str]:
    """Switch → one of its proven nodes."""
    return {crossings.switches.get(node, ""): node for node in proven}


def _between_switches(crossings: Crossings, proven: Collection[str]) -> list[Pair]:
    """Two nodes of each switch that reaches no other, or whose messages to others all met a silent node,
    paired with nodes of the nearest other switch."""
    sound = {switch: [node for node in nodes if node in proven] for switch, nodes in crossings.below.items()}
    order = {switch: place for place, switch in enumerate(sound)}
    others = crossings.reaching & set(order) - crossings.suspects or set(order)
    unanswered = crossings.unanswered & set(crossings.uncrossed)
    pairs: list[Pair] = []
    for switch in sorted((crossings.suspects | unanswered) & crossings.passing_below):
        # A partner without any pass is no evidence.
        partners = set[str]().union(*crossings.failed_partners(switch, proven).values())
        tried = set(map(crossings.switch_of, partners))
        if len(tried & others) >= OTHERS:
            continue
        fresh = [other for other in others - tried - {switch} if len(sound[other]) >= FEWEST]
        if fresh:
            partner = min(fresh, key=lambda other: (abs(order[other] - order[switch]), other))
            pairs += zip(sound[switch][:FEWEST], sound[partner][:FEWEST], strict=False)
    return pairs
