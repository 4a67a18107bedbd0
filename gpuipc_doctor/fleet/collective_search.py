"""Which node, pair or switch makes collectives fail? Rounds of disjoint groups. Pure functions.

Nodes that fail together are halved, all halves in one round. If both halves pass, the fault lies between
them: then quarters of one half meet quarters of the other, so that after log2 rounds each node has met each.
What is left are pairs that fail. Their nodes meet nodes that passed, until a node, a pair or a switch
explains all that failed and nothing that passed contradicts it. The others meet meanwhile: what passes
without the blamed is part of the proof.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from gpuipc_doctor.fleet.crossings import Pair
from gpuipc_doctor.grouping import by_key

Nodes = tuple[str, ...]

Search = Generator[list[Nodes], list[bool], "Blame"]
"""Yields the groups of a round; is sent, for each, whether it was bad; returns the verdict."""

ENOUGH = 8
"""Failed pairs, and nodes of a switch, that are considered when a switch is suspected."""

TWICE = 2
"""A pair is blamed if it failed so often. One fault more does not explain two failures of a node beside those
of a switch."""

PARTNERS = 3
"""A node is blamed if it failed with so many nodes that pass with others: more than two bad pairs explain."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What explains the failures. Nodes in the order of the search."""

    nodes: Nodes = ()
    pairs: tuple[Pair, ...] = ()
    """Pairs that fail each time, while both nodes pass with others."""
    switches: Nodes = ()
    """Switches whose nodes pass among themselves and fail with others."""
    links: tuple[Pair, ...] = ()
    """Two switches whose nodes pass, but not with each other."""
    together: tuple[Nodes, ...] = ()
    """Nodes that fail together each time, although each of them passed with each in smaller groups."""
    unclear: tuple[Nodes, ...] = ()
    """Groups that failed, for which too few partners or rounds were left."""
    unstable: tuple[Nodes, ...] = ()
    """Groups that failed once and passed when repeated, or as part of a larger group."""


def most_rounds(nodes: int) -> int:
    """Maximum rounds of a search over so many nodes."""
    return math.floor(2 + 2 * math.log2(nodes))


@dataclass(frozen=True, slots=True)
class _Inside:
    """Nodes that fail together."""

    nodes: Nodes

    def groups(self, spare: Callable[[str], Nodes]) -> list[Nodes]:
        """The halves; one node alone gets a partner that passed."""
        halves = [half if len(half) > 1 else (*half, *spare(half[0])) for half in _halves(self.nodes)]
        return [half for half in halves if len(half) > 1]

    def after(self, bad: Sequence[Nodes]) -> Iterable[_Task]:
        if bad:
            return [_Inside(half) for half in bad if len(half) > 2]
        return [_Between(self.nodes, (_halves(self.nodes),))]


@dataclass(frozen=True, slots=True)
class _Between:
    """Nodes that fail together, and pairs of disjoint sets: each passes, one at least fails with its
    partner, or only all fail together."""

    nodes: Nodes
    sides: tuple[tuple[Nodes, Nodes], ...]

    def groups(self, _: Callable[[str], Nodes]) -> list[Nodes]:
        return [one + other for one, other in self._parts(straight=True)]

    def after(self, bad: Sequence[Nodes]) -> Iterable[_Task]:
        if not bad:
            left = tuple(self._parts(straight=False))
            return [_Between(self.nodes, left) if left else _Together(self.nodes)]
        tried = [part for part in self._parts(straight=True) if part[0] + part[1] in bad]
        return [_Between(one + other, ((one, other),)) for one, other in tried if len(one + other) > 2]

    def _parts(self, *, straight: bool) -> Iterator[tuple[Nodes, Nodes]]:
        for one, other in self.sides:
            near, far = _halves(one), _halves(other)
            for part in zip(near, far if straight else far[::-1], strict=True):
                if all(part):
                    yield part


@dataclass(frozen=True, slots=True)
class _Together:
    """Nodes that fail together, although all smaller groups passed: once more."""

    nodes: Nodes

    def groups(self, _: Callable[[str], Nodes]) -> list[Nodes]:
        return [self.nodes]

    def after(self, bad: Sequence[Nodes]) -> Iterable[_Task]:
        return ()


_Task = _Inside | _Between | _Together


def search(nodes: Nodes, topology: Mapping[str, str]) -> Search:
    """Find what makes ``nodes`` fail. ``topology``: node → its switch, for nodes whose switch is known; they
    are in the order of their switches."""
    tried = _Tried(nodes, topology)
    if not tried.add([nodes], (yield [nodes])):
        return Blame()
    tasks: list[_Task] = [_Inside(nodes)] if len(nodes) > 2 else []
    for _ in range(most_rounds(len(nodes)) - 1):
        busy = {node for task in tasks for node in task.nodes}
        spare = _Spare(tried, busy)
        asked = [(task, group) for task in tasks for group in task.groups(spare.beside)]
        taken = busy | {node for _, group in asked for node in group}
        judged = _Judge(tried, taken)
        groups = [*(group for _, group in asked), *judged.wanted]
        rest = () if tasks else judged.rest
        groups += [rest] * bool(rest)
        if not groups:
            break
        bad = tried.add(groups, (yield groups))
        tried.together += [
            task.nodes for task, group in asked if isinstance(task, _Together) and group in bad
        ]
        tasks = [new for task in tasks for new in task.after([g for t, g in asked if t is task and g in bad])]
        tasks += [_Inside(rest)] if rest in bad and len(rest) > 2 else []
    return _Judge(tried).blame()


class _Tried:
    """The groups so far."""

    def __init__(self, nodes: Nodes, topology: Mapping[str, str]) -> None:
        below = by_key((topology[node], node) for node in nodes if node in topology)
        self.nodes = nodes
        self.below = {switch: inner for switch, inner in below.items() if 1 < len(inner) < len(nodes) - 1}
        """Switch → its nodes. One that separates a single node from the others cannot be told from it."""
        self.switch = {node: switch for switch, inner in self.below.items() for node in inner}
        self._good = 0
        self.bad: defaultdict[Nodes, int] = defaultdict(int)
        """Group → how often it failed."""
        self.proven: set[str] = set()
        """Nodes that passed with others."""
        self.crossed: set[str] = set()
        """Switches whose nodes passed with others' nodes."""
        self.linked: set[frozenset[str]] = set()
        """Two switches whose nodes passed together."""
        self.together: list[Nodes] = []
        """Groups that failed twice, although all smaller ones passed."""
        self._place = {node: place for place, node in enumerate(nodes)}
        self._passed: defaultdict[str, set[int]] = defaultdict(set)

    def add(self, groups: Sequence[Nodes], are_bad: Sequence[bool]) -> list[Nodes]:
        """Note a round; returns the bad groups."""
        for group, is_bad in zip(groups, are_bad, strict=True):
            if is_bad:
                self.bad[self.sorted(group)] += 1
                continue
            for node in group:
                self._passed[node].add(self._good)
            self._good += 1
            self.proven |= {*group}
            switches = sorted({self.switch.get(node, "") for node in group})
            if len(switches) > 1:
                self.crossed |= {*switches}
                self.linked |= {*map(frozenset, combinations(filter(None, switches), 2))}
        return [group for group, is_bad in zip(groups, are_bad, strict=True) if is_bad]

    def sorted(self, group: Iterable[str]) -> Nodes:
        return tuple(sorted(group, key=self._place.__getitem__))

    def passed(self, group: Nodes) -> bool:
        """Whether these nodes passed together, alone or among others."""
        return bool(set.intersection(*(self._passed[node] for node in group)))

    @property
    def pairs(self) -> list[Pair]:
        """Pairs that failed and never passed."""
        return [(group[0], group[1]) for group in self.bad if len(group) == 2 and not self.passed(group)]


class _Spare:
    """Nodes that passed with others, each for one group of the round."""

    def __init__(self, tried: _Tried, busy: Collection[str]) -> None:
        self._switch = tried.switch
        self._left = {node: None for node in tried.nodes if node in tried.proven and node not in busy}

    def beside(self, node: str) -> Nodes:
        """One of them, of the node's own switch if possible."""
        own = self._switch.get(node, node)
        found = min(self._left, key=lambda other: self._switch.get(other) != own, default=None)
        if found is None:
            return ()
        del self._left[found]
        return (found,)


class _Judge:
    """The verdict so far, and the pairs that would decide what it leaves open.

    ``busy``: nodes that cannot be in a wanted pair.
    """

    def __init__(self, tried: _Tried, busy: Collection[str] = ()) -> None:
        self._tried, self._used = tried, {*busy}
        self.wanted: list[Nodes] = []
        self._failed = by_key(link for pair in tried.pairs for link in (pair, pair[::-1]))
        """Node → the nodes that it failed with, and never passed with."""
        self.nodes = [node for node in tried.nodes if node in self._failed and self._is_bad(node)]
        self._left = [pair for pair in tried.pairs if not {*self.nodes} & {*pair}]
        self.switches, self.links = list[str](), list[Pair]()
        self._judge_switches()
        self.pairs, self._open = list[Pair](), list[Pair]()
        for pair in self._left:
            (self.pairs if self._is_bad_pair(pair) else self._open).append(pair)
        self._explaining = [{node} for node in self.nodes] + [{*pair} for pair in self._left]
        self.together = [
            group for group in tried.together if not tried.passed(group) and not self._explains(group)
        ]

    def blame(self) -> Blame:
        tried = self._tried
        self._explaining += [{*group} for group in self.together]
        left = [group for group in tried.bad if not self._explains(group)]
        unstable = [group for group in left if tried.passed(group)]
        left = [group for group in left if group not in unstable]
        smallest = [group for group in left if not any({*group} > {*other} for other in left)]
        return Blame(
            tuple(self.nodes),
            tuple(self.pairs),
            tuple(self.switches),
            tuple(self.links),
            tuple(self.together),
            (*self._open, *smallest),
            tuple(unstable),
        )

    @property
    def rest(self) -> Nodes:
        """The nodes that nothing was said against; empty if that they pass or fail is known."""
        blamed = {*self._used, *(node for nodes in (*self._explaining, *self.together) for node in nodes)}
        suspects = {self._tried.switch.get(node, "") for pair in self._open for node in pair}
        cut = suspects - {"", *self._tried.crossed} | {*self.switches, *(one for one, _ in self.links)}
        blamed |= {node for switch in cut for node in self._tried.below[switch]}
        rest = tuple(node for node in self._tried.nodes if node not in blamed)
        is_known = len(rest) < 2 or self._tried.passed(rest) or self._tried.bad.get(rest, 0) >= TWICE
        return () if is_known else rest

    def _explains(self, group: Nodes) -> bool:
        switch, nodes = self._tried.switch, {*group}
        switches = {switch.get(node, "") for node in group}
        return (
            any(nodes >= each for each in self._explaining)
            or (len(switches) > 1 and bool(switches & {*self.switches}))
            or any(switches >= {*link} for link in self.links)
        )

    def _is_bad(self, node: str) -> bool:
        """Whether the node never passed, and failed with all others, or with enough that passed, among them
        two of its own switch."""
        tried, failed = self._tried, {*self._failed[node]}
        proven, own = tried.proven & failed, {*tried.below.get(tried.switch.get(node, ""), [])} - {node}
        if node in tried.proven or not proven:
            return False
        # One switch that may be cut off explains all failures with its nodes.
        cut = {other for other in proven - own if not self._is_crossed(other)}
        is_enough = len(proven - cut) + bool(cut) >= PARTNERS
        is_beside = own <= failed or len(own & proven) >= TWICE
        return len(failed) == len(tried.nodes) - 1 or (is_enough and is_beside)

    def _is_crossed(self, node: str) -> bool:
        """Whether a node of its switch passed with one of another switch."""
        return self._tried.switch.get(node, "") in {"", *self._tried.crossed}

    def _judge_switches(self) -> None:
        """Blame switches, then links between two."""
        tried = self._tried
        both = [pair for pair in self._left if {*pair} <= tried.proven]
        for switch in dict.fromkeys(tried.switch.get(node, "") for pair in both for node in pair):
            if switch in {"", *tried.crossed}:
                continue
            inner = tried.below[switch]
            # Not those that may be cut off themselves.
            others = [node for node in tried.nodes if node not in inner and self._is_crossed(node)]
            if not others:
                self._want_crossing(switch)
            elif self._all_fail(both, inner, others):
                self.switches.append(switch)
        both = [pair for pair in both if {*pair} <= tried.switch.keys()]
        for one, other in dict.fromkeys(tuple(sorted(map(tried.switch.__getitem__, pair))) for pair in both):
            is_open = one != other and frozenset((one, other)) not in tried.linked
            is_open = is_open and not {one, other} & {*self.switches}
            are_all = len(tried.below[one]) + len(tried.below[other]) == len(tried.nodes)
            is_link = are_all or {one, other} <= tried.crossed
            if is_open and is_link and self._all_fail(both, tried.below[one], tried.below[other]):
                self.links.append((one, other))
        self._explaining = list[set[str]]()
        self._left = [pair for pair in self._left if not self._explains(pair)]

    def _want_crossing(self, without: str) -> None:
        """Want a pair across two other switches."""
        tried = self._tried
        others = [inner for switch, inner in tried.below.items() if switch != without]
        pairs = (tried.sorted(pair) for two in combinations(others, 2) for pair in zip(*two, strict=False))
        for pair in pairs:
            if pair not in tried.bad and not self._used & {*pair}:
                self._want(pair)
                return

    def _all_fail(self, pairs: Sequence[Pair], near: Sequence[str], far: Sequence[str]) -> bool:
        """Whether two near nodes fail with two far ones, all four pairs. Wants those not yet tried."""
        tried, inner, outer = self._tried, {*near}, {*far}
        turned = [(one, other) if one in inner else (other, one) for one, other in pairs]
        leaving = [(one, other) for one, other in turned if one in inner and other not in inner]
        known = [(one, other) for one, other in leaving if other in outer][:ENOUGH]
        if not leaving:
            return False
        pairs_left = ((a, b) for a in near for b in far if b in tried.proven)
        untried = [*islice(pairs_left, len(far) * TWICE)]
        squares = [
            ((one, other), (a, b), (one, b), (a, other))
            for one, other in known or untried[:1]
            for a, b in (*known, *untried)
            if a != one and b != other
        ]
        if not squares:
            return False

        def cost(pairs: Iterable[Pair]) -> tuple[bool, int]:
            """A far node of another switch tells more; then what needs the fewest pairs."""
            (_, other), (_, b), *_ = pairs
            return tried.switch.get(b) == tried.switch.get(other), len(self._missing(pairs))

        missing = self._missing(min(squares, key=cost))
        for pair in missing:
            self._want(pair)
        return not missing

    def _missing(self, pairs: Iterable[Pair]) -> list[Nodes]:
        return [pair for pair in map(self._tried.sorted, pairs) if pair not in self._tried.bad]

    def _is_bad_pair(self, pair: Pair) -> bool:
        """Whether the pair is bad for certain. Wants what would make it certain."""
        doubtful = [node for node in pair if node not in self._tried.proven]
        for node in doubtful:
            self._want_partner(node)
        if self._tried.bad[pair] >= TWICE:
            return not doubtful
        if not doubtful or len(self._tried.nodes) == len(pair):
            self._want(pair)
        return False

    def _want_partner(self, node: str) -> None:
        """Want a node that this one has not met: below its own switch, then one that passed, then any."""
        tried = self._tried
        met = {node, *self._failed[node], *self.nodes, *self._used}
        own = tried.switch.get(node, node)
        free = [other for other in tried.nodes if other not in met]
        if free:
            best = min(
                free,
                key=lambda other: (
                    tried.switch.get(other) != own,
                    other not in tried.proven,
                    not self._is_crossed(other),
                ),
            )
            self._want(tried.sorted((node, best)))

    def _want(self, pair: Nodes) -> None:
        if not self._used & {*pair}:
            self._used |= {*pair}
            self.wanted.append(pair)


def _halves(nodes: Nodes) -> tuple[Nodes, Nodes]:
    half = (len(nodes) + 1) // 2
    return nodes[:half], nodes[half:]
