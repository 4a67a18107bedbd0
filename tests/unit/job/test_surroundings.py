"""Stopped launchers, defunct children, processors that ranks share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gpuipc_doctor.job import job_content, surroundings
from gpuipc_doctor.job.document import Cause, JobReport, Process, Snapshot
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.merging import merge
from gpuipc_doctor.stacks.thread import Thread
from tests.unit.job.test_work import SLEEPS, WAITS, process, thread


def examined(*processes: Process) -> JobReport:
    return examine([Snapshot(at=float(n), host="n1", processes=processes) for n in range(3)], {})


def above(pid: int, state: str, parent: int = 1) -> Process:
    main = Thread(tid=pid, name="mpiexec", state=state)
    return Process(pid=pid, parent=parent, uid=0, program="mpiexec", threads=(main,))


def rank(number: int, stack: tuple[str, ...] = WAITS, parent: int = 5) -> Process:
    return process(number, thread(10 + number, stack, busy=float(stack is WAITS)), parent=parent)


@pytest.mark.parametrize(
    ("processes", "cause", "told"),
    [
        ((above(5, "T"), rank(0), rank(1)), Cause.STOPPED, True),
        ((above(4, "T"), above(5, "S", 4), rank(0), rank(1)), Cause.STOPPED, True),
        ((above(5, "S"), rank(0), rank(1)), Cause.ALL_WAIT, False),
        ((above(5, "T"), rank(0), rank(1, SLEEPS)), Cause.HOST_LATE, True),
        ((above(6, "T"), above(5, "S"), rank(0), rank(1)), Cause.ALL_WAIT, False),  # not above them
    ],
)
def test_launcher_that_is_stopped_is_told(processes: tuple[Process, ...], cause: Cause, told: bool) -> None:
    report = examined(*processes)
    assert report.verdict.cause is cause
    screen = job_content.screen(report, width=80, color=False)
    assert ("is stopped" in screen) == told
    assert merge([report], {}).verdict.cause is cause


def test_defunct_child_is_told_and_one_that_has_just_ended_is_not() -> None:
    late, child = rank(1, SLEEPS), replace(above(30, "Z", 11), program="worker")
    assert "has a defunct child, worker (30)" in examined(rank(0), late, child).verdict.reasons[0]
    looks = [
        (rank(0), late, replace(child, threads=(Thread(tid=30, name="w", state=state),))) for state in "SSZ"
    ]
    report = examine([Snapshot(at=float(n), host="n1", processes=look) for n, look in enumerate(looks)], {})
    assert "defunct" not in " ".join(report.verdict.reasons)


def test_holder_that_is_a_rank_is_named_as_one() -> None:
    late = replace(rank(1, SLEEPS), waits_for="waits for a lock on the file a, held by app (10)")
    assert (
        examined(rank(0), late)
        .verdict.reasons[0]
        .startswith("waits for a lock on the file a, held by rank 0;")
    )


@pytest.mark.parametrize(
    ("cpus", "says"),
    [
        (("0", "0", "0"), ["ranks 0-2 are bound to processor 0"]),
        (("0-1", "0-1", "0-1"), ["ranks 0-2 are bound to processors 0-1"]),
        (("0-1", "0-1", "2"), []),
        (("0", "1", "2"), []),
        (("0-63", "0-63", "0-63"), []),
        (("", "", ""), []),
    ],
)
def test_ranks_on_fewer_processors_than_ranks_are_told(
    cpus: tuple[str, ...], says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert [*surroundings.crowded({n: replace(rank(n), cpus=one) for n, one in enumerate(cpus)})] == says


def test_busy_process_bound_to_a_ranks_processor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "cpu_count", lambda: 1024)
    code = f"import os; os.sched_setaffinity(0, [{allowed[0]}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        ranks = {0: replace(rank(0), cpus=str(allowed[0])), 1: replace(rank(1), cpus="1000")}
        try:
            told = [line for line in surroundings.neighbours(ranks, ()) if f"({other.pid})" in line]
            own = [line for line in surroundings.neighbours(ranks, {other.pid}) if f"({other.pid})" in line]
        finally:
            other.kill()
    assert told
    assert not own
    assert told[0].endswith(f"is bound to processor {allowed[0]} of rank 0")
