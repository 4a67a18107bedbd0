"""Six PyTorch jobs recorded on eight H200s: the verdicts that an expert gives (tests/nccl_recordings.py)."""

from __future__ import annotations

import pytest

from gpuipc_doctor.collective import ras_counts
from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.document import Cause, JobReport
from gpuipc_doctor.job.examination import examine
from tests import nccl_recordings
from tests.nccl_recordings import SIZE

ALL = tuple(range(SIZE))


def examined(mode: str, *, asks_ras: bool = False, gpus: bool = True, later: str = "") -> JobReport:
    """The report on a recording. ``later``: RAS's second answer; by default, it is the first one again."""
    snapshots = nccl_recordings.snapshots(mode, gpus=gpus)
    if not asks_ras:
        return examine(snapshots, {})
    first = ras_counts.of_text(nccl_recordings.ras(mode))
    stable, moves = ras_counts.unchanged(first, ras_counts.of_text(later or nccl_recordings.ras(mode)))
    ranks = {process.pid: process.rank for process in snapshots[0].processes if process.rank is not None}
    return examine(snapshots, {}, tuple(stable.calls(ranks, SIZE)), collectives_move=moves)


def others(*ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in ALL if rank not in ranks)


@pytest.mark.parametrize("asks_ras", [False, True])
def test_late_rank_is_blamed_with_its_frame_and_not_those_that_wait(asks_ras: bool) -> None:
    report = examined("late", asks_ras=asks_ras)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.HOST_LATE, (5,))
    assert report.verdict.waiting == others(5)
    assert report.verdict.operation == "build_index (train.py:5)"
    assert job_content.sentence(report).startswith(
        "rank 5 sleeps in build_index (train.py:5); ranks 0-4,6-7 wait"
    )
    if asks_ras:
        assert report.verdict.reasons[0].startswith("rank 5 did not call AllReduce (operation 21)")


@pytest.mark.parametrize("asks_ras", [False, True])
def test_dead_rank_is_blamed(asks_ras: bool) -> None:
    report = examined("dead", asks_ras=asks_ras)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.RANK_ENDED, (2,))
    assert report.verdict.waiting == others(2)


def test_mismatch_is_told_by_ras() -> None:
    report = examined("mismatch", asks_ras=True)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.MISMATCH, (3,))
    assert report.verdict.waiting == others(3)
    assert "rank 3 called AllGather, where ranks 0-2,4-7 called AllReduce" in report.verdict.reasons[0]


def test_mismatch_without_ras_is_open_and_names_the_rank_that_differs() -> None:
    report = examined("mismatch")
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.GPU_WAIT, (3,))
    assert job_content.status(report) == "ERROR"
    text = job_content.screen(report, width=100, color=False)
    assert "124 W" in text
    assert "--ras" in text


def test_absent_rank_is_blamed_and_the_job_does_not_pass() -> None:
    report = examined("absent")
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.HOST_LATE, (4,))
    assert report.verdict.operation == "build_index (train.py:5)"
    assert report.verdict.waits_in == "init_process_group"
    assert report.verdict.waiting == others(4)


@pytest.mark.parametrize("asks_ras", [False, True])
def test_kernel_before_the_collective_is_told_by_the_power_of_its_gpu(asks_ras: bool) -> None:
    report = examined("kernel", asks_ras=asks_ras)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.GPU_WAIT, (1,))
    assert "rank 1's GPU draws 126 W, the others' 176 to 183 W" in " ".join(report.verdict.reasons)
    assert ("look below it" in " ".join(report.verdict.reasons)) is asks_ras


def test_advice_to_ask_ras_is_left_out_if_ras_was_asked() -> None:
    for asks_ras in (False, True):
        text = job_content.screen(examined("kernel", asks_ras=asks_ras), width=100, color=False)
        assert ("--ras" in text) is not asks_ras


def test_healthy_job_runs_if_ras_counts_on() -> None:
    later = nccl_recordings.ras("healthy").replace("31201", "31741").replace("31200", "31740")
    assert examined("healthy", asks_ras=True, later=later).verdict.cause is Cause.RUNS


@pytest.mark.parametrize("gpus", [False, True])
def test_healthy_job_is_not_called_stuck_if_nothing_else_moves(gpus: bool) -> None:
    """Its recording has one snapshot; four equal ones are a stuck job's."""
    assert examined("healthy", gpus=gpus).verdict.cause.is_open


@pytest.mark.parametrize("mode", ["late", "dead", "mismatch", "absent", "kernel"])
@pytest.mark.parametrize("asks_ras", [False, True])
def test_stuck_job_never_passes_without_loads_of_gpus(mode: str, asks_ras: bool) -> None:
    if mode == "absent":
        asks_ras = False  # its RAS did not listen yet
    report = examined(mode, asks_ras=asks_ras, gpus=False)
    assert report.verdict.cause is not Cause.RUNS


@pytest.mark.parametrize("mode", nccl_recordings.MODES)
def test_screen_has_at_most_25_lines(mode: str) -> None:
    assert len(job_content.screen(examined(mode), width=80, color=False).splitlines()) <= 25


def test_invalid_ranks_in_the_answer_of_ras_are_left_out_and_said() -> None:
    answer = ras_counts.of_text(nccl_recordings.ras("dead"))
    (communicator,) = answer.communicators
    assert (communicator.size, communicator.missing) == (8, {2}) or communicator.missing == {2}
    assert "invalid ranks" in answer.remarks[0]
