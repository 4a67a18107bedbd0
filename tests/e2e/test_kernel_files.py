"""Commands, with each file of the kernel that they read missing, refused, unreadable, empty, odd or cut.

A library that is preloaded (`tests/kernel_files/preload.c`) first records which kernel files a command reads,
and then injects faults into one after the other. A healthy node may have any of these faults: sandboxes and
old kernels lack files, containers and hidepid= refuse them, and a file may be empty.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.supervise import tree
from tests.command_server import ForkServer
from tests.e2e.conftest import full
from tests.waiting import LIMIT_S, until

SOURCES = Path(__file__).parents[1] / "kernel_files"

FAULTS = ("absent", "refused", "gone", "broken", "empty", "odd", "half")
"""ENOENT, EACCES and ESRCH from open, EIO from read; then changed content: none, another text, the first
half."""

FEW = ("absent", "empty", "odd")
"""The faults for other commands, which treat all errors of the kernel in the same way."""

NEVER = (("half", "/proc/N/maps"),)
"""Impossible with a real kernel: a rank whose mappings lack its MPI library seems to use none."""

REQUIRED = "gpuipc-doctor: cannot open /proc.*; it is required\n"
"""The only output of a command that cannot work at all."""

NOT_OURS = ("/proc/self/comm",)
"""Files that the fork server of commands needs."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "job": ("job", "--pid", "{stuck}"),
    "job-that-runs": ("job", "--pid", "{running}"),
    "job-of-user": ("job", "--user", "root"),
    "inventory": ("inventory", "--json"),
    "memory": ("memory",),
    "memory-simulated": ("memory", "--simulate", "healthy-both"),
    "check": ("check", "driver-init", "environment", "known-versions", "fabric-info", "ipc-reopen",
              "--simulate", "nvidia-460.32.03", "--json"),
}  # fmt: skip

CANNOT_TELL: dict[str, set[int]] = {
    "job": {Exit.NOTHING, Exit.ERROR},
    "inventory": set(),
    "memory": {Exit.NOTHING, Exit.ERROR},
    "check": {Exit.NOTHING, Exit.ERROR},
}
"""Additional exit codes with which a command may end, because it then claims nothing."""

OPTIONAL = (
    "/proc/N/task/N/io /proc/N/task/N/stack /proc/N/task/N/wchan /proc/N/status /proc/N/ns/mnt "
    "/proc/self/autogroup /proc/self/ns/mnt /proc/sys/kernel/perf_event_paranoid /proc/sysvipc/shm /dev/shm"
)
"""Files that `job` does not need for its verdict."""


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Commands:
    server: ForkServer
    place: Path
    words: dict[str, str]

    def run(self, name: str, **environment: str) -> Ended:
        ended = self.server.run(
            "tests.kernel_files.command",
            *(word.format(**self.words) for word in COMMANDS[name]),
            timeout=LIMIT_S,
            env={**os.environ, **self.preload, **environment},
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    @property
    def preload(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.place / "preload.so"), "KERNEL_FILES_DIRECTORIES": str(self.place)}

    def files(self, name: str) -> tuple[Ended, list[str]]:
        """The command's result without faults, and the files that it reads."""
        log = self.place / "log"
        log.write_text("")
        ended = self.run(name, KERNEL_FILES_LOG=str(log))
        return ended, sorted({*log.read_text().splitlines()} - {*NOT_OURS})


def compiled(place: Path, name: str, *options: str | Path) -> Path:
    output = place / name
    usual = ("gcc", "-O1", "-fno-optimize-sibling-calls", "-Wall", "-Werror")
    subprocess.run([*usual, "-o", output, *options], check=True)
    return output


@contextmanager
def job(place: Path, kind: str) -> Iterator[int]:
    """A launcher with two ranks; one waits for the other ("stuck") or neither waits; yields its pid."""
    launcher = place / "mpiexec"
    launcher.write_text(
        f"#!/bin/sh\nfor PMI_RANK in 0 1; do PMI_SIZE=2 PMI_RANK=$PMI_RANK {place}/rank $1 & done\nwait\n"
    )
    launcher.chmod(0o755)
    process = subprocess.Popen([launcher, kind], start_new_session=True)
    try:
        until("two ranks", lambda: [each.name for each in tree.descendants(process.pid)] == ["rank"] * 2)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    place = tmp_path_factory.mktemp("kernel-files")
    for name in ("empty", "odd"):
        (place / name).mkdir()
    for name in ("not a number", "0x?"):
        (place / "odd" / name).touch()
    compiled(place, "preload.so", "-shared", "-fPIC", SOURCES / "preload.c", "-ldl")
    mpi = compiled(
        place, "libmpi.so.12", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", SOURCES / "libmpi.c"
    )
    compiled(place, "rank", SOURCES / "rank.c", mpi, f"-Wl,-rpath,{place}")
    with job(place, "stuck") as stuck, job(place, "running") as running:
        words = {"stuck": str(stuck), "running": str(running)}
        commands = Commands(ForkServer(LD_PRELOAD=str(place / "preload.so")), place, words)
        yield commands
        commands.server.close()


def wrong(name: str, usual: Ended, ended: Ended) -> str:
    """The error in a command's result, compared with its result without faults; empty if there is none."""
    if "Traceback" in ended.output + ended.errors or "internal error" in ended.errors:
        return ended.errors[-300:]
    if ended.code == Exit.INTERNAL and re.fullmatch(REQUIRED, ended.errors):
        return ""
    allowed = {usual.code, *CANNOT_TELL[COMMANDS[name][0]]}
    if ended.code not in allowed:
        return f"exit {ended.code}: {ended.output[-600:]}{ended.errors[-300:]}"
    if COMMANDS[name][0] == "check" and ended.output and (new := claims(ended) - claims(usual)):
        return f"new claims: {sorted(new)}"
    return ""


def claims(ended: Ended) -> set[tuple[str, str, str, str]]:
    """The report's PASS and FAIL findings, without those that only say that something is unknown."""
    found = ((row["check"], row["probe"], row["finding"]) for row in json.loads(ended.output)["results"])
    return {
        (check, probe, finding["status"], finding["key"])
        for check, probe, finding in found
        if finding["status"] in (Status.PASS, Status.FAIL)
    }


def groups(files: Sequence[str]) -> list[str]:
    """Groups of files to fault at a time: single files; in ``/sys`` and simulated nodes, each subsystem."""
    found: dict[str, list[str]] = {}
    for file in files:
        key = "/".join(file.split("/")[:3]) if re.match("~|/sys/|/proc/sys/", file) else file
        found.setdefault(key, []).append(file)
    return [" ".join(each) for each in found.values()]


@pytest.mark.cuda
@pytest.mark.hip
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in COMMANDS
        if name != "job-that-runs"  # it reads what "job" reads
        for fault in (FAULTS if name == "job" else FEW)
    ],
)
def test_fault_of_a_kernel_file_is_no_fault_of_the_node(commands: Commands, name: str, fault: str) -> None:
    usual, files = commands.files(name)
    assert wrong(name, usual, usual) == ""
    assert any(file.lstrip("~").startswith(("/proc/", "/sys/")) for file in files)
    found = {}
    for each in groups([file for file in files if (fault, file) not in NEVER]):
        ended = commands.run(name, KERNEL_FILES=f" {each} ", KERNEL_FILES_ARE=fault)
        if what := wrong(name, usual, ended):
            found[each] = what
    assert not found, "\n".join(f"{files} {fault}: {what}" for files, what in found.items())


@pytest.mark.parametrize(
    "fault",
    ["empty", *(full(fault) for fault in ("absent", "refused", "odd"))],
)
def test_job_has_the_same_verdict_without_optional_files(commands: Commands, fault: str) -> None:
    ended = commands.run("job", KERNEL_FILES=f" {OPTIONAL} ", KERNEL_FILES_ARE=fault)
    assert ended.code == Exit.FAIL, ended
    said = " ".join(ended.output.split())
    assert "FAIL rank 1 sleeps in" in said
    assert "rank 0 waits for it in MPI_Recv" in said


@pytest.mark.parametrize("file", ["/proc/N/environ", "/proc/N/task", "/proc/N/task/N/stat"])
def test_job_that_cannot_be_read_is_not_called_healthy(commands: Commands, file: str) -> None:
    ended = commands.run("job-that-runs", KERNEL_FILES=f" {file} ", KERNEL_FILES_ARE="empty")
    assert ended.code == Exit.ERROR, ended


def test_proc_of_another_pid_namespace_is_not_searched(commands: Commands) -> None:
    """The pids in such a /proc belong to other processes, which must not be read or killed."""
    ended = commands.run("job", KERNEL_FILES=" /proc/self ", KERNEL_FILES_ARE="odd")
    assert (ended.code, ended.output) == (Exit.INTERNAL, "")
    assert "another pid namespace" in ended.errors
