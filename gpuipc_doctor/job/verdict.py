"""Which ranks wait for which, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.collective.judge import Judgement, Problem
from gpuipc_doctor.collective.judge import judge as collectives
from gpuipc_doctor.job import gpu_waits
from gpuipc_doctor.job.activity import STILL, Activity, Kind, is_poll
from gpuipc_doctor.job.document import Cause, Growth, Verdict
from gpuipc_doctor.job.gpu_waits import Evidence


def judge(
    activities: Mapping[int, Activity],
    size: int | None = None,
    messages: bool | None = None,
    evidence: Evidence = Evidence(),  # noqa: B008 - it is frozen
) -> Verdict:
    """The verdict on a job from its ranks' activities.

    ``size``: number of ranks, if known. ``messages``: whether messages moved between the last snapshots; None
    if unknown.
    """
    if not activities:
        return Verdict(cause=Cause.UNKNOWN, reasons=("no rank could be read",))
    absent = sorted(set(range(size or 0)) - activities.keys())
    ended = [*absent, *_ranks(activities, {Kind.ENDED})]
    waiting = [rank for rank, each in sorted(activities.items()) if each.kind.waits_for_ranks]
    device = _ranks(activities, {Kind.DEVICE})
    moved = _ranks(activities, {Kind.MOVES})
    for kind, cause in ((Kind.KERNEL, Cause.KERNEL), (Kind.STOPPED, Cause.STOPPED)):
        if stuck := _ranks(activities, {kind}):
            return _blame(cause, stuck, sorted([*waiting, *device]), activities)
    if ended and (waiting or (device and not moved)):
        return _blame(Cause.RANK_ENDED, ended, sorted([*waiting, *device]), activities)
    if moved:
        progress = f"{len(moved)} of {len(activities)} ranks made progress"
        calls = {activities[rank].operation for rank in waiting if activities[rank].kind is Kind.COLLECTIVE}
        stays = len(calls) > 1 or any(each.kind.is_outside for each in activities.values())
        if still := [rank for rank in waiting if stays or activities[rank].kind in _FOR_PARTNERS]:
            verdict = _blame(Cause.UNKNOWN, (), still, activities)
            idle = f"{_plural(len(still), 'other')} stayed in {verdict.waits_in}, idle or stuck"
            return replace(verdict, reasons=(progress, idle))
        return replace(_blame(Cause.RUNS, (), waiting, activities), reasons=(progress,))
    if evidence.collectives_move:
        return Verdict(cause=Cause.RUNS, reasons=("NCCL counts new collectives",))
    outside = [rank for rank, each in sorted(activities.items()) if each.kind.is_outside]
    waits = sorted([*waiting, *device])
    if waits and (judgement := _of_collectives(evidence)):
        return _by_collectives(judgement, activities, outside, waits)
    if device and outside:
        return _late(activities, outside, waits, messages)
    if device and gpu_waits.is_of_gpus(activities, waits) and len(waits) == len(activities):
        return gpu_waits.judge(activities, waits, evidence)
    unknown = _ranks(activities, {Kind.UNKNOWN})
    if device and not (unknown and gpu_waits.is_of_gpus(activities, waits)):
        return _blame(Cause.DEVICE_BUSY, device, waiting, activities)
    if unknown:
        reasons = tuple(dict.fromkeys(activities[rank].reason for rank in unknown))
        return Verdict(cause=Cause.UNKNOWN, blamed=tuple(unknown), waiting=tuple(waits), reasons=reasons)
    if waiting and outside:
        return _late(activities, outside, waiting, messages)
    if waiting:
        return _all_in_mpi(activities, waiting, messages)
    polling = [rank for rank in outside if is_poll(activities[rank].operation)]
    if polling and messages is False:
        why = (
            f"{_plural(len(polling), 'rank')} polling in {_operations(activities, polling)}; no message moves"
        )
        return Verdict(cause=Cause.UNKNOWN, blamed=tuple(polling), reasons=(why,))
    if len(activities) > 1 and (deaf := [rank for rank in outside if _is_at_socket(activities[rank])]):
        why = f"{_plural(len(deaf), 'rank')} waiting at a socket outside MPI, whose peer is unknown"
        return Verdict(cause=Cause.UNKNOWN, waiting=tuple(deaf), reasons=(why,))
    if all(each.kind is Kind.SLEEPS and each.reason.endswith(STILL) for each in activities.values()):
        why = "nothing moved: every rank sleeps, and none is known to have woken up between the snapshots"
        return replace(_blame(Cause.UNKNOWN, (), sorted(activities), activities), reasons=(why,))
    return Verdict(cause=Cause.RUNS, reasons=("no rank waits for another",))


def _of_collectives(evidence: Evidence) -> Judgement | None:
    """The first conclusion from the ranks' collectives that names a culprit."""
    members: dict[str, set[int]] = {}
    for call in evidence.calls:
        members.setdefault(call.group, set()).add(call.rank)
    found = collectives(evidence.calls, members)
    return next((judgement for judgement in found if any(rank >= 0 for rank in judgement.culprits)), None)


def _by_collectives(
    judgement: Judgement,
    activities: Mapping[int, Activity],
    outside: Sequence[int],
    waits: Sequence[int],
) -> Verdict:
    """The verdict if the counts of collectives name a culprit."""
    culprits = [rank for rank in judgement.culprits if rank >= 0]
    different = judgement.problem in (Problem.OPERATION, Problem.SIZES, Problem.ORDER)
    cause = Cause.MISMATCH if different else Cause.HOST_LATE
    if not different and culprits and not {*culprits} & activities.keys():
        cause = Cause.RANK_ENDED
    verdict = _blame(cause, culprits, [rank for rank in waits if rank not in culprits], activities)
    called = judgement.called if different else verdict.operation
    return replace(gpu_waits.with_evidence(verdict, judgement), operation=called)


def _late(
    activities: Mapping[int, Activity],
    outside: Sequence[int],
    waiting: Sequence[int],
    messages: bool | None,
) -> Verdict:
    """The verdict if some ranks wait for ranks that stay outside MPI. Ranks that poll may also be waiting, so
    they are blamed only if there are no others."""
    late = [rank for rank in outside if not is_poll(activities[rank].operation)] or outside
    verdict = _blame(Cause.HOST_LATE, late, waiting, activities)
    if messages:
        why = f"ranks were in {verdict.waits_in} in every snapshot, but {_MOVE}"
    elif all(activities[rank].kind.may_advance for rank in late):
        why = f"the ranks outside {verdict.waits_in} are late, or are in an endless loop"
    else:
        return verdict
    return replace(verdict, cause=Cause.UNKNOWN, reasons=(*verdict.reasons, why))


_FOR_PARTNERS = (Kind.RECEIVES, Kind.SENDS, Kind.PROGRESSES)
"""Activities of ranks that may wait for each other while other ranks make progress. A rank in a collective is
not among them: it waits for the ranks that make progress."""

_MOVE = "messages are still exchanged: the ranks' shared memory changes"


def _is_at_socket(activity: Activity) -> bool:
    """Whether the rank sleeps in a read from a network socket (Linux, net/core/sock.c,
    net/unix/af_unix.c)."""
    return activity.kind is Kind.SLEEPS and activity.path[-1:] in _AT_SOCKET


_AT_SOCKET = (
    ("wait_woken",),
    ("sk_wait_data",),
    ("unix_stream_data_wait",),
    ("__skb_wait_for_more_packets",),
)


def with_growth(verdict: Verdict, growth: Sequence[Growth], unseen: Mapping[str, str]) -> Verdict:
    """The verdict on a job that is not known to be stuck, after its growth was watched.

    ``unseen``: what could not be watched → reason. If no growth was seen and something could not be watched,
    the verdict is unknown.
    """
    if verdict.cause is not Cause.RUNS and not verdict.cause.is_open:
        return verdict
    if growth:
        ranks = dict.fromkeys(each.rank for each in growth if each.rank is not None)
        what = ", ".join(dict.fromkeys(each.what for each in growth))
        return Verdict(
            cause=Cause.GROWS, blamed=tuple(sorted(ranks)), operation=what, reasons=verdict.reasons
        )
    if unseen:
        reasons = (*verdict.reasons, *(f"{what}: {why}" for what, why in unseen.items()))
        return replace(verdict, cause=Cause.UNKNOWN, reasons=reasons)
    return verdict


def _all_in_mpi(activities: Mapping[int, Activity], waiting: Sequence[int], messages: bool | None) -> Verdict:
    """The verdict if every rank waits in MPI. If no messages move, the ranks' calls decide."""
    calls = {(activities[rank].kind, activities[rank].operation) for rank in waiting}
    in_one_collective = len(calls) == 1 and all(kind is Kind.COLLECTIVE for kind, _ in calls)
    if messages:
        return Verdict(cause=Cause.RUNS if len(calls) == 1 else Cause.UNKNOWN, reasons=(_MOVE,))
    if messages is None and in_one_collective and any(_is_python(activities[rank]) for rank in waiting):
        loop = "every rank is in the same collective: stuck, or calling it repeatedly in a Python loop"
        odd = gpu_waits.odd_place(activities, waiting)
        verdict = _blame(Cause.UNKNOWN, sorted(odd), waiting, activities)
        return replace(verdict, reasons=(*odd.values(), loop))
    collective = _ranks(activities, {Kind.COLLECTIVE, Kind.STARTS, Kind.ENDS, Kind.JOINS})
    if len(collective) < len(waiting):
        return _exchange(activities, waiting, collective, messages)
    if len(_ranks(activities, {Kind.ENDS})) == len(waiting):
        return _blame(Cause.FINALIZE, [], waiting, activities)
    if len({activities[rank].operation for rank in waiting}) > 1:
        left = _ranks(activities, {Kind.ENDS}) or _minority(activities, waiting)
        order = "the ranks are in different collectives, which must be called in the same order"
        gone = "a rank in MPI_Finalize takes part in no other collective"
        return replace(
            _blame(Cause.MISMATCH, left, waiting, activities),
            operation=_operations(activities, _minority(activities, waiting) or waiting),
            reasons=(gone if _ranks(activities, {Kind.ENDS}) else order,),
        )
    alike = "all ranks are in the same collective: its root, communicator or sizes may differ between them"
    return _all_wait((), waiting, activities, alike, messages)


def _minority(activities: Mapping[int, Activity], waiting: Sequence[int]) -> list[int]:
    """Ranks in other collectives of PyTorch than most ranks; none if there is no majority.

    Of MPI's collectives, the one that most ranks have called may be the one too early.
    """
    counts = Counter(activities[rank].operation for rank in waiting)
    (usual, number), *_ = counts.most_common(1)
    if 2 * number <= len(waiting) or any(operation.startswith("MPI_") for operation in counts):
        return []
    return [rank for rank in waiting if activities[rank].operation != usual]


def _exchange(
    activities: Mapping[int, Activity],
    waiting: Sequence[int],
    collective: Sequence[int],
    messages: bool | None,
) -> Verdict:
    """The verdict if some ranks wait for a partner, and all others wait for these ranks in a collective."""
    partners = [rank for rank in waiting if rank not in collective]
    if not collective:
        return _all_wait((), partners, activities, "every rank waits in MPI for another rank", messages)
    left = f"{_plural(len(collective), 'rank')} went on to {_operations(activities, collective)}"
    gone = f"{left} while others still exchange messages"
    calls = {activities[rank].operation for rank in partners}
    if any(activities[rank].kind is Kind.SENDS for rank in partners) or any(map(_is_open, calls)):
        request = "the request may belong to a message or to a nonblocking collective"
        reasons = [gone, request] if any(call.startswith("MPI_Wait") for call in calls) else [gone]
        return _all_wait(partners, collective, activities, "; ".join(reasons), messages)
    verdict = _blame(Cause.MESSAGE_LOST, partners, collective, activities)
    several = ("a request may belong to a send that no rank receives",) if calls - set(_RECEIVES) else ()
    return replace(verdict, reasons=("no rank is sending", *several, gone))


_RECEIVES = ("MPI_Recv", "MPI_Mrecv", "MPI_Probe", "MPI_Mprobe")


def _is_open(call: str) -> bool:
    """Whether a call may wait for something other than a message from a partner."""
    return call.startswith(("MPI_Win", "an MPI")) or call == "MPI_Wait"


def _all_wait(
    blamed: Sequence[int],
    waiting: Sequence[int],
    activities: Mapping[int, Activity],
    why: str,
    messages: bool | None,
) -> Verdict:
    still = ("the memory that ranks share does not change",) if messages is False else ()
    verdict = _blame(Cause.ALL_WAIT, blamed, waiting, activities)
    operation = verdict.operation or verdict.waits_in
    return replace(verdict, operation=operation, reasons=(why, *still))


def _is_python(activity: Activity) -> bool:
    return any(".py:" in frame for frame in activity.path)


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
    """Operations of these ranks, most frequent first."""
    counts = Counter(activities[rank].operation for rank in ranks if activities[rank].operation)
    return ", ".join(operation for operation, _ in counts.most_common(3))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
