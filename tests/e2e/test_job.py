"""Real jobs that hang under real MPI libraries, examined by `gpuipc-doctor job`, which stops none of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec import json

from gpuipc_doctor.job.document import Cause, JobReport
from gpuipc_doctor.stacks.sampling import shutil as sampling_shutil
from gpuipc_doctor.supervise import tree
from tests.e2e.conftest import RESTING, Command, full
from tests.e2e.test_ranks import PREFIXES, launch
from tests.waiting import until

PLANTED = Path(__file__).parent.parent / "fixtures/jobs/planted.py"
DEVICE_RANKS = PLANTED.with_name("device_ranks.py")

SECRET = "correct-horse-battery-staple"


PlantedJob = tuple[str, str, int, Cause, tuple[int, ...]]

OUTSIDERS: tuple[PlantedJob, ...] = (
    ("mpich50", "c:halo", 4, Cause.MESSAGE_LOST, (3,)),
    ("impi", "c:to-itself", 3, Cause.ALL_WAIT, (1,)),
    ("openmpi", "c:one-finalizes", 3, Cause.MISMATCH, (2,)),
    ("mpich43", "c:one-goes-on", 3, Cause.UNKNOWN, (0,)),
    ("mpich43", "c:one-counts", 3, Cause.UNKNOWN, (0,)),
    ("mpich50", "one-adds-up", 3, Cause.UNKNOWN, (0,)),
    ("openmpi", "slow-worker", 2, Cause.RUNS, ()),
    ("mpich50", "c:two-go-on", 4, Cause.UNKNOWN, ()),
    ("openmpi", "send-to-each-other", 4, Cause.ALL_WAIT, (0, 1)),
    ("mpich43", "lock-of-another", 3, Cause.ALL_WAIT, (2,)),
    ("mpich43", "lost-object", 3, Cause.MESSAGE_LOST, (1,)),
    ("mpich50", "one-ended", 3, Cause.RANK_ENDED, (1,)),
    ("openmpi", "checkpoint", 3, Cause.RUNS, ()),
    ("openmpi", "slow-pipe", 3, Cause.RUNS, ()),
)
"""Faults planted by a person who had not seen the code."""

PLANTED_JOBS: tuple[PlantedJob, ...] = (
    ("mpich43", "mismatch", 3, Cause.MISMATCH, ()),
    ("mpich50", "child-computes", 3, Cause.UNKNOWN, (0,)),
)
"""MPI library, kind, ranks, and the expected cause and ranks."""

OTHERS: tuple[PlantedJob, ...] = (
    ("impi", "lost-message", 3, Cause.MESSAGE_LOST, (1,)),
    ("openmpi", "one-late", 4, Cause.HOST_LATE, (3,)),
    ("mpich50", "one-computes", 3, Cause.HOST_LATE, (0,)),
    ("openmpi", "one-in-c", 3, Cause.HOST_LATE, (1,)),
    ("impi", "cycle", 3, Cause.ALL_WAIT, ()),
    ("mpich50", "late-in-finalize", 3, Cause.HOST_LATE, (0,)),
    ("mpich43", "iterate", 3, Cause.RUNS, ()),
    ("openmpi", "compute", 2, Cause.RUNS, ()),
    ("openmpi", "descriptors", 2, Cause.RUNS, ()),  # in MPI_Allreduce at every sample
    ("mpich50", "most-late", 16, Cause.HOST_LATE, tuple(range(1, 16))),
    ("openmpi", "c:one-computes", 3, Cause.HOST_LATE, (0,)),
    ("mpich43", "c:lost-message", 3, Cause.MESSAGE_LOST, (1,)),
    ("openmpi", "c:vfork", 3, Cause.KERNEL, (1,)),
    ("impi", "only-reduce", 3, Cause.RUNS, ()),
    ("openmpi", "child-sleeps", 3, Cause.HOST_LATE, (0,)),
    ("openmpi", "compresses", 3, Cause.UNKNOWN, (0,)),
    ("mpich50", "downloads", 3, Cause.UNKNOWN, (0,)),
    *OUTSIDERS,
)
"""Marked ``full``: other jobs show the same cause, and sixteen ranks that poll leave two cores no time."""


@contextmanager
def job(library: str, kind: str, ranks: int, log: Path, **environment: str) -> Iterator[int]:
    """A job with a planted fault; yields the launcher's pid once every rank has reached the fault.

    A ``kind`` that begins with ``c:`` is one of the C program; ``device:1024`` sends 1024 bytes of device
    memory.
    """
    started = launch(library)
    command = [word.format(ranks=ranks) for word in started.command]
    program = [sys.executable, str(PLANTED)]
    if kind.startswith("device:"):
        program, kind = [sys.executable, str(DEVICE_RANKS)], kind.removeprefix("device:")
    if kind.startswith("c:"):
        program, kind = [compiled(library, log.parent)], kind.removeprefix("c:")
    with log.open("w") as output:
        launcher = subprocess.Popen(
            [*command, *program, kind, f"--password={SECRET}"],
            env={**os.environ, **started.env, **environment, "DATABASE_PASSWORD": SECRET},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(f"{ranks} ranks are ready", lambda: log.read_text().count("ready") == ranks)
        yield launcher.pid
    finally:
        processes = tree.descendants(launcher.pid)
        shared = {path for process in processes for path in shared_memory(process.pid)}
        for pid in (launcher.pid, *(process.pid for process in processes)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()
        until(
            "the ranks have ended", lambda: not [p for p in processes if Path(f"/proc/{p.pid}/fd").exists()]
        )
        for path in shared:  # killed ranks leave it
            path.unlink(missing_ok=True)


def compiled(library: str, place: Path) -> str:
    """The C program of planted faults, compiled for this MPI."""
    program, prefix = place / "planted", PREFIXES / library
    lib = min((prefix / "lib").glob("libmpi.so.[0-9]*[0-9]"))
    headers = prefix if (prefix / "include").exists() else PREFIXES / "mpich43"  # Intel MPI has MPICH's ABI
    subprocess.run(
        ["gcc", "-O2", "-o", program, PLANTED.with_suffix(".c"), f"-I{headers}/include", lib,
         f"-Wl,-rpath,{prefix}/lib"],
        check=True,
    )  # fmt: skip
    return str(program)


def shared_memory(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has mapped."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {Path(line.split(maxsplit=5)[-1]) for line in lines if " /dev/shm/" in line}
    return set()


@contextmanager
def nothing_is_stopped(launcher: int) -> Iterator[None]:
    """Assert continuously that no process below the launcher is traced or stopped."""
    broken, over = [], threading.Event()

    def watch() -> None:
        while not over.is_set():
            for process in tree.descendants(launcher):
                with suppress(OSError):
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    if "TracerPid:\t0\n" not in status or process.state in "Tt":
                        broken.append(status)
            over.wait(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert not broken


def examined(doctor: Command, launcher: int) -> JobReport:
    ended = doctor("job", "--pid", str(launcher), "--json")
    assert SECRET not in ended.stdout
    report = json.decode(ended.stdout, type=JobReport)
    assert ended.returncode == {Cause.RUNS: 0, Cause.UNKNOWN: 11}.get(report.verdict.cause, 12)
    return report


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("library", "kind", "ranks", "cause", "blamed"),
    [*PLANTED_JOBS, *(full(*row) for row in OTHERS)],
)
def test_planted_fault_is_found_without_stopping_the_job(
    doctor: Command,
    tmp_path: Path,
    library: str,
    kind: str,
    ranks: int,
    cause: Cause,
    blamed: tuple[int, ...],
) -> None:
    with job(library, kind, ranks, tmp_path / "log") as launcher, nothing_is_stopped(launcher):
        report = examined(doctor, launcher)
    assert (report.verdict.cause, report.verdict.blamed) == (cause, blamed), report


@pytest.mark.full
@pytest.mark.mpi
def test_ranks_that_sleep_while_waiting_are_seen_to_wait(doctor: Command, tmp_path: Path) -> None:
    with job("openmpi", "one-late", 3, tmp_path / "log", **RESTING, I_MPI_OFFLOAD="0") as launcher:
        report = examined(doctor, launcher)
    assert [rank.settings["I_MPI_OFFLOAD"] for rank in report.ranks] == ["0"] * 3
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.HOST_LATE, (2,)), report


@pytest.mark.full
@pytest.mark.mpi
def test_growth_is_blamed_on_the_rank_that_grows(doctor: Command, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with job("mpich50", "host-memory", 2, log, **RESTING) as launcher, nothing_is_stopped(launcher):
        ended = doctor("job", "--pid", str(launcher), "--for", "6s", "--json")
    report = json.decode(ended.stdout, type=JobReport)
    assert ended.returncode == 12
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.GROWS, (1,)), report
    assert "host memory" in {growth.what for growth in report.growth if growth.rank == 1}


@pytest.fixture
def python_of_torch() -> str:
    """A Python with PyTorch, such as Debian's with python3-torch. It also shares tensors without CUDA."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    pytest.skip("needs PyTorch, such as Debian's package python3-torch")


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["file_system", "file_descriptor"])
def test_rank_that_keeps_the_tensors_of_another_is_blamed(
    doctor: Command, tmp_path: Path, python_of_torch: str, strategy: str
) -> None:
    """On a GPU too, PyTorch has a file in /dev/shm for each shared tensor, with its reference count."""
    program = [python_of_torch, str(PLANTED.with_name("torch_shares.py")), strategy]
    ranked = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(program, env=ranked, stdout=output) as job_:
        try:
            until("tensors are shared", lambda: "ready" in log.read_text())
            ended = doctor("job", "--pid", str(job_.pid), "--for", "8s", "--json")
        finally:
            job_.send_signal(signal.SIGINT)  # it then ends its child, which removes the files
    report = json.decode(ended.stdout, type=JobReport)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.GROWS, (1,)), report
    assert "mappings" in {growth.what for growth in report.growth if growth.rank == 1}
    shared = [file for file in report.memory_files if "/torch_" in file.name]
    assert {file.ranks for file in shared if file.ranks} & {(0, 1), (1,)}


@pytest.mark.full
@pytest.mark.mpi
def test_ranks_are_stopped_for_their_stacks_and_go_on(doctor: Command, tmp_path: Path) -> None:
    with job("impi", "lost-message", 3, tmp_path / "log") as launcher:
        ended = doctor("job", "--pid", str(launcher), "--stacks", "--json")
        report = json.decode(ended.stdout, type=JobReport)
        states = [process.state for process in tree.descendants(launcher)]
    assert report.stopped
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.MESSAGE_LOST, (1,)), report
    assert not {"T", "t"} & {*states}


@pytest.mark.mpi
def test_stopped_rank_is_blamed(doctor: Command, tmp_path: Path) -> None:
    with job("mpich50", "stopped", 3, tmp_path / "log") as launcher:
        report = examined(doctor, launcher)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.STOPPED, (1,)), report


@pytest.mark.full
@pytest.mark.mpi
def test_job_is_seen_without_perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuipc_doctor.job.examination import examine
    from gpuipc_doctor.job.selection import Request, select
    from gpuipc_doctor.job.watcher import Watcher, take_snapshots

    monkeypatch.setattr(sampling_shutil, "which", lambda name: None)
    with job("mpich43", "lost-message", 3, tmp_path / "log") as launcher, nothing_is_stopped(launcher):
        watcher = Watcher(select(Request(pids=(launcher,))), tmp_path)
        report = examine(take_snapshots(watcher), watcher.unable)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.MESSAGE_LOST, (1,)), report


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounts: needs root and FUSE")
def test_rank_whose_file_system_does_not_answer_is_stuck_in_the_kernel(
    doctor: Command, tmp_path: Path
) -> None:
    server = [sys.executable, str(PLANTED.parent / "silent_fuse.py"), str(tmp_path)]
    reader = "import os, sys; print(flush=True); os.stat(sys.argv[1] + '/checkpoint')"
    pipe = subprocess.PIPE
    with subprocess.Popen(server, stdin=pipe, stdout=pipe) as fuse:
        assert fuse.stdout
        assert fuse.stdout.readline() == b"ready\n"
        ranked = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1"}
        with subprocess.Popen(
            [sys.executable, "-c", reader, str(tmp_path)], env=ranked, stdout=pipe, stderr=subprocess.DEVNULL
        ) as rank:
            assert rank.stdout
            rank.stdout.readline()
            try:
                report = examined(doctor, rank.pid)
            finally:
                fuse.communicate()  # closing it ends the file system
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.KERNEL, (0,)), report
    assert report.verdict.operation == "request_wait_answer"


RESTARTS = """
import os, subprocess, sys
rank = [sys.executable, "-c", "import os, time; time.sleep(float(os.environ['S']))"]
for seconds in ("4", "600"):
    for each in [subprocess.Popen(rank, env={**os.environ, "RANK": str(n), "S": seconds}) for n in range(2)]:
        print(flush=True)
        each.wait()
"""
"""Starts two ranks, and again when they have ended, as torchrun does."""


def test_ranks_that_are_started_again_are_not_called_ended(doctor: Command) -> None:
    with subprocess.Popen([sys.executable, "-c", RESTARTS], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout
            agent.stdout.readline()
            ended = doctor("job", "--pid", str(agent.pid))
        finally:
            for each in tree.descendants(agent.pid):
                os.kill(each.pid, signal.SIGKILL)
            agent.kill()
    assert ended.returncode == 11
    assert "ranks 0-1 were started again while the ranks were examined: ask again" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--pid", "4194303"], 3, "no process 4194303"),
        (["--pid", "1"], 3, "is not part of a job"),
        (["--pid", "0"], 2, "'0' is not a whole number from 1"),
        (["--user", "nobody-of-that-name"], 3, "unknown user"),
        (["--slurm", "12;rm"], 2, "is not a JOBID"),
        (["--slurm", "4294967295"], 3, "no process of Slurm job 4294967295"),
        (["--pid", "2", "--slurm", "1"], 2, "exclude each other"),
        (["--gpu", "0"], 2, "is not a GPU such as cuda:0"),
        (["--gpu", "cuda:7"], 3, "NVIDIA"),
        (["-w", "n1", "--pid", "2"], 2, "omit -w"),
        (["-w", "n[1-", "--user", "root"], 2, "names no nodes"),
        (["--since", "/nowhere"], 2, "/nowhere"),
        (["--for", "1s"], 2, "not a time from 5s to 24h"),
        (["--for", "soon"], 2, "not a time from 5s to 24h"),
    ],
)
def test_missing_job_is_one_line(doctor: Command, arguments: list[str], code: int, words: str) -> None:
    ended = doctor("job", *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert words in ended.stderr.splitlines()[-1]


def test_zombie_is_no_job(doctor: Command) -> None:
    child = subprocess.Popen(["true"])
    until(
        "it has ended",
        lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z",
    )
    ended = doctor("job", "--pid", str(child.pid))
    child.wait()
    assert ended.returncode == 3
    assert "has ended" in ended.stderr
