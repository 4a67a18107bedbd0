"""PyTorch jobs with planted faults (fixtures/jobs/torch_jobs.py), and the right answers, written before.

This module needs nothing but Python, so that it runs on a bare machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "fixtures/jobs/torch_jobs.py"

_SHARED = re.compile(r"/dev/shm/(?:sem\.mp-|torch_)\S+")

PASS, OPEN, STUCK = 0, 11, 12
"""Exit codes: runs; cannot tell; stuck."""


@dataclass(frozen=True)
class Job:
    """A planted job and the right answers."""

    mode: str
    says: str
    """What an expert says."""
    codes: tuple[int, ...]
    """Right exit codes without RAS."""
    blamed: tuple[int, ...] = ()
    """The culprits."""
    codes_ras: tuple[int, ...] = ()
    """Right exit codes with RAS, if they differ."""
    mentions: str = ""
    """Text that the screen must have."""
    also: tuple[tuple[int, ...], ...] = ()
    """Other ranks whose blame is right, too."""
    ranks: int = 4

    def is_right(self, code: int, blamed: Sequence[int], screen: str, *, ras: bool) -> bool:
        """Whether an answer is right. ``ras``: whether RAS was asked."""
        codes = (self.codes_ras or self.codes) if ras else self.codes
        names = (*blamed,) in (self.blamed, *self.also)
        return code in codes and names and self.mentions in screen


JOBS = (
    Job("late", "rank 2 is late, in build_index", (STUCK,), (2,), mentions="build_index"),
    Job("dead", "rank 1 has ended", (STUCK,), (1,)),
    Job("absent", "rank 3 has not joined, it is in build_index", (STUCK,), (3,), mentions="build_index"),
    Job("operation", "rank 1 called all_gather, the others all_reduce", (OPEN, STUCK), (1,), (STUCK,)),
    Job("size", "rank 2 called all_reduce with another size", (OPEN, STUCK), (2,), also=((),)),
    Job("order", "rank 0 called two communicators in the other order", (OPEN, STUCK), (0,), (STUCK,)),
    Job("group", "rank 3 left out its group's all_reduce", (OPEN, STUCK), (3,), also=((2,), (2, 3), ())),
    Job("send", "rank 1 sends what no rank receives", (OPEN, STUCK), (1,), (STUCK,)),
    Job("dataloader", "rank 2's worker is late, in fetch_remote", (STUCK,), (2,), mentions="fetch_remote"),
    Job("exception", "rank 1 handles an exception for ever", (STUCK, OPEN), (1,), mentions="handle_failure"),
    Job("memory", "rank 3 has ended: out of memory", (STUCK,), (3,)),
    Job("stopped", "rank 2 is stopped", (STUCK,), (2,)),
    Job("checkpoint", "not stuck: rank 0 writes slowly", (PASS,)),
    Job("kernel", "a kernel of rank 1 does not end", (OPEN, STUCK), (1,)),
    Job("fsdp", "rank 2 is late, in build_index", (STUCK,), (2,), mentions="build_index"),
    Job("pipeline", "stage 1 is late, in build_index", (STUCK,), (1,), mentions="build_index"),
    Job("healthy-slow", "runs", (PASS,)),
    Job("healthy-fast", "runs", (PASS,)),
    Job("healthy-long", "all in one long step: ask again for longer", (OPEN, PASS)),
    Job("spawn", "rank 1 is late; no variable numbers the ranks", (STUCK,), (1,), mentions="build_index"),
)  # fmt: skip
HEALTHY = frozenset({"checkpoint", "healthy-slow", "healthy-fast", "healthy-long"})


@dataclass
class Started:
    """A job that is running."""

    job: Job
    place: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.poll() is None]

    def go(self) -> None:
        """Let the ranks use their GPUs."""
        (self.place / "go").touch()

    def is_ready(self) -> bool:
        """Whether every rank has reached the fault, or has ended."""
        return len([*self.place.glob("ready.*")]) >= self.job.ranks

    def output(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.place.glob("log.*")))

    def end(self) -> None:
        """Kill all processes, and remove the shared memory that they would have removed at their end."""
        shared = self._shared_memory()
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for file in shared:
            Path(file).unlink(missing_ok=True)

    def _shared_memory(self) -> set[str]:
        """Semaphores and tensors that the job's processes have mapped."""
        groups, found = {process.pid for process in self.processes}, set[str]()
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(directory.name)) in groups:
                    found |= {*_SHARED.findall((directory / "maps").read_text())}
        return found


def start(job: Job, backend: str, python: str, place: Path) -> Started:
    """Start the ranks, which wait for `Started.go`; each is the leader of its process group."""
    place.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(job.ranks),
        "OMP_NUM_THREADS": "1",
    }
    started = Started(job, place)
    for rank in range(1 if job.mode == "spawn" else job.ranks):
        own = {} if job.mode == "spawn" else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (place / f"log.{rank}").open("wb") as log:
            started.processes.append(
                subprocess.Popen(
                    [python, str(PROGRAM), job.mode, backend, str(place)],
                    env={**common, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return started


@contextmanager
def running(mode: str, backend: str, python: str, place: Path, limit_s: float = 120.0) -> Iterator[Started]:
    """A job whose ranks have all reached the fault. Raises `TimeoutError` with their output."""
    started = start(next(job for job in JOBS if job.mode == mode), backend, python, place)
    try:
        started.go()
        until = time.monotonic() + limit_s
        while not started.is_ready():
            if time.monotonic() > until or not started.pids:
                raise TimeoutError(f"{mode} was not ready: {started.output()[-2000:]}")
            time.sleep(0.1)
        yield started
    finally:
        started.end()


@dataclass(frozen=True)
class Answer:
    """What the tool said."""

    code: int
    seconds: float
    report: dict[str, Any]
    screen: str

    @property
    def blamed(self) -> tuple[int, ...]:
        return tuple(self.report.get("verdict", {}).get("blamed", ()))

    @property
    def sentence(self) -> str:
        lines = self.screen.splitlines()
        return next(
            (line for line in lines if line[:5].strip() in ("FAIL", "PASS", "ERROR")), "; ".join(lines[:1])
        )


def command(tool: Sequence[str], pids: Sequence[int], place: Path, *options: str) -> list[str]:
    """The command that examines these processes, with its JSON in PLACE."""
    named = [word for pid in pids for word in ("--pid", str(pid))]
    return [*tool, "job", *named, "--save", str(place), *options]


def answer(done: subprocess.CompletedProcess[str], saved: Path, seconds: float) -> Answer:
    report = json.loads(saved.read_text()) if saved.exists() else {}
    return Answer(done.returncode, seconds, report, done.stdout + done.stderr)
