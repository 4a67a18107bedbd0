"""Verdicts on ranks that wait for their GPUs: a busy GPU is no cause, while a rank is elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.collective.call import Call
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.job.gpu_waits import LONG_S, Evidence
from gpuipc_doctor.job.process_facts import STILL
from gpuipc_doctor.job.verdict import judge
from gpuipc_doctor.job.waits import Activity, Kind

STEP = ("<module> (train.py:41)", "step (train.py:21)")
SPINS = Activity(Kind.DEVICE, "step (train.py:21)", STEP, "native stacks")
SLEEPS = Activity(
    Kind.SLEEPS, "build (train.py:5)", ("build (train.py:5)",), f"sleeps in nanosleep{STILL[0]}"
)
MOVES = Activity(Kind.MOVES, "save (train.py:9)")
REDUCES = Activity(Kind.COLLECTIVE, "all_reduce", (*STEP, "torch.distributed.all_reduce (c.py:1)"))
GATHERS = Activity(Kind.COLLECTIVE, "all_gather", (*STEP, "torch.distributed.all_gather (c.py:2)"))


def verdict(
    *activities: Activity, size: int | None = None, **evidence: object
) -> tuple[Cause, tuple[int, ...]]:
    found = judge(dict(enumerate(activities)), size, evidence=Evidence(**evidence))  # type: ignore[arg-type]
    return found.cause, found.blamed


@pytest.mark.parametrize("kind", [Kind.SLEEPS, Kind.COMPUTES])
def test_rank_elsewhere_is_late_and_busy_gpus_are_not_to_blame(kind: Kind) -> None:
    assert verdict(SPINS, SPINS, Activity(kind, "f (a.py:1)"), SPINS) == (Cause.HOST_LATE, (2,))


def test_rank_that_may_advance_is_named_but_not_called_stuck() -> None:
    assert verdict(SPINS, SPINS, Activity(Kind.LOOPS, "f (a.py:1)")) == (Cause.UNKNOWN, (2,))


def test_ranks_that_all_wait_are_open_until_nothing_moved_for_long() -> None:
    assert verdict(SPINS, SPINS, SPINS) == (Cause.GPU_WAIT, ())
    assert verdict(SPINS, SPINS, SPINS, seconds=LONG_S) == (Cause.DEVICE_BUSY, ())
    assert verdict(SPINS, SPINS, SPINS, collectives_move=True)[0] is Cause.RUNS


@pytest.mark.parametrize(
    ("watts", "blamed"),
    [
        ((176, 126, 182, 175), (1,)),
        ((176, 240, 182, 175), (1,)),
        ((176, 170, 182, 175), ()),
        ((176, 126, 125, 175), ()),
        ((100, 126, 182, 240), ()),
    ],
)
def test_one_gpu_with_other_power_runs_another_kernel(
    watts: tuple[float, ...], blamed: tuple[int, ...]
) -> None:
    assert verdict(*[SPINS] * 4, watts=dict(enumerate(watts))) == (Cause.GPU_WAIT, blamed)


def test_gpu_at_rest_runs_no_other_kernel() -> None:
    watts = dict(enumerate((176, 126, 182, 175)))
    assert verdict(*[SPINS] * 4, watts=watts, busy={1: 0}) == (Cause.GPU_WAIT, ())
    assert verdict(*[SPINS] * 4, watts=watts, busy={1: 99}) == (Cause.GPU_WAIT, (1,))


@pytest.mark.parametrize(
    ("culprit", "cause"),
    [
        (Activity(Kind.RECEIVES, "recv"), Cause.MESSAGE_LOST),
        (GATHERS, Cause.MISMATCH),
        (Activity(Kind.SLEEPS, "load (data.py:3)"), Cause.HOST_LATE),
        (Activity(Kind.SLEEPS, "load (data.py:3)", works="gzip (7) uses 98% of a processor"), Cause.UNKNOWN),
    ],
)
def test_culprit_that_waits_itself_is_not_late(culprit: Activity, cause: Cause) -> None:
    calls = tuple(Call(rank=rank, operation="AllReduce", number=21 - (rank == 2)) for rank in range(4))
    assert verdict(REDUCES, REDUCES, culprit, REDUCES, calls=calls) == (cause, (2,))


def test_ranks_that_could_not_be_read_are_not_blamed() -> None:
    found = judge({0: SPINS, 1: Activity(Kind.UNKNOWN, reason="no stack"), 2: SPINS})
    assert (found.cause, found.blamed) == (Cause.UNKNOWN, ())
    assert "rank" in found.reasons[0]


def test_odd_place_is_named_where_all_sleep() -> None:
    backward = replace(SLEEPS, path=("train (a.py:1)", "backward (tensor.py:5)"))
    odd = replace(SLEEPS, path=("train (a.py:1)", "evaluate (a.py:9)"))
    assert verdict(backward, backward, odd, backward) == (Cause.UNKNOWN, (2,))


def test_rank_that_came_by_another_way_is_named() -> None:
    other = Activity(Kind.DEVICE, "step (train.py:21)", ("<module> (train.py:39)", "step (train.py:21)"))
    assert verdict(SPINS, SPINS, other, SPINS) == (Cause.GPU_WAIT, (2,))
    stages = [Activity(Kind.DEVICE, f"f (a.py:{n})", (f"f (a.py:{n})",)) for n in range(4)]
    assert verdict(*stages) == (Cause.GPU_WAIT, ())


def test_counts_of_collectives_name_the_rank_behind_or_in_another_one() -> None:
    calls = [Call(rank=rank, operation="AllReduce", number=21 - (rank == 2)) for rank in range(4)]
    assert verdict(*[SPINS] * 4, calls=tuple(calls)) == (Cause.HOST_LATE, (2,))
    calls[2] = Call(rank=2, operation="AllGather", number=21)
    assert verdict(*[SPINS] * 4, calls=tuple(calls)) == (Cause.MISMATCH, (2,))


def test_few_ranks_of_pytorch_in_another_collective_are_to_blame() -> None:
    assert verdict(REDUCES, REDUCES, GATHERS) == (Cause.MISMATCH, (2,))
    assert verdict(REDUCES, GATHERS) == (Cause.MISMATCH, ())


def test_ranks_that_all_sleep_and_never_woke_up_are_no_pass() -> None:
    assert verdict(SLEEPS, SLEEPS) == (Cause.UNKNOWN, ())
    naps = Activity(Kind.SLEEPS, "load (train.py:7)", (), "sleeps in nanosleep")
    assert verdict(SLEEPS, naps)[0] is Cause.RUNS
    not_known = replace(SLEEPS, reason=f"sleeps{STILL[1]}")
    assert verdict(SLEEPS, not_known) == (Cause.UNKNOWN, ())


def test_two_communicators_that_wait_for_each_other_are_in_two_orders() -> None:
    calls = [
        Call(rank=rank, group=group, operation="AllReduce", number=number)
        for rank in range(3)
        for group, number in (("a", 4 - (rank == 1)), ("b", 3 + (rank == 1)))
    ]
    assert verdict(*[SPINS] * 3, calls=tuple(calls)) == (Cause.ORDER, (1,))
