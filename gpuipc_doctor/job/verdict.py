"""Which ranks wait for which, and why that is concluded. The smaller group is not always to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.job.activity import Activity, Kind
from gpuipc_doctor.job.document import Cause, Growth, Verdict


def judge(activities: Mapping[int, Activity], size: int | None = None) -> Verdict:
    """Judge a job by what its ranks did at every look; ``size``: how many ranks it has, where known."""
    if not activities:
        return Verdict(cause=Cause.UNKNOWN, reasons=("no rank could be read",))
    absent = sorted(set(range(size or 0)) - activities.keys())
    ended = [*absent, *_ranks(activities, {Kind.ENDED})]
    waiting = [rank for rank, each in sorted(activities.items()) if each.kind.is_in_mpi]
    for kind, cause in ((Kind.KERNEL, Cause.KERNEL), (Kind.STOPPED, Cause.STOPPED)):
        if stuck := _ranks(activities, {kind}):
            return _blame(cause, stuck, waiting, activities)
    if ended and waiting:
        return _blame(Cause.RANK_ENDED, ended, waiting, activities)
    if moved := _ranks(activities, {Kind.MOVES}):
        return Verdict(cause=Cause.RUNS, reasons=(f"{len(moved)} of {len(activities)} ranks moved on",))
    if device := _ranks(activities, {Kind.DEVICE}):
        return _blame(Cause.DEVICE_BUSY, device, waiting, activities)
    outside = [rank for rank, each in sorted(activities.items()) if each.kind.is_outside]
    if unknown := _ranks(activities, {Kind.UNKNOWN}):
        reasons = tuple(dict.fromkeys(activities[rank].reason for rank in unknown))
        return Verdict(cause=Cause.UNKNOWN, blamed=tuple(unknown), waiting=tuple(waiting), reasons=reasons)
    if waiting and outside:
        return _blame(Cause.HOST_LATE, outside, waiting, activities)
    if waiting:
        return _all_in_mpi(activities, waiting)
    return Verdict(cause=Cause.RUNS, reasons=("no rank waits for another",))


def with_growth(verdict: Verdict, growth: Sequence[Growth]) -> Verdict:
    """The verdict on a job that is not known to be stuck and whose ranks take more and more."""
    if not growth or verdict.cause not in (Cause.RUNS, Cause.UNKNOWN):
        return verdict
    ranks = dict.fromkeys(each.rank for each in growth if each.rank is not None)
    what = ", ".join(dict.fromkeys(each.what for each in growth))
    return Verdict(cause=Cause.GROWS, blamed=tuple(sorted(ranks)), operation=what, reasons=verdict.reasons)


def _all_in_mpi(activities: Mapping[int, Activity], waiting: Sequence[int]) -> Verdict:
    """Every rank waits in MPI: by which operations they differ."""
    ends, receives = _ranks(activities, {Kind.ENDS}), _ranks(activities, {Kind.RECEIVES})
    if ends and len(ends) == len(waiting):
        return _blame(Cause.FINALIZE, [], waiting, activities)
    sends = _ranks(activities, {Kind.SENDS, Kind.PROGRESSES})
    if receives and not sends and len(receives) < len(waiting):
        others = [rank for rank in waiting if rank not in receives]
        verdict = _blame(Cause.MESSAGE_LOST, receives, others, activities)
        left = f"{_plural(len(others), 'rank')} left the exchange for {_operations(activities, others)}"
        return replace(verdict, reasons=("no rank is in a send", left))
    counts = Counter(activities[rank].operation for rank in waiting)
    if len(counts) > 1 and not receives and not sends:
        return Verdict(
            cause=Cause.MISMATCH,
            waiting=tuple(waiting),
            operation=_operations(activities, waiting),
            reasons=("the ranks are in different collectives, which must be called in one order",),
        )
    return Verdict(
        cause=Cause.ALL_WAIT,
        waiting=tuple(waiting),
        operation=_operations(activities, waiting),
        reasons=("every rank waits in MPI for another one",),
    )


def _blame(
    cause: Cause, blamed: Sequence[int], waiting: Sequence[int], activities: Mapping[int, Activity]
) -> Verdict:
    waiting = [rank for rank in waiting if rank not in blamed]
    there = [rank for rank in blamed if rank in activities]
    return Verdict(
        cause=cause,
        blamed=tuple(blamed),
        waiting=tuple(waiting),
        operation=_operations(activities, there),
        waits_in=_operations(activities, waiting),
        reasons=tuple(dict.fromkeys(activities[rank].reason for rank in there)),
    )


def _ranks(activities: Mapping[int, Activity], kinds: Collection[Kind]) -> list[int]:
    return [rank for rank, each in sorted(activities.items()) if each.kind in kinds]


def _operations(activities: Mapping[int, Activity], ranks: Sequence[int]) -> str:
    """What these ranks are in, the most frequent first."""
    counts = Counter(activities[rank].operation for rank in ranks if activities[rank].operation)
    return ", ".join(operation for operation, _ in counts.most_common(3))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
