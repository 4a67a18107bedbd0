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
from gpuipc_doctor.fleet import slurm
from gpuipc_doctor.job import selection
from gpuipc_doctor.job.selection import NoSuchJob, Request, SeveralJobs, select
from gpuipc_doctor.stacks import rights
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


@pytest.fixture(autouse=True)
def own_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the pid namespace of the tests for the node's own, also in a container."""
    monkeypatch.setattr(rights, "_FIRST_PIDS", str(Path("/proc/self/ns/pid").readlink()))


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


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of other users: needs root")


@contextmanager
def carrying(job: str, user: int, title: str = "sleep") -> Iterator[int]:
    """The pid of another user's process that has the job's number in its environment."""
    with subprocess.Popen(
        [title, "600"], executable="/usr/bin/sleep", env={"SLURM_JOB_ID": job}, user=user, group=user,
        extra_groups=[],
    ) as process:  # fmt: skip
        try:
            yield process.pid
        finally:
            process.kill()


@AS_ROOT
def test_another_users_process_with_the_jobs_number_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with carrying("990011", 4711) as owners, carrying("990011", 65534):
        with pytest.raises(SeveralJobs, match="users 4711, 65534 have processes with SLURM_JOB_ID=990011"):
            select(Request(slurm="990011"))
        for surely in ("_is_in_group", "_is_started_by_slurm"):
            with monkeypatch.context() as patched:
                patched.setattr(selection, surely, lambda pid, *_: pid == owners)
                assert select(Request(slurm="990011")) == (owners,)


@AS_ROOT
@pytest.mark.parametrize(
    ("said", "user", "blocked"),
    [
        ("4711", "", False),
        ("0\n4711", "", True),  # not of the processes
        ("0", "", True),
        ("999999999999999999999", "", True),
        ("x", "", True),
        ("", "", True),
        (None, "", True),
        (None, "nobody", False),
        ("4711", "nobody", False),
    ],
)
def test_decoy_of_another_user_does_not_block(
    monkeypatch: pytest.MonkeyPatch, said: str | None, user: str, blocked: bool
) -> None:
    """Without a control group of slurmd, squeue names the owner, or the user does, as the message advises."""

    def squeue(*words: str, **_: float) -> str:
        if said is None:
            raise slurm.Refused("squeue: no such file")
        return said

    monkeypatch.setattr(slurm, "printed_by", squeue)
    job = f"99{os.getpid()}"  # cases run beside each other
    with carrying(job, 4711) as owners, carrying(job, 65534) as decoy:
        if blocked:
            with pytest.raises(SeveralJobs, match="name one with --user"):
                select(Request(slurm=job, user=user))
        else:
            assert select(Request(slurm=job, user=user)) == ((decoy if user else owners),)


STEP = "SLURM_JOB_ID=$0 sleep 600 & echo $!; wait"


@AS_ROOT
@pytest.mark.parametrize(
    ("titled", "user", "is_slurms"), [("990012", 0, True), ("990013", 0, False), ("990012", 4711, False)]
)
def test_step_daemon_is_believed_if_it_is_roots(titled: str, user: int, is_slurms: bool) -> None:
    """A user's own job can start a process with another job's number, and a program with any title."""
    with subprocess.Popen(
        [f"slurmstepd: [{titled}.0]", "-c", STEP, "990012"], executable="/bin/sh", text=True, user=user,
        stdout=subprocess.PIPE, start_new_session=True,
    ) as daemon:  # fmt: skip
        assert daemon.stdout
        child = int(daemon.stdout.readline())
        try:
            found = selection._is_started_by_slurm(child, "990012", selection.processes())
        finally:
            os.killpg(daemon.pid, signal.SIGKILL)
    assert found is is_slurms


CHANGES = """
import os, sys
os.setresuid(4711, {saved}, 0)
print(flush=True)
sys.stdin.read()
"""


@AS_ROOT
def test_process_of_several_users_is_of_none() -> None:
    """As between setuid and its end, or a program that runs for another user."""
    with subprocess.Popen(
        [sys.executable, "-c", CHANGES.format(saved=65534)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"SLURM_JOB_ID": "990014"},
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        found = selection._user(process.pid), selection._names_job(process.pid, "990014")
        process.communicate()
    assert found == (None, False)


@AS_ROOT
def test_process_that_changes_its_user_while_it_is_read_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = iter([4711, 65534])
    monkeypatch.setattr(selection, "_user", lambda pid: next(users))
    with carrying("990015", 4711) as pid:
        assert not selection._names_job(pid, "990015")


HIDDEN = """
import os, sys
from gpuipc_doctor.job import selection
os.setgroups([])
os.setresgid(64123, 64123, 64123)
os.setresuid(64123, 64123, 64123)
try:
    selection.select(selection.Request(**eval(sys.argv[1])))
except selection.NoSuchJob as reason:
    print(reason)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount /proc and to become another user")
@pytest.mark.parametrize(
    ("prelude", "wanted", "says"),
    [
        (
            "mount -t proc -o hidepid=2 proc /proc",
            "user='nobody'",
            "hidepid=invisible, which hides other users",
        ),
        (
            "mount -t proc -o hidepid=1 proc /proc",
            "slurm='990042'",
            "hidepid=noaccess, which hides other users",
        ),
        (
            "mount -t proc -o hidepid=2 proc /proc",
            "pids=(1,)",
            "no process 1 in this pid namespace; /proc is",
        ),
        (":", "user='root'", "processes of other users cannot be read; run this as root"),
        ("PID", "slurm='990042'", "a pid namespace of its own (a container), which hides the node's"),
    ],
)
def test_hidden_job_is_not_called_absent(prelude: str, wanted: str, says: str) -> None:
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if prelude == "PID":
        unshare, prelude = [*unshare, "--pid", "--fork", "--mount-proc"], ":"
    program = HIDDEN.replace("eval(sys.argv[1])", f"dict({wanted})")
    ended = subprocess.run(
        [*unshare, "sh", "-c", f'{prelude} && exec "$@"', "sh", sys.executable, "-c", program],
        capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False,
    )  # fmt: skip
    assert says in ended.stdout, ended.stderr


def test_job_that_does_not_exist_is_absent() -> None:
    with pytest.raises(NoSuchJob, match=r"^no process of Slurm job 990043 on this node$"):
        select(Request(slurm="990043"))
