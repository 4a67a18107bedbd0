"""The head's procedure in `fleet collectives`: which nodes take part, what fails, where, and what helps.

Each step yields its findings. `Rounds` runs what a step asks: it leaves out nodes that are gone, repeats from
an earlier run what that has shown, and ends at the time limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import median, median_high
from typing import Any

from gpuipc_doctor.fleet import collective_facts
from gpuipc_doctor.fleet.collective_findings import Telling, Tried, differing, passed, rate, what_failed
from gpuipc_doctor.fleet.collective_search import Blame, Nodes, search
from gpuipc_doctor.fleet.collective_types import (
    NOT_RUN,
    Ending,
    Group,
    GroupResult,
    Joined,
    Meet,
    Round,
    RoundResult,
)
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.model import Evidence, Finding
from gpuipc_doctor.present.text import counted

CHECK, TITLE = "fleet-collectives", "collectives over several nodes, every element compared"

CONTROLS: Mapping[str, Mapping[str, str]] = {
    "without GPUDirect": {"NCCL_NET_GDR_LEVEL": "LOC"},
    "by sockets": {"NCCL_NET": "Socket"},
    "by one adapter": {},
    "without CUMEM": {"NCCL_CUMEM_ENABLE": "0"},
}
"""Name → settings of a round that shows what makes a failure go away; by one adapter: the first of all."""

SLOW = 0.8
"""What has less than this fraction of the median, or of what other groups have, is slow."""

ALL_REDUCE: Mapping[str, Any] = {"operations": ("all-reduce",), "kinds": ("float32",)}
"""Of a round that only measures."""


class OutOfTime(Exception):
    """The time limit of the whole run has passed."""


@dataclass
class Rounds:
    """Runs rounds over the nodes that are still there."""

    meet: Meet
    joined: Mapping[str, Joined]
    """The nodes that are there: a node that is lost leaves it."""
    base: Round
    """Sizes and deadline of all rounds."""
    until: float = float("inf")
    """On the monotonic clock. No round starts that may end later: its nodes would be gone, not bad."""
    saved: Iterator[RoundResult] = field(default_factory=lambda: iter(()))
    """The rounds of an earlier run, which are not run again as long as this one asks the same."""
    save: Callable[[RoundResult], None] = lambda _: None
    """Called with each round, those of the earlier run included."""
    done: list[RoundResult] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Node that was lost in a round → why."""

    def run(
        self,
        name: str,
        groups: Iterable[Nodes],
        settings: Mapping[str, str] | None = None,
        gpus: tuple[int, ...] = (),
        **changed: Any,
    ) -> list[GroupResult]:
        """A group's result for each of ``groups``, without the nodes that are gone. A group in which nodes
        were lost is run once more without them. Raises `OutOfTime`."""
        asked = [Group(self._there(nodes), gpus) for nodes in groups]
        found = self._once(replace(self.base, name=name, settings=settings or {}, **changed), asked)
        again = [
            replace(group, nodes=there)
            for group in asked
            if (there := self._there(group.nodes)) != group.nodes and len(there) > 1
        ]
        if again:
            name = f"{name}, without nodes that were lost"
            repeated = self._once(replace(self.base, name=name, settings=settings or {}, **changed), again)
            new = {group.nodes: result for group, result in zip(again, repeated, strict=True)}
            found = [new.get(self._there(result.group.nodes), result) for result in found]
        return found

    def _there(self, nodes: Nodes) -> Nodes:
        return tuple(node for node in nodes if node in self.joined and node not in self.lost)

    def _once(self, asked: Round, groups: Sequence[Group]) -> list[GroupResult]:
        asked = replace(asked, groups=tuple(group for group in groups if group.nodes))
        result = next(self.saved, None)
        if result is None or result.round != asked:
            if time.monotonic() + asked.deadline_s > self.until:
                raise OutOfTime
            self.saved = iter(())
            result = self.meet(asked)
        self.save(result)
        self.done.append(result)
        for rank in chain.from_iterable(group.ranks for group in result.groups):
            if rank.ending is Ending.SILENT and not rank.failure.startswith(NOT_RUN):
                self.lost.setdefault(rank.node, rank.failure or "no answer")
        results = {group.group.nodes: group for group in result.groups}
        return [results.get(group.nodes, GroupResult(group, ())) for group in groups]


def examine(
    rounds: Rounds, nodes: Sequence[str], absent: Mapping[str, str], topology: Mapping[str, str]
) -> Iterator[Finding]:
    """All findings, in the order in which they are known. ``absent``: node of ``nodes`` that did not join →
    why. ``topology``: node → its switch."""
    named = NodeSetFormatter(nodes)
    lacking = {node: one.lacks for node, one in rounds.joined.items() if one.lacks}
    places = {switch: place for place, switch in enumerate(dict.fromkeys(topology.values()))}
    by_switch = sorted(nodes, key=lambda node: places.get(topology.get(node, ""), len(places)))
    able = tuple(node for node in by_switch if node in rounds.joined and node not in lacking)
    differs = list(collective_facts.compare([rounds.joined[node] for node in able]))
    try:
        yield from differs
        yield from left_out(rounds, {**absent, **lacking})
        if len(able) < 2:
            says = "{number} of {nodes} nodes can take part: a collective needs two"
            yield Finding.error("too-few", says, number=len(able), nodes=len(nodes))
            return
        alone = rounds.run("each node alone", [(node,) for node in able])
        bad = {result.group.nodes[0]: result for result in alone if result.ranks and not result.passed}
        for node, result in bad.items():
            says = "{node}: collectives fail within the node: {what}"
            remedy = f"on {node}: gpuipc-doctor check --all"
            own = differing(collective_facts.deviations(differs).get(node, ()))
            what = what_failed(result)
            yield Finding.fail("node-alone", says, *own, node=node, what=what, remedy=remedy)
        able = tuple(node for node in able if node not in bad)
        if len(able) > 1:
            yield from together(rounds, able, topology, named, differs, alone)
    except OutOfTime:
        says = "the time limit ended the search after {rounds} rounds"
        remedy = "add --resume and a longer --budget"
        yield Finding.error("time-limit", says, rounds=len(rounds.done), remedy=remedy)
    for node, why in rounds.lost.items():
        yield Finding.error("lost", "{node} was lost in a round and left out: {why}", node=node, why=why)


def left_out(rounds: Rounds, lacking: Mapping[str, str]) -> Iterator[Finding]:
    """What takes no part: nodes without an answer or a library, and GPUs that others use."""
    for node, why in lacking.items():
        yield Finding.error("no-part", "{node} takes no part: {why}", node=node, why=why)
    for node, one in rounds.joined.items():
        for gpu in one.busy:
            yield Finding.warn("busy", "{gpu} of {node} takes no part", node=node, gpu=gpu)


def together(
    rounds: Rounds,
    nodes: Nodes,
    topology: Mapping[str, str],
    named: NodeSetFormatter,
    differs: Sequence[Finding],
    alone: Sequence[GroupResult],
) -> Iterator[Finding]:
    """All nodes together: what fails and what helps; else what is slow, and what carries the data."""
    deviations = collective_facts.deviations(differs)
    blamed, tried = find(rounds, nodes, topology, lambda result: not result.passed)
    if blamed != Blame():
        helps = [*controls(rounds, tried)]
        for found in Telling(named, topology, tried, deviations).of(blamed):
            works = next((item.values["remedy"] for item in helps if "remedy" in item.values), "")
            remedy = "; ".join(filter(None, (found.remedy, works)))
            yield replace(found, evidence=(*found.evidence, *helps), remedy=remedy)
        return
    whole = tried[nodes]
    yield passed(whole, alone)
    yield from carried(rounds, whole)
    yield from slow_pairs(rounds, nodes)
    yield from rails(rounds, nodes, topology, named, whole)


def find(
    rounds: Rounds,
    nodes: Nodes,
    topology: Mapping[str, str],
    is_bad: Callable[[GroupResult], bool],
    known: Tried | None = None,
    name: str = "",
    **how: Any,
) -> tuple[Blame, Tried]:
    """Search what is bad. ``known``: results of groups that need not be run first. ``how``: of each round."""
    tried: Tried = {}
    known = dict(known or {})
    asking = search(nodes, topology)
    groups, number = next(asking), 0
    while True:
        if all(group in known for group in groups):
            results = [known.pop(group) for group in groups]
        else:
            number += 1
            what = f"search, round {number}: {counted(len(groups), 'group')}" if tried else "all together"
            results = rounds.run(f"{name}{what}", groups, **how)
        tried |= dict(zip(groups, results, strict=True))
        try:
            groups = asking.send([len(r.group.nodes) > 1 and bool(r.ranks) and is_bad(r) for r in results])
        except StopIteration as ended:
            return ended.value, tried


def controls(rounds: Rounds, tried: Tried) -> Iterator[Evidence]:
    """Rounds of disjoint groups that failed, each with one setting: what passes, and at which price."""
    failed: list[Nodes] = []
    for group in sorted((group for group in tried if not tried[group].passed), key=len):
        if not {*group} & {*chain.from_iterable(failed)}:
            failed.append(group)
    normal = max((result.bus or 0 for result in tried.values() if result.passed), default=0)
    adapters = common_adapters(rounds, failed[0])
    is_by_sockets = any(
        rank.network.startswith("Socket") for result in tried.values() for rank in result.ranks
    )
    for name, settings in CONTROLS.items():
        used = settings or ({"NCCL_IB_HCA": f"={adapters[0]}"} if len(adapters) > 1 else {})
        is_idle = is_by_sockets and name != "without CUMEM"  # such a setting would change nothing
        results = rounds.run(f"control: {name}", failed, used) if used and not is_idle else []
        if results and all(result.passed for result in results):
            slowest = min(result.bus or 0 for result in results) / 1e9
            price = f"{slowest:.3g} GB/s" + f" instead of {normal / 1e9:.3g} GB/s" * bool(normal)
            yield Evidence.control(
                "passes {name} ({settings:env}): {price}",
                name=name,
                settings=used,
                price=price,
                remedy=f"until it is repaired: {' '.join(f'{k}={v}' for k, v in used.items())} ({price})",
            )
        elif results:
            yield Evidence.control("fails also {name} ({settings:env})", name=name, settings=used)


def common_adapters(rounds: Rounds, nodes: Iterable[str]) -> list[str]:
    """The adapters with an active port that all nodes have, in order."""
    of = [rounds.joined[n].facts.get(collective_facts.ADAPTERS, "") for n in nodes if n in rounds.joined]
    return sorted(set.intersection(*({*names.split()} for names in of))) if of else []


def carried(rounds: Rounds, whole: GroupResult) -> Iterator[Finding]:
    """What carried the data between nodes. Sockets beside active adapters are a WARN with both speeds."""
    kinds = sorted({rank.network for rank in whole.ranks if rank.network})
    ways = sorted({name for rank in whole.ranks for name in rank.transports if name.startswith("NET")})
    if not kinds:
        return
    sockets = next((kind for kind in kinds if kind.startswith("Socket")), "")
    adapters = common_adapters(rounds, whole.group.nodes)
    if not sockets or not adapters:
        yield Finding.ok("carried", "carried by {networks} ({ways})", networks=kinds, ways=ways)
        return
    (other,) = rounds.run("control: by adapters", [whole.group.nodes], {"NCCL_NET": "IB"})
    yield Finding.warn(
        "by-sockets",
        "carried by {network}, although {number} adapters are active: {rate}; with NCCL_NET=IB: {other}",
        remedy="see what NCCL_DEBUG=INFO says of NET/IB",
        network=sockets,
        number=len(adapters),
        rate=rate(whole),
        other=rate(other) if other.passed else what_failed(other),
    )


def slow_pairs(rounds: Rounds, nodes: Nodes) -> Iterator[Finding]:
    """Groups of one size, since a larger group is slower by nature: all pairs of neighbours, then all across.
    What is slow must be slow twice: a node with two others, a pair when repeated."""
    if len(nodes) < 4:
        return
    half = len(nodes) // 2
    ways = {
        "neighbours": [*zip(nodes[::2], nodes[1::2], strict=False)],
        "across": [*zip(nodes[:half], nodes[-half:], strict=True)],
    }
    how: dict[str, Any] = {"sizes": (max(rounds.base.sizes),), **ALL_REDUCE}
    slow: dict[Nodes, tuple[GroupResult, float]] = {}
    for name, pairs in ways.items():
        results = rounds.run(f"pairs for their speed: {name}", pairs, **how)
        usual = median_high([result.bus or 0 for result in results])
        slow |= {result.group.nodes: (result, usual) for result in results if _is_slow(result, usual)}
    counts = Counter(node for pair in slow for node in pair)
    bad = {node for node, count in counts.items() if count > 1}
    once = [pair for pair in slow if not {*pair} & bad]
    again = (
        {result.group.nodes: result for result in rounds.run("slow pairs, again", once, **how)}
        if once
        else {}
    )
    for node in sorted(bad, key=nodes.index):
        of = [slow[pair] for pair in slow if node in pair]
        with_ = [other for pair in slow if node in pair for other in pair if other != node]
        yield Finding.warn(
            "slow-node",
            "{node}: {rates} with {others}; the median of such pairs: {usual} GB/s",
            remedy="on {node}: see the speed and the width of its adapters' links".replace("{node}", node),
            node=node,
            rates=", ".join(rate(result) for result, _ in of),
            others=with_,
            usual=f"{of[0][1] / 1e9:.3g}",
        )
    for pair, result in again.items():
        if _is_slow(result, slow[pair][1]):
            yield Finding.warn(
                "slow-pair",
                "{one} and {other}: {rate}, measured twice; the median of such pairs: {usual} GB/s",
                one=pair[0],
                other=pair[1],
                rate=rate(result),
                usual=f"{slow[pair][1] / 1e9:.3g}",
            )


def rails(
    rounds: Rounds, nodes: Nodes, topology: Mapping[str, str], named: NodeSetFormatter, whole: GroupResult
) -> Iterator[Finding]:
    """One adapter at a time, the same on all nodes, with the GPU of the same position."""
    adapters = common_adapters(rounds, nodes)
    gpus = min(len(rounds.joined[node].gpus) for node in nodes if node in rounds.joined)
    if len(adapters) < 2 or any(rank.network.startswith("Socket") for rank in whole.ranks):
        return
    how: dict[str, dict[str, Any]] = {
        adapter: {
            "settings": {"NCCL_IB_HCA": f"={adapter}"},
            "gpus": (place * gpus // len(adapters),),
            "sizes": (max(rounds.base.sizes),),
            **ALL_REDUCE,
        }
        for place, adapter in enumerate(adapters)
    }
    first = {adapter: rounds.run(f"rail {adapter}", [nodes], **how[adapter])[0] for adapter in adapters}
    usual = median(result.bus or 0 for result in first.values())
    for adapter in adapters:
        if not _is_slow(first[adapter], usual):
            continue
        (again,) = rounds.run(f"rail {adapter}, again", [nodes], **how[adapter])
        if not _is_slow(again, usual):
            continue
        bad = partial(_is_slow, usual=usual)
        blamed, tried = find(
            rounds, nodes, topology, bad, {nodes: again}, f"rail {adapter}: ", **how[adapter]
        )
        where = Telling(named, topology, tried, slow=SLOW * usual).of(blamed)
        yield Finding.warn(
            "slow-rail",
            "adapter {adapter}: {rate}, measured twice; the median of {number} adapters: {usual} GB/s",
            *(Evidence.seen(found.says, **found.values) for found in where),
            adapter=adapter,
            rate=rate(again) if again.passed else what_failed(again),
            number=len(adapters),
            usual=f"{usual / 1e9:.3g}",
        )


def _is_slow(result: GroupResult, usual: float) -> bool:
    return not result.passed or (result.bus or 0) < SLOW * usual
