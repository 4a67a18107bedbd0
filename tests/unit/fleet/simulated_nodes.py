"""A fabric of simulated nodes: a `Meet` that takes no time. A fault says what a group's nodes suffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuipc_doctor.fleet.collective_types import (
    Ending,
    Group,
    GroupResult,
    Joined,
    RankResult,
    Round,
    RoundResult,
    Speed,
    Wrong,
)

RATE = 40e9
"""Bus bandwidth of a healthy fabric."""

SAYS = "1 of 4194304 elements is wrong, the first at byte 1048580: 7 instead of 3"

Fault = Callable[[Group, Mapping[str, str], RankResult], RankResult]
"""(group, settings, what a healthy rank does) → what the rank does."""


def hangs(*nodes: str, unless: str = "") -> Fault:
    """Collectives with all of these nodes hang, unless a variable is set."""
    return when(
        lambda group: {*group.nodes} >= {*nodes} and len(group.nodes) > 1,
        lambda rank: replace(rank, ending=Ending.HUNG, operation="first all-reduce", speeds=(), cases=0),
        unless,
    )


def wrong(node: str) -> Fault:
    one = Wrong("all-reduce", "float32", 16 << 20, SAYS)
    return when(
        lambda group: node in group.nodes and len(group.nodes) > 1,
        lambda rank: replace(rank, wrong=(one,), wrong_cases=1),
    )


def cut(*inside: str) -> Fault:
    """A switch that lets nothing out."""
    failed = "ncclCommInitRank: ncclSystemError (2): Connect to 10.0.0.9<45123> failed : No route to host"
    return when(
        lambda group: 0 < len({*group.nodes} & {*inside}) < len(group.nodes),
        lambda rank: replace(
            rank,
            ending=Ending.FAILED,
            operation="start",
            failure=failed,
            speeds=(),
            ends=("10.0.0.1", "10.0.0.9:45123"),
        ),
    )


def only_all(number: int) -> Fault:
    return when(
        lambda group: len(group.nodes) >= number,
        lambda rank: replace(rank, ending=Ending.FAILED, operation="start", failure="ncclInternalError"),
    )


def slow(node: str, factor: float, adapter: str = "") -> Fault:
    """A node's link is slow, or one of its adapters if this is the only one in use."""

    def suffer(group: Group, settings: Mapping[str, str], rank: RankResult) -> RankResult:
        is_used = settings.get("NCCL_IB_HCA") == f"={adapter}" if adapter else True
        if node not in group.nodes or not is_used or len(group.nodes) < 2:
            return rank
        return replace(rank, speeds=tuple(replace(one, seconds=one.seconds * factor) for one in rank.speeds))

    return suffer


def when(
    is_hit: Callable[[Group], bool], does: Callable[[RankResult], RankResult], unless: str = ""
) -> Fault:
    def suffer(group: Group, settings: Mapping[str, str], rank: RankResult) -> RankResult:
        is_off = unless and unless in [f"{name}={value}" for name, value in settings.items()]
        return does(rank) if is_hit(group) and not is_off else rank

    return suffer


@dataclass
class Fabric:
    """Nodes, and a `Meet` over them."""

    nodes: Sequence[str]
    faults: Sequence[Fault] = ()
    gone: Mapping[str, int] = field(default_factory=dict)
    """Node → the round in which it is lost."""
    gpus: int = 2
    adapters: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    """NCCL_NET → bus bandwidth."""
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = " ".join(f"mlx5_{number}" for number in range(self.adapters))
        facts = {"interfaces": "eno1 lo", "adapters": names, "memlock": "unlimited"}
        self.joined = {
            node: Joined(node, ("H200",) * self.gpus, library="NCCL 2.28.3", facts=facts)
            for node in self.nodes
        }

    def meet(self, asked: Round) -> RoundResult:
        self.rounds.append(asked)
        met = [node for group in asked.groups for node in group.nodes]
        assert len({*met}) == len(met)
        for node, number in self.gone.items():
            if len(self.rounds) >= number:
                self.joined.pop(node, None)
        return RoundResult(asked, tuple(self._group(asked, group) for group in asked.groups), 1.0)

    def _group(self, asked: Round, group: Group) -> GroupResult:
        places = group.gpus or tuple(range(self.gpus))
        gone = [node for node in group.nodes if node not in self.joined]
        ranks = [(node, gpu) for node in group.nodes for gpu in places]
        results = (
            self._rank(asked, group, number, *rank, len(ranks), gone) for number, rank in enumerate(ranks)
        )
        return GroupResult(group, tuple(results))

    def _rank(
        self, asked: Round, group: Group, number: int, node: str, gpu: int, ranks: int, gone: Sequence[str]
    ) -> RankResult:
        if node in gone:
            return RankResult(node, number, gpu, Ending.SILENT, failure="the node's process was lost")
        if gone:
            return RankResult(node, number, gpu, Ending.HUNG, "first all-reduce")
        settings = {**asked.settings, **group.settings}
        rate = self.rates.get(settings.get("NCCL_NET", ""), RATE)
        seconds = asked.sizes[-1] / rate * 2 * (ranks - 1) / ranks
        is_socket = (
            settings.get("NCCL_NET", "IB" if self.adapters and "" not in self.rates else "Socket") == "Socket"
        )
        found = RankResult(
            node,
            number,
            gpu,
            Ending.DONE,
            start_s=0.5,
            first_s=0.2,
            cases=len(asked.operations) * len(asked.sizes) * len(asked.kinds),
            speeds=(Speed("all-reduce", 8, 2e-5), Speed("all-reduce", asked.sizes[-1], seconds)),
            transports={"NET/Socket/0" if is_socket else "NET/IB/0/GDRDMA": 2},
            network="Socket: eno1:10.0.0.1" if is_socket else "IB: mlx5_0:1/RoCE",
        )
        for fault in self.faults:
            found = fault(group, settings, found)
        return found
