"""Findings on collectives over nodes: what failed or is slow, where, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.fleet.collective_search import Blame, Nodes
from gpuipc_doctor.fleet.collective_types import Ending, GroupResult, RankResult
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.model import Evidence, Finding, Measurement, Status
from gpuipc_doctor.present.text import counted

Tried = dict[Nodes, GroupResult]
"""Nodes of a group → its last result."""


SAYS = (
    (
        "node",
        "nodes",
        "{who}: collectives {verb} with each node that it met",
        "keep jobs off it (--exclude={who}); there: gpuipc-doctor check --all",
    ),
    (
        "pair",
        "pairs",
        "{who}: collectives {verb} between them; both pass with others",
        "see the error counters of both nodes' ports, and of the links between them",
    ),
    (
        "switch",
        "switches",
        "switch {who}: collectives {verb} between its nodes and all others",
        "see its uplinks; its nodes can run jobs among themselves",
    ),
    (
        "link",
        "links",
        "switches {who}: collectives {verb} between their nodes, which pass with others",
        "see the links and the routes between them",
    ),
    (
        "only-together",
        "together",
        "{who}: collectives {verb} all together; each two passed in smaller groups",
        "compare what grows with ranks: open files, ports, locked memory, queue pairs",
    ),
    (
        "undecided",
        "unclear",
        "{who}: collectives {verb}; which of these nodes is at fault could not be told",
        "name more nodes; or repair what else is named, and run it again",
    ),
    (
        "unstable",
        "unstable",
        "{who}: collectives {verb} once and passed when repeated",
        "run it again; see the error counters of the nodes' ports",
    ),
)
"""(key of the finding, field of `Blame`, sentence, remedy)."""


@dataclass(frozen=True)
class Telling:
    """Turns a verdict into findings, with the groups that show it."""

    named: NodeSetFormatter
    topology: Mapping[str, str]
    tried: Tried
    differs: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    slow: float = 0.0
    """Bus bandwidth below which a group is slow; 0 if groups failed."""

    def of(self, blamed: Blame) -> Iterator[Finding]:
        status, verb = (Status.WARN, "are slow") if self.slow else (Status.FAIL, "fail")
        for key, name, says, remedy in SAYS:
            for each in getattr(blamed, name):
                who = (each,) if isinstance(each, str) else each
                nodes = [node for node in self.topology if self.topology[node] in who] or [*who]
                shown = " - ".join(who) if name in ("pairs", "links") else self.named.brief(who)
                shown += f" ({self.named.brief(nodes)})" * (name == "switches")
                evidence = self._shown_by({*nodes}, crossing=name in ("switches", "links"))
                do = remedy.replace("{who}", shown)
                yield Finding.of(status, key, says, *evidence, remedy=do, who=shown, verb=verb, nodes=nodes)

    def _shown_by(self, nodes: set[str], *, crossing: bool) -> Iterator[Evidence]:
        """The smallest group that was bad, the largest that passed without the nodes, how they differ."""
        bad = [result for group, result in self.tried.items() if self._is_bad(result) and {*group} & nodes]
        whole = [result for result in bad if {*result.group.nodes} >= nodes]
        for result in sorted(bad if crossing else whole or bad, key=lambda one: len(one.group.nodes))[:1]:
            where = self.named.brief(result.group.nodes)
            if self.slow:
                yield Evidence.seen("{where}: {rate}", where=where, rate=rate(result))
            else:
                yield Evidence.seen("{where}: {what}", where=where, what=what_failed(result))
                for one, other in dict.fromkeys(rank.ends for rank in result.ranks if rank.ends):
                    yield Evidence.seen("no connection from {one} to {other}", one=one, other=other)
        good = [
            result
            for group, result in self.tried.items()
            if not self._is_bad(result) and not {*group} & nodes and len(group) > 1
        ]
        for result in sorted(good, key=lambda one: -len(one.group.nodes))[:1]:
            says = "without: {number} other nodes pass together, {rate}"
            yield Evidence.control(says, number=len(result.group.nodes), rate=rate(result))
        yield from differing(found for node in sorted(nodes) for found in self.differs.get(node, ()))

    def _is_bad(self, result: GroupResult) -> bool:
        return bool(result.ranks) and (not result.passed or (result.bus or 0) < self.slow)


def differing(found: Iterable[Finding]) -> Iterator[Evidence]:
    """What the facts of nodes showed before the first round, once each."""
    for each in {id(each): each for each in found}.values():
        yield Evidence.seen(f"differs: {each.says}", **each.values)


def what_failed(result: GroupResult) -> str:
    """What went wrong in a group, of the rank that tells most, in one line."""
    wrong = [(rank, each) for rank in result.ranks for each in rank.wrong]
    for rank, each in wrong[:1]:
        what = f"{each.operation} of {each.nbytes} B, {each.kind}: {each.says}"
        return (
            f"{what} ({_rank(rank)}; {counted(len({r.rank for r, _ in wrong}), 'rank')} with wrong results)"
        )
    order = [Ending.FAILED, Ending.SILENT, Ending.LOST, Ending.HUNG]
    often = Counter(rank.operation for rank in result.ranks)  # whoever hangs alone keeps the others waiting
    bad = [rank for rank in result.ranks if rank.ending in order]
    bad.sort(key=lambda rank: (order.index(rank.ending), often[rank.operation]))
    for rank in bad[:1]:
        said = f": {rank.failure}" if rank.failure else ""
        more = f", and {counted(len(bad) - 1, 'more rank')}" if bad[1:] else ""
        return f"{_rank(rank)}: {rank.ending.value} in {rank.operation or 'start'}{said}{more}"
    return "no rank answered"


def _rank(rank: RankResult) -> str:
    return f"rank {rank.rank} on {rank.node}"


def rate(result: GroupResult) -> str:
    return f"{result.bus / 1e9:.3g} GB/s bus bandwidth" if result.bus else "no speed measured"


def passed(whole: GroupResult, alone: Iterable[GroupResult]) -> Finding:
    """``alone``: each node's control."""
    ranks = whole.ranks
    within = [result.bus for result in alone if result.bus]
    figures = (
        ("start", max((rank.start_s or 0 for rank in ranks), default=0), "s", False),
        ("first all-reduce", max((rank.first_s or 0 for rank in ranks), default=0), "s", False),
        ("latency", (whole.latency_s or 0) * 1e6, "us", False),
        ("bus bandwidth", (whole.bus or 0) / 1e9, "GB/s", True),
        ("within the slowest node", min(within, default=0) / 1e9, "GB/s", True),
    )
    return Finding.ok(
        "passed",
        "{cases} operations on {ranks} ranks of {nodes} nodes, every element compared: {rate}",
        measured=[Measurement(*figure) for figure in figures if figure[1]],
        cases=max((rank.cases for rank in ranks), default=0),
        ranks=len(ranks),
        nodes=len(whole.group.nodes),
        rate=rate(whole),
    )
