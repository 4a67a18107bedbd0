"""Which messages between nodes crossed switches, counted from the runs of pairs."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuipc_doctor.grouping import by_key

Pair = tuple[str, str]


class Outcome(enum.Enum):
    """Result of a probe between two nodes."""

    PASS = "pass"
    FAIL = "fail"
    SILENT = "silent"
    """No answer: the probe could not be started, or its report was lost."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a probe between two nodes."""

    pair: Pair
    outcome: Outcome


Topology = Mapping[str, str]
"""Node → the switch that it is connected to."""

Link = frozenset[str]
"""Two switches."""


class Crossings:
    """The switches of nodes, and which messages between switches passed and failed."""

    def __init__(self, runs: Sequence[Run], topology: Topology) -> None:
        self.switches = {**topology, **_infer_switches(runs, topology)}
        """Node → switch, for all nodes whose switch is known."""
        self.sizes = Counter(self.switches.values())
        self.unplaced = {node for run in runs for node in run.pair} - self.switches.keys()
        self.proven: set[str] = set()
        """Nodes that passed with some node."""
        self.answering: set[str] = set()
        self.met: defaultdict[str, set[str]] = defaultdict(set)
        """Node → switches of the nodes with which it exchanged messages, or failed to."""
        self.passing_below: set[str] = set()
        """Switches below which messages passed."""
        self.tried_below: set[str] = set()
        """Nodes that were paired with a node of their own switch."""
        self.passing: set[Link] = set()
        self.failing: defaultdict[Link, set[Pair]] = defaultdict(set)
        self.unanswered: set[str] = set()
        """Switches whose nodes were paired with nodes of another switch, of which one did not answer."""
        for run in runs:
            self._count(run)

    def _count(self, run: Run) -> None:
        one, other = map(self.switch_of, run.pair)
        if run.outcome is Outcome.SILENT:
            self.unanswered |= {one, other} if one != other else set()
            return
        passes = run.outcome is Outcome.PASS
        self.answering |= {*run.pair}
        self.proven |= {*run.pair} if passes else set()
        self.met[run.pair[0]].add(other)
        self.met[run.pair[1]].add(one)
        if one == other:
            self.tried_below |= {*run.pair}
            self.passing_below |= {one} if passes else set()
        elif passes:
            self.passing.add(frozenset((one, other)))
        else:
            self.failing[frozenset((one, other))].add(run.pair)

    def switch_of(self, node: str) -> str:
        """The node's switch; a node whose switch is unknown has a switch of its own."""
        return self.switches.get(node, f"?{node}")

    @cached_property
    def reaching(self) -> set[str]:
        """Switches of which a message reached another switch."""
        return {switch for link in self.passing for switch in link}

    @cached_property
    def suspects(self) -> set[str]:
        """Switches of which messages to others failed, and none passed."""
        return {switch for link in self.failing for switch in link} - self.reaching

    @cached_property
    def uncrossed(self) -> list[str]:
        """Switches without a known result of a message to or from another switch."""
        crossed = {switch for link in {*self.passing, *self.failing} for switch in link}
        return sorted(set(self.sizes) - crossed) if len(self.sizes) > 1 else []

    @cached_property
    def below(self) -> dict[str, list[str]]:
        """Switch → its nodes."""
        return by_key((switch, node) for node, switch in self.switches.items())

    def failed_partners(self, switch: str, considered: Collection[str]) -> dict[str, set[str]]:
        """Node below ``switch`` → the ``considered`` nodes below other switches with which it failed."""
        failed: dict[str, set[str]] = {}
        for link, pairs in self.failing.items():
            if switch not in link:
                continue
            for pair in pairs:
                own, other = pair if self.switch_of(pair[0]) == switch else pair[::-1]
                if other in considered:
                    failed.setdefault(own, set()).add(other)
        return failed


def _infer_switches(runs: Sequence[Run], topology: Topology) -> Topology:
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
