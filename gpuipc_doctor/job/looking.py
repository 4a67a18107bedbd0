"""Look at a job several times, from ``/proc`` and by sampling; nothing of it is stopped."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuipc_doctor import node_name
from gpuipc_doctor.job import callers, perf_events, python_stacks, rights, sampling, sleeping, stopping
from gpuipc_doctor.job.activity import is_seen
from gpuipc_doctor.job.document import Look, Process, Stack, Thread
from gpuipc_doctor.job.processes import read_process

LOOKS = 4
MORE = 4
BETWEEN_S = 1.2
"""Seconds from one look to the next. A program whose iterations take longer than all looks seems to wait."""

BUSY = sampling.ENOUGH_S / sampling.MOST_S
"""Part of a processor from which a thread counts as running: what a sample needs."""


@dataclass(slots=True)
class Watcher:
    """Looks at the same processes again and again, and keeps what it needs from one look to the next."""

    pids: Sequence[int]
    scratch: Path
    """A directory for perf's file."""
    variables: frozenset[str] = frozenset()
    """Names of the environment that are kept."""
    stops: bool = False
    """Whether each rank is stopped at each look, one after the other, for its native stacks."""
    unable: dict[str, str] = field(default_factory=dict)
    """The means that this node lacks, and why: ``{"sampling": "perf is not installed"}``."""
    _used: dict[int, tuple[float, float]] = field(default_factory=dict)
    _started: dict[int, int] = field(default_factory=dict)

    def look(self) -> Look:
        """One look. Processes that have ended since are missing in it."""
        began = time.time()
        processes = [process for pid in self.pids if (process := self._read(pid))]
        ranks = [process for process in processes if is_candidate(process)]
        with ThreadPoolExecutor(4) as pool:
            python = dict(zip([rank.pid for rank in ranks], pool.map(self._python, ranks), strict=True))
            samples = self._sample(ranks)
        seen = [_with_stacks(process, python.get(process.pid, ()), samples) for process in processes]
        if self.stops:
            seen = [_stopped(process) if is_candidate(process) else process for process in seen]
        return Look(at=began, host=node_name.short(), processes=tuple(seen))

    def _read(self, pid: int) -> Process | None:
        """The process; None where it has ended, even if a later one has its pid."""
        process = read_process(pid, self._busy, self.variables)
        if process and process.started == self._started.setdefault(pid, process.started):
            return process
        return None

    def _busy(self, tid: int, used_s: float) -> float:
        """The part of a processor that a thread used since the last look."""
        now = time.monotonic()
        before, at = self._used.get(tid, (used_s, now - 1))
        self._used[tid] = used_s, now
        return min(1.0, max(0.0, (used_s - before) / max(now - at, 0.01)))

    def _python(self, process: Process) -> Stack:
        try:
            return python_stacks.dump(process)
        except python_stacks.NotRead as reason:
            self.unable.setdefault("Python stacks", str(reason))
            return ()

    def _sample(self, ranks: Sequence[Process]) -> Samples:
        """Sample the threads that run: by perf(1), else by the system call behind it."""
        if not ranks:
            return Samples()
        running = [(rank.pid, thread.tid) for rank in ranks for thread in rank.threads if _runs(thread)]
        with suppress(sampling.NotInstalled):
            try:
                return Samples(exact=sampling.sample([rank.pid for rank in ranks], running, self.scratch))
            except sampling.NotSampled as reason:
                self.unable.setdefault("sampled stacks", str(reason))
                return Samples()
        found: dict[int, list[Stack]] = defaultdict(list)
        try:
            for tid, stack in perf_events.sample(running):
                found[tid].append(stack)
        except OSError as error:
            self.unable.setdefault("sampled stacks", error.strerror or str(error))
        return Samples(approximate=found)


@dataclass(frozen=True, slots=True)
class Samples:
    """Stacks by thread."""

    exact: Mapping[int, Sequence[Stack]] = field(default_factory=dict)
    approximate: Mapping[int, Sequence[Stack]] = field(default_factory=dict)


def _runs(thread: Thread) -> bool:
    return thread.state == "R" or thread.busy > BUSY


def look_repeatedly(watcher: Watcher) -> list[Look]:
    """`LOOKS` looks, `BETWEEN_S` apart, and up to `MORE` as long as a rank has no stack.

    On a node with more ranks than processors a rank that waits runs seldom.
    """
    looks = [watcher.look()]
    while len(looks) < LOOKS or (len(looks) < LOOKS + MORE and _is_unsampled(looks)):
        time.sleep(max(0.0, looks[-1].at + BETWEEN_S - time.time()))
        looks.append(watcher.look())
    return looks


def _is_unsampled(looks: Sequence[Look]) -> bool:
    """Whether a main thread that runs or sleeps has at no look a stack that tells what it does."""
    ranks = [process for process in looks[-1].processes if is_candidate(process)]
    return any(
        rank.main and rank.main.state in "RS" and not is_seen(_of(rank.pid, looks), rank.pid)
        for rank in ranks
    )


def _of(pid: int, looks: Iterable[Look]) -> list[Process]:
    return [process for look in looks for process in look.processes if process.pid == pid]


def is_candidate(process: Process) -> bool:
    """Whether it may be where a rank's work is done, and not a shell or a launcher around it."""
    return process.rank is not None or process.has_gpu


def by_rank(look: Look) -> dict[int, Process]:
    """The process that does the work of each rank: of a wrapper and its child, the child.

    Processes without a rank, as of a program that no launcher started, are numbered by their order.
    """
    candidates = [process for process in look.processes if is_candidate(process)]
    found: dict[int, Process] = {}
    ordered = sorted(candidates, key=lambda process: process.pid)
    for number, process in enumerate(ordered):
        rank = number if process.rank is None else process.rank
        there = found.get(rank)
        if there is None or _does_more(process, there):
            found[rank] = process
    return found


def _does_more(process: Process, other: Process) -> bool:
    """Whether it is the one that communicates or uses a GPU, else the one with more libraries."""
    return (process.has_mpi, process.has_gpu, len(process.libraries)) > (
        other.has_mpi,
        other.has_gpu,
        len(other.libraries),
    )


def _stopped(process: Process) -> Process:
    """The process with the native stacks for which it was stopped, in place of samples."""
    try:
        found = stopping.stacks(process)
    except stopping.NotStopped as reason:
        return replace(process, refused={**process.refused, "native stacks": str(reason)})
    threads = [
        replace(thread, native=(found[thread.tid],), approximate=()) if thread.tid in found else thread
        for thread in process.threads
    ]
    return replace(process, threads=tuple(threads))


def _with_stacks(process: Process, python: Stack, samples: Samples) -> Process:
    if not is_candidate(process):
        return process
    refused = dict(process.refused)

    def asleep(thread: Thread) -> tuple[Stack, ...]:
        if thread.state == "R" or thread.tid in samples.exact or thread.tid in samples.approximate:
            return ()
        try:
            return tuple(filter(None, [sleeping.stack(process.pid, thread.tid)]))
        except OSError as error:
            denied = isinstance(error, PermissionError)
            refused["stack of a sleeping thread"] = rights.reason(process.pid) if denied else str(error)
            return ()

    threads = [
        replace(
            thread,
            native=tuple(samples.exact.get(thread.tid, ())),
            approximate=(*samples.approximate.get(thread.tid, ()), *asleep(thread)),
        )
        for thread in process.threads
    ]
    fingerprint = ""
    if process.has_mpi:
        with suppress(OSError):
            fingerprint = callers.fingerprint(process.pid)
    return replace(process, threads=tuple(threads), python=python, callers=fingerprint, refused=refused)
