"""What the head of `fleet collectives` asks of nodes in a round, and what it learns.

A round is one or more groups that meet at the same time; the ranks of a group make one communicator. Halves,
suspects beside their partners, and each node alone (the control) are rounds of several groups. Ranks are
numbered in the order of a group's nodes, on each node in the order of its GPUs. Seconds are floats, sizes are
bytes, rates are bytes per second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ring")
"""Every rank of a ring sends to the next one and receives from the one before: send/receive."""

SIZES = (8, 65_536, 1 << 20, 16 << 20, 256 << 20)
"""Bytes of a rank's largest buffer. 8 B, the edges of NCCL's protocols, and the largest."""

KINDS = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Joined:
    """A node whose process has reached the head."""

    node: str
    gpus: tuple[str, ...]
    """Model of each GPU that takes part, in the order of its indexes."""
    busy: tuple[str, ...] = ()
    """GPUs left out because other processes use them, in words that name the GPU and the process."""
    library: str = ""
    """``NCCL 2.28.3``; empty if the node has none, and ``lacks`` says why."""
    lacks: str = ""
    room: int = 1 << 62
    """Maximum bytes of a buffer, by the GPUs' memory; a group's sizes are cut to its smallest room."""
    clock_s: float = 0.0
    """The node's clock minus the head's."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The node's inventory: name → value, for the head to compare."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes whose ranks make one communicator. A group of one node is that node's control."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    """Positions in `Joined.gpus` with a rank; empty: all. A rail is one position on all nodes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of its ranks, beside the round's: ``{"NCCL_IB_HCA": "=mlx5_3"}``."""


@dataclass(frozen=True, slots=True)
class Round:
    """What to do at the same time. No node is in two groups."""

    name: str
    """In words, for progress and tables: ``all together``, ``halves``, ``rail 3``."""
    groups: tuple[Group, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of every rank: ``{"NCCL_NET": "Socket"}``."""
    operations: tuple[str, ...] = OPERATIONS
    sizes: tuple[int, ...] = SIZES
    kinds: tuple[str, ...] = KINDS
    speeds: bool = True
    """Measure latency (8 B) and the bandwidth of the largest all-reduce, too."""
    deadline_s: float = 120.0
    """From the start of the round. A rank that has not ended then is killed and reported as hung."""


NOT_RUN = "not run"
"""Begins `RankResult.failure` of a node whose group was not run, since another of its nodes is gone."""


class Ending(Enum):
    """How a rank ended. The value is written into documents."""

    DONE = "done"
    """It made all calls; its results may still be wrong."""
    FAILED = "failed"
    """A call returned an error, or the rank died: `RankResult.failure`."""
    HUNG = "hung"
    """It was in `RankResult.operation` at the deadline."""
    LOST = "lost a peer"
    """A call returned ncclRemoteError: another rank had ended, or their connection was cut. Of a group with a
    rank that FAILED, those that LOST a peer are consequences."""
    SILENT = "no answer"
    """Its node did not answer, or lost the connection to the head: `RankResult.failure` says how."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """One wrong result of a rank."""

    operation: str
    kind: str
    nbytes: int
    says: str
    """With the offset: ``3 of 65536 elements are wrong, the first at byte 131072: 7.0 instead of 3.0``."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The time of an operation on this rank: the fastest of several passes."""

    operation: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank did in a round."""

    node: str
    rank: int
    """In its group."""
    gpu: int
    """Position in `Joined.gpus`."""
    ending: Ending
    operation: str = ""
    """The last operation that it began, if it did not end well: ``start``, ``first all-reduce``,
    ``all-reduce of 1048576 B, bfloat16``."""
    failure: str = ""
    """The failed call, its error and what NCCL said: ``ncclCommInitRank: ncclSystemError (2): …``."""
    ends: tuple[str, str] | None = None
    """Both ends of a failed connection, ``10.0.0.1`` and ``10.0.0.2:45123``, if NCCL named them."""
    start_s: float | None = None
    """Seconds of ncclCommInitRank; None if it did not return."""
    first_s: float | None = None
    """Seconds of the first all-reduce, which connects the transports."""
    cases: int = 0
    """Operations whose elements were all compared on this rank."""
    wrong: tuple[Wrong, ...] = ()
    """At most eight."""
    wrong_cases: int = 0
    speeds: tuple[Speed, ...] = ()
    transports: Mapping[str, int] = field(default_factory=dict)
    """From NCCL's log: transport → number of channels: ``{"P2P/CUMEM": 24, "NET/IB/0/GDRDMA": 2}``."""
    network: str = ""
    """From NCCL's log, what carries data between nodes: ``Socket: eno1:10.0.0.1``,
    ``IB: mlx5_0:1/RoCE mlx5_1:1/RoCE``."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What the ranks of a group did, in the order of ranks; a rank whose node is silent is among them."""

    group: Group
    ranks: tuple[RankResult, ...]

    @property
    def passed(self) -> bool:
        """Whether all ranks made all calls and every element was right."""
        return all(rank.ending is Ending.DONE and not rank.wrong_cases for rank in self.ranks)

    @property
    def latency_s(self) -> float | None:
        """Of the slowest rank, of the smallest all-reduce."""
        found = self._slowest(min)
        return found.seconds if found else None

    @property
    def bus(self) -> float | None:
        """Bus bandwidth of the largest all-reduce: what each link carries, for any number of ranks."""
        found, ranks = self._slowest(max), len(self.ranks)
        return found.nbytes / found.seconds * 2 * (ranks - 1) / ranks if found and ranks > 1 else None

    def _slowest(self, of: Callable[[list[int]], int]) -> Speed | None:
        measured = [one for rank in self.ranks for one in rank.speeds if one.operation == "all-reduce"]
        size = of([one.nbytes for one in measured]) if measured else 0
        return max((one for one in measured if one.nbytes == size), key=lambda one: one.seconds, default=None)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round has shown; its groups in the order of `Round.groups`."""

    round: Round
    groups: tuple[GroupResult, ...]
    seconds: float = 0.0
    """Of the whole round, on the head's clock."""


Meet = Callable[[Round], RoundResult]
"""Runs a round and returns when all its ranks have ended or its deadline has passed. Raises nothing but
`KeyboardInterrupt`; a node lost in one round is silent in all later ones."""
