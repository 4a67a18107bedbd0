"""Collectives in the lines of logs: which rank the sentences of each source name."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuipc_doctor.collective.logs import Finding, Lines
from tests import nccl_recordings

WATCHDOG = (nccl_recordings.FIXTURES / "watchdog-mismatch.log").read_text().splitlines()


def findings(lines: Iterable[str], ranks: Iterable[int] = ()) -> list[Finding]:
    read = Lines()
    for number, line in enumerate(lines, 1):
        read.add("job.log", number, line)
    return [*read.findings(ranks)]


def test_rank_whose_optype_differs_is_named_with_its_line() -> None:
    (found,) = findings(WATCHDOG)
    assert found.ranks == (3,)
    assert found.says.startswith(
        "rank 3 called ALLGATHER, where ranks 0-2,4-7 called ALLREDUCE (operation 21)"
    )
    assert found.text.startswith("[rank3]:")
    assert "OpType=ALLGATHER" in found.text


def test_rank_without_a_line_is_named_beside_the_one_that_differs() -> None:
    found = findings(line for line in WATCHDOG if not line.startswith("[rank5]"))
    assert [one.ranks for one in found] == [(3,), (5,)]
    assert "there is no such line of rank 5" in found[1].says


def timeout(rank: int, number: int = 7, operation: str = "ALLREDUCE", numel: int = 64) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=600000) "
        "ran for 600029 milliseconds before timing out."
    )


def enqueued(rank: int, last: int, done: int) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure "
        f"detected by watchdog at work sequence id: {last} PG status: last enqueued work: {last}, "
        f"last completed work: {done}"
    )


@pytest.mark.parametrize(
    ("lines", "ranks", "words"),
    [
        ([timeout(0), timeout(1), timeout(2, 6)], (2,), "did not call ALLREDUCE (operation 7)"),
        ([timeout(0), timeout(1), timeout(2, numel=32)], (2,), "ALLREDUCE of 32 to 32 elements"),
        (
            [timeout(0), enqueued(0, 7, 6), timeout(1), enqueued(1, 7, 6), enqueued(2, 6, 6)],
            (2,),
            "operation 6",
        ),
        ([timeout(0), timeout(1), timeout(3)], (2,), "no such line of rank 2"),
    ],
)
def test_rank_behind_smaller_or_missing_is_named(
    lines: list[str], ranks: tuple[int, ...], words: str
) -> None:
    (found,) = findings(lines)
    assert found.ranks == ranks
    assert words in found.says


def test_ranks_of_one_operation_are_named_by_nothing() -> None:
    assert findings([timeout(0), timeout(1), timeout(2)]) == []


def test_log_of_one_rank_says_nothing_of_the_others() -> None:
    assert findings([timeout(7)]) == []


def test_logs_of_ranks_without_a_line_are_missing() -> None:
    (found,) = findings([timeout(0), timeout(1)], ranks=range(3))
    assert found.ranks == (2,)


TORCHRUN = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-26_21:33:41
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 100)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_21:33:40
  host      : n1
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 102)
============================================================"""

NCCL = """\
n1:10:20 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 2 cudaDev 0 commId 0xfeed01 - Init COMPLETE
n1:11:21 [1] NCCL INFO ncclCommInitRank comm 0xb0 rank 1 nranks 2 cudaDev 1 commId 0xfeed01 - Init COMPLETE
n1:10:20 [0] NCCL INFO AllReduce: opCount 1a recvbuff 0x7f count 64 datatype 7 comm 0xa0 [nranks=2]
n1:11:21 [1] NCCL INFO AllReduce: opCount 19 recvbuff 0x7f count 64 datatype 7 comm 0xb0 [nranks=2]"""

ABORT = "Abort(69771279) on node {0} (rank {0} in comm 0): Fatal error in PMPI_Recv: Message truncated"

GLOO = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, TensorShape=[10], TensorDtypes=Float), "
    "but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE)."
)


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        (TORCHRUN, (2,), "rank 2 failed first, with exit code -9 (SIGKILL: perhaps out of memory)"),
        (NCCL, (1,), "rank 1 did not call AllReduce (operation 26) of communicator feed01"),
        ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms", (1, 3), "monitored_barrier"),
        (
            "\n".join(ABORT.format(rank) for rank in (2, 0)),
            (2,),
            "rank 2 aborted first, in MPI_Recv",
        ),
        (
            "srun: error: n3: task 5: Killed\nsrun: error: n1: tasks 0-4: Exited",
            (5,),
            "rank 5 failed first: Killed",
        ),
    ],
)
def test_other_sources_name_the_rank(text: str, ranks: tuple[int, ...], words: str) -> None:
    (found,) = findings(text.splitlines())
    assert found.ranks == ranks
    assert words in found.says


def test_gloo_names_the_two_operations() -> None:
    (found,) = findings([GLOO])
    assert "BROADCAST" in found.says
    assert "ALLREDUCE" in found.says


@pytest.mark.parametrize("cut", range(5, 240, 13))
def test_line_cut_anywhere_is_read_or_left_out(cut: int) -> None:
    findings([timeout(0), timeout(1)[:cut], TORCHRUN[:cut]])
