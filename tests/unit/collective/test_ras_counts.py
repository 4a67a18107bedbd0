"""NCCL's RAS: its text as recorded, and its JSON, as calls of ranks."""

from __future__ import annotations

import json

import pytest

from gpuipc_doctor.collective import ras_counts
from gpuipc_doctor.collective.judge import Problem, judge
from tests import nccl_recordings

PIDS = {100 + rank: rank for rank in range(8)}


@pytest.mark.parametrize(
    ("mode", "problem", "culprits"),
    [
        ("late", Problem.BEHIND, (5,)),
        ("mismatch", Problem.OPERATION, (3,)),
        ("dead", Problem.MISSING, (2,)),
        ("kernel", Problem.SAME, ()),
    ],
)
def test_recorded_answer_names_the_rank(mode: str, problem: Problem, culprits: tuple[int, ...]) -> None:
    calls = [*ras_counts.of_text(nccl_recordings.ras(mode)).calls(PIDS, 8)]
    members = {call.group: range(8) for call in calls if call.group == "communicator 0"}
    first = judge(calls, members)[0]
    assert (first.problem, first.culprits) == (problem, culprits)


def test_counts_that_change_between_two_answers_show_movement() -> None:
    text = nccl_recordings.ras("healthy")
    first, later = ras_counts.of_text(text), ras_counts.of_text(text.replace("3120", "3154"))
    same, moves = ras_counts.unchanged(first, later)
    assert moves
    assert [communicator.name for communicator in same.communicators] == ["communicator 1"]
    assert ras_counts.unchanged(first, first) == (first, False)


LISTED = """\
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  {usual} ranks have launched up to operation 6650
  {few} ranks have launched up to operation 6649
{ranks}"""
"""As in NCCL's manual: a block's count belongs to the ranks listed under it."""


@pytest.mark.parametrize("behind", [(2,), (0, 5), (1, 2, 3)])
def test_count_of_a_block_belongs_to_the_ranks_listed_under_it(behind: tuple[int, ...]) -> None:
    lines = (f"  Rank {n} -- GPU {n} managed by process {100 + n} on node 10.0.0.1\n" for n in behind)
    text = LISTED.format(usual=8 - len(behind), few=len(behind), ranks="".join(lines))
    answer = ras_counts.of_text(text)
    counts = answer.communicators[0].counts["collective"]
    assert [rank for rank, count in sorted(counts.items()) if count == 6649] == [*behind]
    (found,) = judge(answer.calls(PIDS, 8))
    assert (found.problem, found.culprits) == (Problem.BEHIND, behind)


def test_cut_answer_names_no_other_rank() -> None:
    line = "  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1\n"
    text = LISTED.format(usual=7, few=1, ranks=line)
    for end in range(len(text)):
        calls = ras_counts.of_text(text[:end]).calls(PIDS, 8)
        assert {rank for found in judge(calls) for rank in found.culprits} <= {2}, text[:end]


def test_rank_that_cannot_be_placed_is_not_printed() -> None:
    text = LISTED.format(usual=7, few=1, ranks="  Rank 2 -- GPU 2 managed by process 7 on node 10.0.0.1\n")
    (found,) = judge(ras_counts.of_text(text).calls({}, None))
    assert "-" not in found.sentence.partition(" did not call")[0]


def json_answer(*counts: int, missing: int = 0) -> str:
    ranks = [
        {"rank": n, "host": "n1", "pid": 100 + n, "status": {}, "collective_counts": {"AllReduce": count}}
        for n, count in enumerate(counts)
    ]
    status = {"unresponsive": True, "considered_dead": True}
    gone = [{"rank": len(ranks) + n, "host": "n1", "pid": 9, "status": status} for n in range(missing)]
    return json.dumps({"communicators": [{"ranks": ranks, "missing_ranks": gone}]})


def test_communicator_without_any_call_says_nothing() -> None:
    assert [*ras_counts.of_json(json_answer(0, 0, 0)).calls(PIDS, 3)] == []


def test_json_names_half_of_the_ranks_too() -> None:
    """The text does not, if as many ranks differ as agree."""
    calls = [*ras_counts.of_json(json_answer(6, 6, 5, 5)).calls(PIDS, 4)]
    (found,) = judge(calls)
    assert (found.problem, found.culprits, found.number) == (Problem.BEHIND, (2, 3), 6)


def test_order_of_two_communicators_is_seen_in_their_counts() -> None:
    """Rank 0 has called the second communicator, the others the first; kinds without calls say nothing."""

    def communicator(*counts: int) -> dict[str, object]:
        return {
            "ranks": [
                {
                    "rank": n, "host": "n1", "pid": 100 + n, "status": {},
                    "collective_counts": {"AllGather": 0, "AllReduce": count},
                }
                for n, count in enumerate(counts)
            ]
        }  # fmt: skip

    text = json.dumps({"communicators": [communicator(5, 6, 6, 6), communicator(8, 7, 7, 7)]})
    (found,) = judge(ras_counts.of_json(text).calls(PIDS, 4))
    assert (found.problem, found.culprits, found.waiting) == (Problem.ORDER, (0,), (1, 2, 3))
    assert found.sentence == (
        "ranks 1-3 wait in AllReduce of communicator 0 for rank 0, "
        "which waits in AllReduce of communicator 1 for them"
    )


def test_missing_rank_of_the_json_is_missing() -> None:
    answer = ras_counts.of_json(json_answer(6, 6, 6, missing=1))
    (found,) = judge(answer.calls(PIDS, 4))
    assert (found.problem, found.culprits) == (Problem.MISSING, (3,))
    assert answer.errors == ("communicator 0: rank 3 on n1, pid 9 is considered dead",)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"communicators": [7]}', '{"communicators": [{"ranks": [{}]}]}']
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ras_counts.of_json(text)


@pytest.mark.parametrize("cut", [100, 500, 800, 1000, 1200])
def test_text_cut_in_the_middle_names_nobody_wrongly(cut: int) -> None:
    calls = [*ras_counts.of_text(nccl_recordings.ras("late")[:cut]).calls(PIDS, 8)]
    assert {rank for found in judge(calls) for rank in found.culprits} <= {5}
