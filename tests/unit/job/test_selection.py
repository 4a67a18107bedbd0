"""The processes of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.job import selection
from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs, select
from tests.waiting import until

LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(["sleep", "600"], env={**os.environ, "PMI_RANK": str(n), "SLURM_JOB_ID": sys.argv[1]})
    for n in (0, 1)
]
print(*(rank.pid for rank in ranks), flush=True)
ranks[0].wait()
"""


@contextmanager
def launched(place: Path, job: str, **environment: str) -> Iterator[tuple[int, set[int]]]:
    """A process called mpirun with two ranks: its pid and theirs."""
    program = place / "mpirun"
    if not program.exists():
        program.symlink_to(sys.executable)
    with subprocess.Popen(
        [program, "-c", LAUNCHER, job], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, **environment},
    ) as launcher:  # fmt: skip
        try:
            assert launcher.stdout
            yield launcher.pid, {int(pid) for pid in launcher.stdout.readline().split()}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)


def test_job_is_all_processes_of_its_launcher_given_any_pid(tmp_path: Path) -> None:
    with launched(tmp_path, "990001") as (launcher, ranks):
        for pid in (launcher, *ranks):
            assert ranks <= set(select(Request(pids=(pid,))))


def test_two_jobs_with_equal_rank_numbers_are_not_merged(tmp_path: Path) -> None:
    both = launched(tmp_path, "990006"), launched(tmp_path, "990007")
    with both[0] as (first, _), both[1] as (second, _), pytest.raises(SeveralJobs) as refused:
        select(Request(pids=(first, second)))
    assert "name one with --pid" in str(refused.value)
    assert f"{first} (mpirun, 2 ranks)" in str(refused.value)


@contextmanager
def meeting(port: int) -> Iterator[list[int]]:
    """The pids of two ranks of PyTorch that a shell started."""
    ranks = [
        subprocess.Popen(
            ["sleep", "600"],
            env={**os.environ, "RANK": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for n in (0, 1)
    ]
    try:
        yield [rank.pid for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_ranks_without_a_launcher_are_a_job_by_the_address_where_they_meet() -> None:
    with meeting(29111) as first, meeting(29222) as second:
        assert list(select(Request(pids=(first[1],)))) == sorted(first)
        with pytest.raises(SeveralJobs) as refused:
            select(Request(pids=(first[0], second[0])))
    assert sorted(refused.value.jobs) == sorted([tuple(sorted(first)), tuple(sorted(second))])


def test_ended_rank_among_several_is_left_out() -> None:
    """A rank of a shell's job that has ended is a zombie until the shell waits for it."""
    with meeting(29333) as (first, second), subprocess.Popen(["true"]) as ended:
        until("it is a zombie", lambda: Path(f"/proc/{ended.pid}/stat").read_text().split()[2] == "Z")
        assert list(select(Request(pids=(ended.pid, first)))) == sorted((first, second))
        with pytest.raises(NoSuchJob, match="has ended"):
            select(Request(pids=(ended.pid,)))


def test_job_of_slurm_is_found_by_its_number(tmp_path: Path) -> None:
    with launched(tmp_path, "990001") as (_, ranks), launched(tmp_path, "990002"):
        assert ranks <= set(select(Request(slurm="990001")))
        with pytest.raises(NoSuchJob):
            select(Request(slurm="990003"))


def test_ranks_of_another_node_on_the_same_machine_are_ignored(tmp_path: Path) -> None:
    with launched(tmp_path, "990005", SLURMD_NODENAME="n9"), pytest.raises(NoSuchJob):
        select(Request(slurm="990005"))


def test_user_without_a_job_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_uid", lambda user: 54321)
    with pytest.raises(NoSuchJob, match="has no rank and no process"):
        select(Request(user="somebody"))


def test_slurm_job_with_unknown_nodes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuipc_doctor.job.nodes.of_slurm_job", lambda job: [])
    monkeypatch.setattr("gpuipc_doctor.job.watcher.SNAPSHOTS", 1)
    monkeypatch.setattr("gpuipc_doctor.job.watcher.MORE", 0)
    with launched(tmp_path, "990008"):
        ended = CliRunner().invoke(cli, ["job", "--slurm", "990008"])
    assert "other nodes of the job: squeue does not list them" in " ".join(ended.output.split())
