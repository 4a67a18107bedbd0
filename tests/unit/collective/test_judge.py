"""The judge of collectives: who is missing, behind or in another operation, on hand-made calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuipc_doctor.collective.call import Call, State
from gpuipc_doctor.collective.judge import Judgement, Problem, judge


def call(rank: int, number: int = 21, operation: str = "ALLREDUCE", **more: str) -> Call:
    return Call(rank=rank, number=number, operation=operation, **more)  # type: ignore[arg-type]


def only(calls: Sequence[Call], members: range = range(4)) -> Judgement:
    (judgement,) = judge(calls, {"": members})
    return judgement


def test_rank_in_another_operation_is_the_culprit_and_not_the_majority() -> None:
    found = only([call(0), call(1), call(2), call(3, operation="ALLGATHER")])
    assert (found.problem, found.culprits, found.waiting) == (Problem.OPERATION, (3,), (0, 1, 2))
    assert found.sentence == "rank 3 called ALLGATHER, where ranks 0-2 called ALLREDUCE (operation 21)"


def test_rank_behind_is_the_culprit_with_its_last_place() -> None:
    found = only([call(0), call(1), call(2, 20, where="load (train.py:7)"), call(3)])
    assert (found.problem, found.culprits, found.waiting) == (Problem.BEHIND, (2,), (0, 1, 3))
    assert found.sentence == (
        "rank 2 did not call ALLREDUCE (operation 21), in which ranks 0-1,3 wait; "
        "last seen in ALLREDUCE 20, at load (train.py:7)"
    )


def test_sizes_differ_only_where_they_must_be_equal() -> None:
    sizes = ["1048576", "1048576", "1048577", "1048576"]
    found = only([call(rank, sizes=size) for rank, size in enumerate(sizes)])
    assert (found.problem, found.culprits) == (Problem.SIZES, (2,))
    assert found.sentence == (
        "rank 2 called ALLREDUCE of 1048577, where ranks 0-1,3 called ALLREDUCE of 1048576 (operation 21)"
    )
    uneven = [call(rank, operation="ALLGATHER", sizes=size) for rank, size in enumerate(sizes)]
    assert only(uneven).problem is Problem.SAME


def test_all_in_the_same_operation_is_no_ranks_fault() -> None:
    found = only([call(rank) for rank in range(4)])
    assert (found.problem, found.culprits) == (Problem.SAME, ())
    assert "look below it" in found.sentence


def test_completed_operation_of_all_ranks_is_no_conclusion() -> None:
    assert judge([call(rank, state=State.DONE) for rank in range(4)]) == ()


def test_group_that_waits_for_a_rank_that_waits_elsewhere_is_a_consequence() -> None:
    """Rank 1 waits in the group "tp" for rank 0, and ranks 2 and 3 wait for rank 1 in "dp"."""
    members = {"tp": (0, 1), "dp": (1, 2, 3)}
    calls = [call(1, 5, group="tp"), call(0, 4, group="tp")]
    calls += [call(1, 8, group="dp"), call(2, 9, group="dp"), call(3, 9, group="dp")]
    (found,) = judge(calls, members)
    assert (found.group, found.culprits) == ("tp", (0,))


def test_two_groups_that_wait_for_each_other_were_called_in_another_order() -> None:
    calls = [call(0, 5, group="a"), call(1, 4, group="a"), call(0, 7, group="b"), call(1, 8, group="b")]
    (found,) = judge(calls)
    assert found.problem is Problem.ORDER
    assert "ALLREDUCE of b" in found.sentence


def test_call_that_all_have_completed_waits_for_nobody() -> None:
    """Dumps of different moments of a healthy job."""
    done = [Call(rank=rank, operation="all_reduce", number=9 - rank, state=State.DONE) for rank in range(3)]
    assert judge(done, {"": range(4)}) == ()
    odd = Call(rank=2, operation="all_gather", number=9, state=State.DONE)
    assert judge([*done[:2], odd]) == ()
    waits = Call(rank=0, operation="all_reduce", number=10)
    assert judge([*done, waits]) == ()  # operation 9 has ended: ranks 1 and 2 have called it since
    same = [replace(call, number=9) for call in done]
    assert [found.culprits for found in judge([*same, waits])] == [(1, 2)]
    sent = [replace(call, operation="broadcast") for call in done]
    assert [found.culprits for found in judge([*sent, waits])] == [(1, 2)]  # ends before the others call it
