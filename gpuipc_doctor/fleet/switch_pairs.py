"""Pairs of nodes that distinguish a bad switch from bad nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

from gpuipc_doctor.fleet.crossings import Crossings
from gpuipc_doctor.fleet.pair_runs import Pair
from gpuipc_doctor.fleet.switches import FEWEST, OTHERS


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
