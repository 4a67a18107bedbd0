"""Ranks that all wait for their GPUs: what tells one rank from the others.

A collective's kernel spins until all ranks have called it, so a busy GPU is no cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gpuipc_doctor.collective.call import Call
from gpuipc_doctor.collective.judge import Judgement, Problem
from gpuipc_doctor.job.document import Cause, Verdict
from gpuipc_doctor.job.waits import Activity, program_frames
from gpuipc_doctor.present.text import ranges

LONG_S = 30.0
"""Seconds without any movement after which ranks that wait for their GPUs count as stuck."""

ODD_FRACTION, ODD_SPREADS = 0.12, 2.0
"""A GPU's power is odd if it differs from the others' median by this fraction, and by this many times the
others' own spread. Recorded on H200s: 176 to 182 W in a collective, 126 W in another kernel."""

FEWEST_OTHERS = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known beside the ranks' activities."""

    calls: tuple[Call, ...] = ()
    """Each rank's last collective by NCCL's RAS, if RAS was asked."""
    collectives_move: bool = False
    """Whether RAS counted new collectives between two answers."""
    watts: Mapping[int, float] = field(default_factory=dict)
    """Rank → power of its GPU."""
    seconds: float = 0.0
    """Seconds from the first snapshot to the last."""

    busy: Mapping[int, int] = field(default_factory=dict)
    """Rank → utilisation of its GPU in percent."""

    @property
    def is_long(self) -> bool:
        """Whether ranks that did not move in this time count as stuck."""
        return self.seconds >= LONG_S


def judge(
    cause: Cause, activities: Mapping[int, Activity], waiting: Sequence[int], evidence: Evidence
) -> Verdict:
    """The verdict if every rank waits for its GPU, or in a collective of PyTorch."""
    power = _odd_power(evidence.watts, [rank for rank in waiting if evidence.busy.get(rank) != 0])
    place = odd_place(activities, waiting)
    blamed = sorted({*power, *place})
    reasons = [*power.values(), *place.values()]
    if evidence.calls:
        same = Judgement(problem=Problem.SAME, operation=_operation(evidence.calls))
        reasons.insert(0, same.sentence)
    if evidence.is_long:
        reasons.append(f"nothing moved in {evidence.seconds:.0f} s")
    own = [rank for rank in waiting if rank not in blamed] or list(waiting)
    return Verdict(
        cause=cause,
        blamed=tuple(blamed),
        waiting=tuple(rank for rank in waiting if rank not in blamed),
        operation=most_common(activities[rank].operation for rank in blamed or own),
        waits_in=most_common(activities[rank].operation for rank in own),
        reasons=tuple(reasons),
    )


def most_common(operations: object) -> str:
    """The most frequent operation."""
    counts = Counter(operations)  # type: ignore[call-overload]
    return max(counts, key=counts.__getitem__, default="")


def _operation(calls: Sequence[Call]) -> str:
    first = calls[0]
    return f"{first.operation} {first.number}" if first.number else "the same operations"


def _odd_power(watts: Mapping[int, float], waiting: Sequence[int]) -> dict[int, str]:
    """The one rank whose GPU draws much less or more than the others' → the evidence."""
    known = {rank: watts[rank] for rank in waiting if rank in watts}
    found = {}
    for rank, own in known.items():
        others = [value for other, value in known.items() if other != rank]
        if len(others) < FEWEST_OTHERS:
            continue
        difference = abs(own - median(others))
        if difference > ODD_FRACTION * median(others) and difference > ODD_SPREADS * (
            max(others) - min(others)
        ):
            found[rank] = (
                f"rank {rank}'s GPU draws {own:.0f} W, the others' {min(others):.0f} to {max(others):.0f} W: "
                "it runs another kernel, before the collective or in place of it"
            )
    return found if len(found) == 1 else {}


def ways_of(activities: Mapping[int, Activity], ranks: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Rank → its way through the program to its call: the program's own frames, outermost first."""
    found = {}
    for rank in ranks:
        path = activities[rank].path
        own = [each for each in path if ".py:" in each and not each.startswith("torch.")]
        found[rank] = tuple(own or program_frames(path)) or (activities[rank].operation,)
    return found


def odd_place(activities: Mapping[int, Activity], waiting: Sequence[int]) -> dict[int, str]:
    """Ranks that came to their wait by another way through the program than most ranks → the evidence."""
    ways = ways_of(activities, waiting)
    (usual, number), *_ = Counter(ways.values()).most_common(1) or [((), 0)]
    others = [rank for rank in waiting if ways[rank] != usual]
    if not 0 < len(others) < max(2, number / 2) or len(others) >= number:
        return {}
    alike = ranges(rank for rank in waiting if rank not in others)
    found = {}
    for rank in others:
        fork = next(
            (n for n, (own, theirs) in enumerate(zip(ways[rank], usual, strict=False)) if own != theirs), 0
        )
        found[rank] = f"rank {rank} waits in {_at(ways[rank], fork)}, ranks {alike} in {_at(usual, fork)}"
    return found


def _at(way: Sequence[str], place: int) -> str:
    return way[place] if place < len(way) else way[-1]


def operation_of(judgement: Judgement) -> str:
    number = f" {judgement.number}" if judgement.number is not None else ""
    return f"{judgement.operation}{number}"
