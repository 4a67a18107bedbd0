"""Collectives in the lines of logs: which rank the sentences of each source name."""

from __future__ import annotations

import tracemalloc
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


def nccl(rank: int, number: int, operation: str = "AllReduce") -> str:
    return (
        f"n1:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {operation}: opCount {number:x} sendbuff 0x7f "
        f"recvbuff 0x7e count 1024 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x5"
    )


def joins(rank: int) -> str:
    return (
        f"n1:{100 + rank}:{200 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 8 "
        "cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init COMPLETE"
    )


CALLS = 1_000


def test_long_log_of_nccl_names_only_the_rank_that_stopped() -> None:
    calls = 10_000
    lines = [joins(rank) for rank in range(8)]
    lines += [nccl(rank, n) for n in range(calls) for rank in range(8) if (rank, n) != (5, calls - 1)]
    (found,) = findings(lines)
    assert found.ranks == (5,)


@pytest.mark.parametrize("by_rank", [False, True])
def test_long_healthy_log_of_nccl_names_nobody(by_rank: bool) -> None:
    calls = [(n, rank) for n in range(CALLS) for rank in range(8)]
    if by_rank:  # one log after the other
        calls.sort(key=lambda call: call[1])
    assert findings([*map(joins, range(8)), *(nccl(rank, n) for n, rank in calls)]) == []


@pytest.mark.parametrize("by_rank", [False, True])
def test_other_operation_near_the_end_of_a_long_log_is_named(by_rank: bool) -> None:
    calls = [(n, rank) for n in range(CALLS) for rank in range(8)]
    if by_rank:
        calls.sort(key=lambda call: call[1])
    odd = (CALLS - 20, 3)
    lines = (nccl(rank, n, "AllGather" if (n, rank) == odd else "AllReduce") for n, rank in calls)
    (found,) = findings([*map(joins, range(8)), *lines])
    assert found.ranks == (3,)


def test_lines_that_say_nothing_use_nothing_up() -> None:
    chatter = ["step 7 error: none opCount 5"] * 100_000
    (found,) = findings([*chatter, timeout(0), timeout(1), timeout(2, 6)])
    assert found.ranks == (2,)


def test_memory_does_not_grow_with_the_log() -> None:
    def used(calls: int) -> int:
        read = Lines()
        lines = [joins(0), *(nccl(0, n) for n in range(calls))]
        tracemalloc.start()
        for number, line in enumerate(lines):
            read.add("job.log", number, line)
            read.add("job.log", number, f"srun: error: n1: task {number % 8}: Killed")
            read.add("job.log", number, timeout(0, number))
        current, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return current

    assert used(4000) < used(1000) + (1 << 18)  # Python keeps some freed tuples; the lines have 2 MiB


def test_two_ranks_on_one_line_are_two_lines() -> None:
    (found,) = findings([timeout(0), f"{timeout(1)}{timeout(3)} {timeout(2, 6)}"])
    assert (found.ranks, found.says.split(" did not")[0]) == ((2,), "rank 2")


def fingerprint(rank: int, kind: str) -> str:
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, "
        f"TensorShape=[4], TensorDtypes={kind}, TensorDeviceTypes=TensorOptions(dtype=float (default)))"
    )


def test_rank_with_another_dtype_is_named() -> None:
    (found,) = findings([fingerprint(0, "Float"), fingerprint(1, "Float"), fingerprint(2, "Half")])
    assert found.ranks == (2,)
    assert "[4] Half" in found.says


RAS = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllGather operation counts
  {} ranks have launched up to operation 640
  2 ranks have launched up to operation 641
"""
LISTED = "  Rank {0} -- GPU 0 managed by process {0} on node 192.0.2.1\n"


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        (RAS.format(30), (), "AllGather: 30 ranks at 640, 2 ranks at 641 in communicator 0"),
        (RAS.format(2) + LISTED.format(1) + LISTED.format(3), (0, 2), "ranks 0,2 did not call AllGather"),
        ("\n".join(nccl_recordings.ras("late").splitlines()), (5,), "rank 5 did not call AllReduce"),
        ("\n".join(nccl_recordings.ras("mismatch").splitlines()), (3,), "rank 3 called AllGather, where"),
        (RAS.format(30) * 2, (), "asked twice: AllGather: 30 ranks at 640"),
        (RAS.format(30) + RAS.format(30).replace("64", "65"), (), ""),  # it runs
        (nccl_recordings.ras("late") * 2, (5,), "asked twice: rank 5 did not call AllReduce"),
        (nccl_recordings.ras("healthy"), (3,), "asked once: rank 3"),
        (nccl_recordings.ras("dead"), (2,), "asked once: rank 2 did not call"),
        (nccl_recordings.ras("healthy") + nccl_recordings.ras("healthy").replace("3120", "3154"), (), ""),
    ],
)
def test_counts_in_a_posted_answer_of_ras_name_who_is_behind(
    text: str, ranks: tuple[int, ...], says: str
) -> None:
    found = findings(text.splitlines())
    assert [one.ranks for one in found] == ([ranks] if says else [])
    assert all(says in one.says for one in found)
    assert all(("asked once" in one.says) == ("ask RAS again" in one.do) for one in found)


@pytest.mark.parametrize(
    ("calls", "ranks"),
    [
        (["Alltoallv", "Allreduce", "Allreduce", "Allreduce"], [(0,)]),
        (["Bcast", "Bcast", "Barrier"], [(2,)]),
        (["Allreduce"] * 4, []),
        (["Recv", "Barrier", "Barrier"], []),  # who is elsewhere may still come
        (["Bcast\n#9 0x1 in PMPI_Allgatherv", "Bcast", "Bcast"], []),  # one collective within another
    ],
)
def test_ranks_whose_stacks_are_in_different_collectives_are_named(
    calls: list[str], ranks: list[tuple[int, ...]]
) -> None:
    read = Lines()
    for rank, call in enumerate(calls):
        for line in f"#2 0x1 in opal_progress ()\n#7 0x1 in PMPI_{call} () from libmpi.so".splitlines():
            read.add(f"rank{rank}.txt", 1, line, str(rank))
    assert [one.ranks for one in read.findings()] == ranks


@pytest.mark.parametrize(("mode", "culprit"), [("late", 5), ("mismatch", 3), ("dead", 2)])
def test_answer_of_ras_cut_anywhere_blames_no_other_rank(mode: str, culprit: int) -> None:
    text = nccl_recordings.ras(mode)
    for cut in range(0, len(text), 23):
        for answers in (text[:cut], text + text[:cut]):
            blamed = [one.ranks for one in findings(answers.splitlines()) if one.blames]
            assert blamed in ([], [(culprit,)])
