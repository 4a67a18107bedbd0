"""Which ranks wait for which, and why: an ordered table of rules, of which the first that applies decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuipc_doctor.collective.judge import Problem
from gpuipc_doctor.job import gpu_waits
from gpuipc_doctor.job.document import Cause, Growth, Verdict
from gpuipc_doctor.job.gpu_waits import Evidence
from gpuipc_doctor.job.rank_facts import RankFacts
from gpuipc_doctor.job.waits import Activity, Kind
from gpuipc_doctor.present.text import ranges


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
    ranks = RankFacts(activities, size, messages, evidence)
    rule = next(rule for rule in RULES if rule.when(ranks))
    return rule.verdict(ranks, rule.cause)


class Rule(NamedTuple):
    """``when`` it applies, the ``cause``, and the rest of the verdict."""

    when: Callable[[RankFacts], object]
    cause: Cause
    verdict: Callable[[RankFacts, Cause], Verdict]


def _blame(kind: Kind) -> Callable[[RankFacts, Cause], Verdict]:
    return lambda ranks, cause: ranks.verdict(cause, ranks.doing(kind), ranks.all_waiting)


def _say(reason: str) -> Callable[[RankFacts, Cause], Verdict]:
    return lambda ranks, cause: Verdict(cause=cause, reasons=(reason,))


# -- ranks that made progress -----------------------------------------------------------------------------


def _count_moved(ranks: RankFacts) -> str:
    return f"{len(ranks.moved)} of {len(ranks.activities)} ranks made progress"


def _some_idle(ranks: RankFacts, cause: Cause) -> Verdict:
    verdict = ranks.verdict(cause, waiting=ranks.idle_beside_moving)
    others = _plural(len(ranks.idle_beside_moving), "other")
    idle = f"{others} stayed in {verdict.waits_in}, idle or stuck"
    return replace(verdict, reasons=(_count_moved(ranks), idle))


# -- collectives whose counts name a culprit --------------------------------------------------------------


def _has_culprit(ranks: RankFacts) -> bool:
    return bool(ranks.all_waiting and ranks.collectives)


def _shows(*problems: Problem) -> Callable[[RankFacts], object]:
    return lambda ranks: ranks.all_waiting and ranks.collectives and ranks.collectives.problem in problems


def _by_collectives(ranks: RankFacts, cause: Cause) -> Verdict:
    judgement = ranks.collectives
    assert judgement is not None
    verdict = ranks.verdict(cause, ranks.culprits, ranks.all_waiting)
    return replace(
        verdict,
        operation=judgement.called if cause in (Cause.MISMATCH, Cause.ORDER) else verdict.operation,
        waits_in=gpu_waits.operation_of(judgement) or verdict.waits_in,
        reasons=(judgement.sentence, *verdict.reasons),
    )


# -- ranks that wait for ranks outside MPI ----------------------------------------------------------------


def _late(ranks: RankFacts, cause: Cause) -> Verdict:
    return ranks.verdict(cause, ranks.late, ranks.all_waiting)


def _late_with_messages(ranks: RankFacts, cause: Cause) -> Verdict:
    verdict = _late(ranks, cause)
    why = f"ranks were in {verdict.waits_in} in every snapshot, but {_MOVE}"
    return replace(verdict, reasons=(*verdict.reasons, why))


def _late_or_looping(ranks: RankFacts, cause: Cause) -> Verdict:
    verdict = _late(ranks, cause)
    why = f"the ranks outside {verdict.waits_in} are late, or are in an endless loop"
    return replace(verdict, reasons=(*verdict.reasons, why))


def _late_at_work(ranks: RankFacts, cause: Cause) -> Verdict:
    verdict = _late(ranks, cause)
    works = dict.fromkeys(ranks.activities[rank].works for rank in verdict.blamed)
    return replace(verdict, reasons=(*verdict.reasons, *filter(None, works)))


def _culprits_at_work(ranks: RankFacts, cause: Cause) -> Verdict:
    verdict = _by_collectives(ranks, cause)
    works = dict.fromkeys(ranks.activities[rank].works for rank in ranks.culprits if rank in ranks.activities)
    return replace(verdict, reasons=(*verdict.reasons, *filter(None, works)))


def _culprits_in_another_call(ranks: RankFacts, cause: Cause) -> Verdict:
    """Culprits that wait for other ranks themselves, in a call that does not match the others'."""
    judgement = ranks.collectives
    assert judgement is not None
    verdict = ranks.verdict(cause, ranks.culprits, ranks.all_waiting, reasons=(judgement.sentence,))
    return replace(verdict, waits_in=gpu_waits.operation_of(judgement) or verdict.waits_in)


def _culprits_in_message(ranks: RankFacts) -> bool:
    kinds = ranks.culprits_wait if _has_culprit(ranks) else set[Kind]()
    return bool(kinds) and kinds <= {Kind.RECEIVES, Kind.SENDS, Kind.PROGRESSES}


_MOVE = "messages are still exchanged: the ranks' shared memory changes"


# -- ranks that wait for their GPUs -----------------------------------------------------------------------


def _all_on_gpus(ranks: RankFacts) -> bool:
    return ranks.wait_only_for_gpus and len(ranks.all_waiting) == len(ranks.activities)


def _by_gpus(ranks: RankFacts, cause: Cause) -> Verdict:
    return gpu_waits.judge(cause, ranks.activities, ranks.all_waiting, ranks.evidence)


def _on_gpus(ranks: RankFacts, cause: Cause) -> Verdict:
    return ranks.verdict(cause, ranks.on_gpus, ranks.waiting)


def _unread(ranks: RankFacts, cause: Cause) -> Verdict:
    reasons = dict.fromkeys(ranks.activities[rank].reason for rank in ranks.unknown)
    who = f"cannot tell what {_plural(len(ranks.unknown), 'rank')} do: {ranges(ranks.unknown)}"
    return Verdict(cause=cause, waiting=tuple(ranks.all_waiting), reasons=(who, *reasons))


# -- ranks that all are outside MPI -----------------------------------------------------------------------


def _polling(ranks: RankFacts, cause: Cause) -> Verdict:
    who, calls = _plural(len(ranks.polling), "rank"), ranks.name_operations(ranks.polling)
    why = f"{who} polling in {calls}; no message moves"
    return Verdict(cause=cause, blamed=tuple(ranks.polling), reasons=(why,))


def _at_socket(ranks: RankFacts, cause: Cause) -> Verdict:
    who = _plural(len(ranks.at_socket), "rank")
    why = f"{who} waiting at a socket outside MPI, whose peer is unknown"
    return Verdict(cause=cause, waiting=tuple(ranks.at_socket), reasons=(why,))


def _asleep(ranks: RankFacts, cause: Cause) -> Verdict:
    why = "nothing moved: all of them sleep, and none is known to have woken up between the snapshots"
    odd = gpu_waits.odd_place(ranks.activities, sorted(ranks.activities))
    return ranks.verdict(cause, sorted(odd), sorted(ranks.activities), reasons=(*odd.values(), why))


# -- ranks that all wait in MPI ---------------------------------------------------------------------------


def _still_carried(ranks: RankFacts, cause: Cause) -> Verdict:
    works = dict.fromkeys(f"rank {rank}: {ranks.activities[rank].works}" for rank in ranks.carrying)
    return ranks.verdict(cause, (), ranks.waiting, reasons=(*works, "a long collective, or another thread's"))


def _other_places(ranks: RankFacts, cause: Cause) -> Verdict:
    odd = gpu_waits.odd_place(ranks.activities, ranks.waiting)
    why = "two communicators in two orders; or one, with other sizes or another root at each place"
    verdict = ranks.verdict(cause, sorted(odd), ranks.waiting)
    reasons = (*(odd or ranks.forks).values(), why)
    return replace(verdict, operation=ranks.name_operations(ranks.waiting), reasons=reasons)


def _stuck_or_looping(ranks: RankFacts, cause: Cause) -> Verdict:
    loop = "all of them are in the same collective: stuck, or calling it repeatedly in a Python loop"
    odd = gpu_waits.odd_place(ranks.activities, ranks.waiting)
    return ranks.verdict(cause, sorted(odd), ranks.waiting, reasons=(*odd.values(), loop))


def _went_on(ranks: RankFacts) -> str:
    left = f"{_plural(len(ranks.in_collectives), 'rank')} went on to"
    calls = ranks.name_operations(ranks.in_collectives)
    return f"{left} {calls} while others still exchange messages"


def _partners_may_send(ranks: RankFacts, cause: Cause) -> Verdict:
    why = _went_on(ranks)
    if any(call.startswith("MPI_Wait") for call in ranks.partner_calls):
        why += "; the request may belong to a message or to a nonblocking collective"
    return _all_wait(ranks, cause, ranks.for_partners, why)


def _nobody_sends(ranks: RankFacts, cause: Cause) -> Verdict:
    reasons = ["none of them is sending", _went_on(ranks)]
    if ranks.partner_calls - {"MPI_Recv", "MPI_Mrecv", "MPI_Probe", "MPI_Mprobe"}:
        reasons.insert(1, "a request may belong to a send that no rank receives")
    return ranks.verdict(cause, ranks.for_partners, ranks.waiting, reasons=tuple(reasons))


def _different_collectives(ranks: RankFacts, cause: Cause) -> Verdict:
    finalizing = ranks.doing(Kind.ENDS)
    order = "the ranks are in different collectives, which must be called in the same order"
    gone = "a rank in MPI_Finalize takes part in no other collective"
    verdict = ranks.verdict(cause, finalizing or ranks.minority, ranks.waiting)
    operation = ranks.name_operations(ranks.minority or ranks.waiting)
    return replace(verdict, operation=operation, reasons=(gone if finalizing else order,))


def _same_collective(ranks: RankFacts, cause: Cause) -> Verdict:
    why = "all of them are in the same collective: its root, communicator or sizes may differ between them"
    return _all_wait(ranks, cause, (), why)


_ONE_WAY: Mapping[tuple[Kind, ...], str] = {
    (Kind.RECEIVES,): "every rank receives, and none sends",
    (Kind.SENDS,): "every rank sends, and none receives",
}


def _all_wait(ranks: RankFacts, cause: Cause, blamed: Sequence[int], why: str) -> Verdict:
    still = ("the memory that ranks share does not change",) if ranks.messages is False else ()
    verdict = ranks.verdict(cause, blamed, ranks.waiting)
    operation = verdict.operation or verdict.waits_in
    return replace(verdict, operation=operation, reasons=(why, *still))


RULES = (
    Rule(lambda r: not r.activities, Cause.UNKNOWN, _say("no rank could be read")),
    Rule(lambda r: r.doing(Kind.KERNEL), Cause.KERNEL, _blame(Kind.KERNEL)),
    Rule(lambda r: r.doing(Kind.STOPPED), Cause.STOPPED, _blame(Kind.STOPPED)),
    Rule(
        lambda r: r.ended and (r.waiting or (r.on_gpus and not r.moved)),
        Cause.RANK_ENDED,
        lambda r, cause: r.verdict(cause, r.ended, r.all_waiting),
    ),
    # Something moves.
    Rule(lambda r: r.moved and r.idle_beside_moving, Cause.UNKNOWN, _some_idle),
    Rule(
        lambda r: r.moved,
        Cause.RUNS,
        lambda r, cause: r.verdict(cause, waiting=r.waiting, reasons=(_count_moved(r),)),
    ),
    Rule(lambda r: r.evidence.collectives_move, Cause.RUNS, _say("NCCL counts new collectives")),
    # Ranks wait, and the counts of their collectives name a culprit.
    Rule(_shows(Problem.ORDER), Cause.ORDER, _by_collectives),
    Rule(_shows(Problem.OPERATION, Problem.SIZES), Cause.MISMATCH, _by_collectives),
    Rule(
        lambda r: _has_culprit(r) and r.activities.keys().isdisjoint(r.culprits),
        Cause.RANK_ENDED,
        _by_collectives,
    ),
    Rule(
        lambda r: _has_culprit(r) and _culprits_in_message(r), Cause.MESSAGE_LOST, _culprits_in_another_call
    ),
    Rule(lambda r: _has_culprit(r) and r.culprits_wait, Cause.MISMATCH, _culprits_in_another_call),
    Rule(lambda r: _has_culprit(r) and r.culprits_work, Cause.UNKNOWN, _culprits_at_work),
    Rule(_has_culprit, Cause.HOST_LATE, _by_collectives),
    # Ranks wait for their GPUs.
    Rule(lambda r: r.on_gpus and r.outside and r.messages, Cause.UNKNOWN, _late_with_messages),
    Rule(lambda r: r.on_gpus and r.outside and r.late_may_advance, Cause.UNKNOWN, _late_or_looping),
    Rule(lambda r: r.on_gpus and r.outside and r.late_work, Cause.UNKNOWN, _late_at_work),
    Rule(lambda r: r.on_gpus and r.outside, Cause.HOST_LATE, _late),
    Rule(lambda r: _all_on_gpus(r) and r.evidence.is_long, Cause.DEVICE_BUSY, _by_gpus),
    Rule(_all_on_gpus, Cause.GPU_WAIT, _by_gpus),
    Rule(lambda r: r.on_gpus and not (r.unknown and r.wait_only_for_gpus), Cause.DEVICE_BUSY, _on_gpus),
    Rule(lambda r: r.unknown, Cause.UNKNOWN, _unread),
    # Ranks wait in MPI for ranks outside MPI.
    Rule(lambda r: r.waiting and r.outside and r.messages, Cause.UNKNOWN, _late_with_messages),
    Rule(lambda r: r.waiting and r.outside and r.late_may_advance, Cause.UNKNOWN, _late_or_looping),
    Rule(lambda r: r.waiting and r.outside and r.late_work, Cause.UNKNOWN, _late_at_work),
    Rule(lambda r: r.waiting and r.outside, Cause.HOST_LATE, _late),
    # No rank waits in MPI.
    Rule(lambda r: not r.waiting and r.polling and r.messages is False, Cause.UNKNOWN, _polling),
    Rule(lambda r: not r.waiting and len(r.activities) > 1 and r.at_socket, Cause.UNKNOWN, _at_socket),
    Rule(lambda r: not r.waiting and r.all_asleep, Cause.UNKNOWN, _asleep),
    Rule(lambda r: not r.waiting, Cause.RUNS, _say("no rank waits for another")),
    # All ranks wait in MPI.
    Rule(lambda r: r.messages and len(r.calls) == 1, Cause.RUNS, _say(_MOVE)),
    Rule(lambda r: r.messages, Cause.UNKNOWN, _say(_MOVE)),
    Rule(lambda r: r.carrying, Cause.UNKNOWN, _still_carried),
    Rule(lambda r: r.in_one_collective and r.forks, Cause.ORDER, _other_places),
    Rule(
        lambda r: r.messages is None and r.in_one_collective and r.wait_in_python,
        Cause.UNKNOWN,
        _stuck_or_looping,
    ),
    Rule(
        lambda r: not r.in_collectives,
        Cause.ALL_WAIT,
        lambda r, cause: _all_wait(
            r, cause, (), _ONE_WAY.get(tuple(r.kinds), "all of them wait in MPI for another rank")
        ),
    ),
    Rule(lambda r: r.for_partners and r.may_send, Cause.ALL_WAIT, _partners_may_send),
    Rule(lambda r: r.for_partners, Cause.MESSAGE_LOST, _nobody_sends),
    Rule(
        lambda r: len(r.doing(Kind.ENDS)) == len(r.waiting),
        Cause.FINALIZE,
        lambda r, cause: r.verdict(cause, (), r.waiting),
    ),
    Rule(lambda r: len(r.operations) > 1, Cause.MISMATCH, _different_collectives),
    Rule(lambda r: True, Cause.ALL_WAIT, _same_collective),
)
"""Rules in the order in which they are tried; each may rely on all before it not applying."""


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


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
