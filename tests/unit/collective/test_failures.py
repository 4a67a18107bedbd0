"""Who failed first, by logs: causes, what follows from them, and launchers' words."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuipc_doctor.collective import logs
from gpuipc_doctor.collective.logs import Finding, Lines
from tests.unit.collective.test_logs import TORCHRUN, joins, nccl, timeout

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
LOST = "torch.distributed.DistBackendError: NCCL error in: x.cpp:3690, remote process exited"
RESTART = "[default] Worker group FAILED. 1/3 attempts left; will restart worker group"
STUCK = "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
AGENT = (
    "E1129 09:39:29.5 22206 torch/distributed/elastic/x.py:1002] failed (exitcode: 1) local_rank: 2 (pid: 7)"
)
REACHED = (
    "[rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting"
)
ILLEGAL = "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was"
RAY = (
    "A worker died or was killed while executing a task. Worker IP address: 192.0.2.7 Worker port: 10002 "
    "Worker PID: 4242 Worker exit type: SYSTEM_ERROR Worker exit detail: connection error code 2."
)
RAY_ACTOR = "RayActorError: The actor died\n\tclass_name: Trainer\n\tpid: 5151\n\tip: 192.0.2.9"
RAY_MEMORY = "3 Workers (tasks / actors) killed due to memory pressure (OOM), at node (ID: b, IP: 192.0.2.9)"
LIMIT = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T21:33:40 DUE TO TIME LIMIT ***"
KILLED = "mpirun noticed that process rank 2 with PID 9 on node n1 exited on signal 11 (Segmentation fault)."
HYDRA = "=   RANK 3 PID 77 RUNNING AT n2\n=   KILLED BY SIGNAL: 9 (Killed)"


def row(rank: int, code: int, at: str) -> str:
    said = f"time      : 2026-11-26_21:{at}\n  rank      : {rank} (local_rank: 0)"
    return f"  {said}\n  exitcode  : {code} (pid: 9)"


TABLE = "\n".join(
    ["Failures:", row(3, 1, "33:12"), row(1, -6, "43:41"), "first observed failure", row(0, -6, "43:41")]
)


def read(text: str | Iterable[str]) -> list[Finding]:
    lines = Lines()
    for number, line in enumerate((text if isinstance(text, str) else "\n".join(text)).splitlines(), 1):
        lines.add("job.log", number, line)
    return [*lines.findings()]


def several(line: str, *ranks: int) -> str:
    return "\n".join(line.format(rank=rank) for rank in ranks)


@pytest.mark.parametrize(
    ("lines", "ranks", "says"),
    [
        ([f"[rank3]: {OOM}", *map(timeout, (0, 1, 2))], (3,), "rank 3 failed first: torch.OutOfMemoryError"),
        ([f"3: {OOM}", *(f"{rank}: {LOST}" for rank in (0, 1))], (3,), "OutOfMemory"),  # srun -l
        ([f"[1,3]<stderr>:{OOM}", f"[1,0]<stderr>:{LOST}"], (3,), "OutOfMemory"),
        ([f"[pod/trainer-0/main] [rank3]: {OOM}", f"trainer-1  | [rank0]: {LOST}"], (3,), "OutOfMemory"),
        ([f"2026-11-26T21:33:40.1Z [rank3]: {OOM}", f"[default0]:[rank0]: {LOST}"], (3,), "OutOfMemory"),
        (["[rank1]: Fatal Python error: Segmentation fault", f"[rank0]: {LOST}"], (1,), "Segmentation fault"),
        ([several("[rank{rank}]: " + LOST, 0, 1), TABLE], (3,), "with exit code 1"),  # earlier than the root
        (["[rank3]: TypeError: expected Half", TABLE], (3,), "TypeError"),
        ([timeout(2), "[rank3]: IndexError: 7", TORCHRUN], (3,), "IndexError"),  # rank 2 was aborted
        ([f"[rank3]:[E ProcessGroupNCCL.cpp:1414] {ILLEGAL}", timeout(0), timeout(1)], (3,), "illegal"),
        ([REACHED, "[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier"], (1,), "did not call"),
        ([KILLED], (2,), "rank 2 failed first, on n1, by signal 11 (Segmentation fault)"),
        ([HYDRA, "=   RANK 0 PID 7 RUNNING AT n1"], (3,), "rank 3 failed first, on n2"),
        ([f"[rank4]:[E1126] {STUCK}", *map(timeout, range(4))], (4,), "watchdog got stuck"),
        ([RAY, f"(Trainer pid=1) {timeout(0)}"], (), "pid 4242 on 192.0.2.7 died first (SYSTEM_ERROR)"),
        ([RAY_ACTOR], (), "Ray's actor with pid 5151 on 192.0.2.9"),
        ([RAY_ACTOR.replace("\t", "        ")], (), "Ray's actor with pid 5151 on 192.0.2.9"),
        ([RAY_MEMORY], (), "Ray killed a worker on 192.0.2.9"),
        ([f"[rank1]: {OOM}", RESTART, "step 1"], (1,), "[attempt 1 of 2]"),
        ([f"[rank1]: {OOM}", RESTART, f"[rank1]: {OOM}", RESTART], (1,), "[attempt 1-2 of 3]"),
        (
            [f"[rank1]: {OOM}", *map(timeout, (0, 1, 2)), timeout(3, 6)],
            (3,),
            "rank 3 did not call",
        ),  # rank 1 has survived
    ],
)  # fmt: skip
def test_first_cause_is_named_once(lines: list[str], ranks: tuple[int, ...], says: str) -> None:
    (found,) = read(lines)
    assert found.ranks == ranks
    assert says in found.says
    assert found.blames


@pytest.mark.parametrize(
    "lines",
    [
        [several("[rank{rank}]: FileNotFoundError: config", 0, 1, 2, 3)],  # all by themselves
        [LIMIT, "srun: error: n1: task 0: Terminated", "srun: error: n1: tasks 1-3: Killed"],
        [several("srun: error: n1: task {rank}: Terminated", 0, 1, 2)],
        [
            LIMIT.partition(" DUE")[0],
            "srun: error: n1: task 0: Killed",
            "srun: error: n1: task 1: Terminated",
        ],
        [f"[rank2]: {OOM}"],  # a log of one rank; it may have gone on
        [several("[rank{rank}]: " + LOST, 0, 1, 2)],
        [timeout(0), timeout(1), "srun: error: n1: tasks 0-1: Aborted (core dumped)"],
        ["  rank      : 3", "  exitcode  : 1"],
        ["step 7 error: none", "ValueError: handled"],
        [row(0, -15, "43:41"), row(1, -15, "43:41")],
    ],
)
def test_what_follows_from_others_or_ends_nothing_is_no_cause(lines: list[str]) -> None:
    assert read(lines) == []


def test_first_of_several_logs_is_the_first_by_time() -> None:
    lines = Lines()
    for rank, at in ((2, "[E1021 21:40:00.1 x]"), (5, "[E602 21:30:00.1 x]"), (0, "2026-11-26 21:41:00")):
        error = LOST if rank == 0 else f"RuntimeError: {'odd' * rank}"
        lines.add(f"rank{rank}.log", 1, f"{at} [rank{rank}]: {error}", str(rank))
    assert [found.ranks for found in lines.findings()] == [(5,)]


def test_attempts_in_one_log_are_judged_apart() -> None:
    first = [*map(joins, range(4)), *map(timeout, (0, 1, 3))]
    again = [*map(joins, range(4)), *(timeout(rank, 3) for rank in (0, 1, 2))]
    found = read([*first, *again])
    assert [one.ranks for one in found] == [(2,)]
    assert found[0].says.endswith("[attempt 1 of 2]")


def test_attempts_without_a_line_between_them_are_judged_apart() -> None:
    """Torchrun's line on the restart is not printed by default, its agent's error is."""
    found = read([*map(timeout, (0, 1, 3)), AGENT, *(timeout(rank, 12) for rank in (0, 2, 3)), AGENT])
    assert [one.ranks for one in found] == [(2,), (1,)]
    late = [*map(timeout, (0, 1)), AGENT, timeout(3)]  # of another node
    assert [(one.ranks, "attempt" in one.says) for one in read(late)] == [((2,), False)]


def test_last_rank_of_the_job_is_missing_if_a_communicator_has_it() -> None:
    (found,) = read([*map(joins, range(8)), *map(timeout, range(7))])
    assert found.ranks == (7,)


def test_log_copied_while_the_job_ran_blames_nobody() -> None:
    running = [*map(joins, range(8)), *(nccl(rank, n) for n in range(9) for rank in range(8))][:-2]
    (found,) = read(running)
    assert (found.ranks, found.blames) == ((6, 7), False)
    assert "copy the log again" in found.do
    (found,) = read([*running, timeout(0, 8)])
    assert found.blames


def test_sends_and_receives_of_the_watchdog_are_no_other_operations() -> None:
    assert (
        read([timeout(0, operation="SEND"), timeout(1, operation="RECV"), timeout(2, operation="COALESCED")])
        == []
    )


def test_what_is_beyond_the_limits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_RANKS", 2)
    (found,) = [one for one in read([joins(0), *(nccl(rank, 1) for rank in range(4))]) if not one.ranks]
    assert (found.line, found.blames) == (4, False)
    assert "were not read" in found.says
    monkeypatch.setattr(logs, "MOST_ATTEMPTS", 2)
    assert any("more than 2 attempts" in one.says for one in read([RESTART] * 3))
