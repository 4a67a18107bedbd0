"""Look at a job several times, through ``/proc`` and by sampling, without stopping it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuipc_doctor import node_name
from gpuipc_doctor.job import shared_memory
from gpuipc_doctor.job.activity import is_outside, is_seen
from gpuipc_doctor.job.document import Process, Snapshot
from gpuipc_doctor.job.process_facts import is_noise
from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.job.roles import by_rank, workers
from gpuipc_doctor.stacks import (
    callers,
    counting,
    holders,
    perf_events,
    process_list,
    python_stacks,
    sampling,
    sleeping,
    sockets,
    stopping,
)
from gpuipc_doctor.stacks.process_list import with_descendants
from gpuipc_doctor.stacks.python_stacks import PythonStack, is_python
from gpuipc_doctor.stacks.thread import Stack, Thread

SNAPSHOTS = 4
MORE = 4
BETWEEN_S = 1.2
"""Seconds between snapshots. An iteration that is longer than all snapshots together looks like waiting."""

BETWEEN_NUMBERS_S = 0.1
"""Seconds between readings of a running program's numbers."""

FEWEST_NUMBERS, MOST_NUMBERS_S = 16, 5.0
"""Minimum readings of a Python program's variables, and maximum seconds for the readings on a busy node."""

MOST_READINGS = 4
"""Maximum readings of a rank's Python stack between two snapshots, if it may wait for its GPU."""

BUSY = 0.0175
"""Processor share above which a thread counts as running, and can be sampled within `MOST_S`."""


@dataclass(slots=True)
class Watcher:
    """Looks at the same processes repeatedly and keeps state between snapshots."""

    pids: Sequence[int]
    scratch: Path
    """Directory for perf's file."""
    variables: frozenset[str] = frozenset()
    """Names of the environment variables to keep."""
    stops: bool = False
    """Whether to stop each rank briefly in each snapshot, one after the other, for its native stacks."""
    unable: dict[str, str] = field(default_factory=dict)
    """What cannot be done on this node → reason: ``{"sampling": "perf is not installed"}``."""
    _perf_failed: bool = False
    """Whether perf(1) is installed but cannot sample, so that the system call is tried."""
    _used: dict[int, tuple[float, float]] = field(default_factory=dict)
    _started: dict[int, int] = field(default_factory=dict)
    _stacks: dict[int, list[Sequence[int]]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[int, set[Stack]] = field(default_factory=lambda: defaultdict(set))
    _variables: dict[int, list[Mapping[tuple[int, str], str]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def snapshot(self) -> Snapshot:
        """One snapshot; processes that have ended are missing."""
        began = time.time()
        processes = [process for pid in self.pids if (process := self._read(pid))]
        ranks = workers(processes) or [process for process in processes if process.launches]
        young = with_descendants({rank.pid for rank in ranks}, process_list.processes()) - {*self.pids}
        processes += [process for pid in sorted(young) if (process := self._read(pid))]
        with ThreadPoolExecutor(4) as pool:
            python = {rank.pid: pool.submit(self._python, rank) for rank in ranks}
            samples = self._sample(ranks)
            chosen = {rank.pid for rank in ranks}
            seen = [
                _with_stacks(process, samples) if process.pid in chosen else process for process in processes
            ]
        seen = [
            replace(process, python=found.frames, own=found.own, variables=found.digest)
            if (found := python[process.pid].result() if process.pid in python else None)
            else process
            for process in seen
        ]
        if chosen and (carried := sockets.carried_bytes()):
            own = {each.pid: sockets.sockets_of(each.pid) & carried.keys() for each in seen}
            seen = [
                replace(each, carried={inode: carried[inode] for inode in own[each.pid]}) for each in seen
            ]
        if self.stops:
            seen = [_stopped(process) if process.pid in chosen else process for process in seen]
        snapshot = Snapshot(at=began, host=node_name.short(), processes=tuple(seen))
        in_mpi = {number: process for number, process in by_rank(snapshot).items() if process.has_mpi}
        return replace(snapshot, shared=shared_memory.contents(in_mpi))

    def snapshots(self, number: int) -> list[Snapshot]:
        """Take ``number`` snapshots, `BETWEEN_S` apart. In between, perf(1) samples, if it can."""
        snapshots = [self.snapshot()]
        recording = self._record(_ranks(snapshots[0]))
        try:
            while len(snapshots) < number:
                self._wait(snapshots)
                if recording:
                    recording.begin(_running(_ranks(snapshots[-1])))
                snapshots.append(self.snapshot())
            if recording:
                found = recording.stacks(_running(_ranks(snapshots[-1])))
                seen = tuple(_sampled(process, found) for process in snapshots[-1].processes)
                snapshots[-1] = replace(snapshots[-1], processes=seen)
        except sampling.NotSampled as reason:
            self._without_perf(reason)
        finally:
            if recording:
                recording.close()
        in_registers = recording.counting if recording else frozenset()
        wchans = {rank.pid: rank.main.wchan for rank in _ranks(snapshots[-1]) if rank.main}
        seen = tuple(
            replace(
                self._counted(process, snapshots, in_registers),
                places=len(self._places.get(process.pid, ())),
                waits_for=holders.waits_for(process.pid, wchans.get(process.pid, "")),
            )
            for process in snapshots[-1].processes
        )
        return [*snapshots[:-1], replace(snapshots[-1], processes=seen)]

    def _wait(self, snapshots: Sequence[Snapshot]) -> None:
        """Wait for the next snapshot; meanwhile read the numbers of running programs."""
        runs = {pid for pid, tid in _running(_ranks(snapshots[-1])) if pid == tid}
        programs = [rank for rank in _ranks(snapshots[-1]) if rank.pid in runs]
        programs = [rank for rank in programs if not is_python(rank) or _varies(_of(rank.pid, snapshots))]
        ranks = [rank for rank in _ranks(snapshots[-1]) if rank.pid in runs]
        beside_gpu = [rank for rank in ranks if rank.has_gpu and is_python(rank)]
        rounds = 0
        while (left := snapshots[-1].at + BETWEEN_S - time.time()) > 0:
            for program in programs:
                self._read_numbers(program)
            for rank in beside_gpu if rounds < MOST_READINGS else ():
                self._read_place(rank)
            rounds += 1
            time.sleep(min(left, BETWEEN_NUMBERS_S))

    def _read_place(self, rank: Process) -> None:
        """Read where a rank that may wait for its GPU is; one that is in a fast loop is seldom elsewhere."""
        places = self._places[rank.pid]
        if len(places) < 2 and (frames := self._python(rank).frames):
            places.add(frames)

    def _read_numbers(self, process: Process) -> None:
        """Read the numbers once more: Python variables, or another program's outer stack."""
        with suppress(OSError):
            if not is_python(process):
                self._stacks[process.pid].append(counting.outer_stack(process.pid))
            elif variables := self._python(process).variables:
                self._variables[process.pid].append(variables)

    def _counted(self, process: Process, snapshots: Sequence[Snapshot], in_registers: Set[int]) -> Process:
        """The process with `Process.counts` filled in, unless it was seen in MPI or the GPU driver."""
        if not is_outside(own := _of(process.pid, snapshots)):
            return process
        if process.has_torch and len({snapshot.python for snapshot in own}) > 1:
            return process  # it moves, whatever counts
        if is_python(process):
            samples = self._variables.get(process.pid, [])
            ends_at = time.monotonic() + MOST_NUMBERS_S
            while 0 < len(samples) < FEWEST_NUMBERS and time.monotonic() < ends_at:
                time.sleep(BETWEEN_NUMBERS_S)
                self._read_numbers(process)
            names = {name for sample in samples for name in sample}  # a running program is misread at times
            series = ([sample[name] for sample in samples if name in sample] for name in names)
            counts = any(map(counting.goes_on, series))
        else:
            counts = process.pid in in_registers or counting.any_counts(self._stacks.get(process.pid, ()))
        return replace(process, counts=counts)

    def _record(self, ranks: Sequence[Process]) -> sampling.Recording | None:
        try:
            if ranks and self._has_perf:
                return sampling.Recording([rank.pid for rank in ranks], self.scratch)
        except sampling.NotSampled as reason:
            self._without_perf(reason)
        return None

    @property
    def _has_perf(self) -> bool:
        return sampling.has_perf() and not self._perf_failed

    def _without_perf(self, reason: sampling.NotSampled) -> None:
        self._perf_failed = True
        self.unable.setdefault("sampled stacks", str(reason))

    def _read(self, pid: int) -> Process | None:
        """The process; None if it has ended, even if its pid was reused."""
        process = read_process(pid, self._busy, self.variables)
        if process is None:
            return None
        first = self._started[pid] = self._started.get(pid) or process.started
        return process if process.started in (first, 0) else None

    def _busy(self, tid: int, used_s: float) -> float:
        now = time.monotonic()
        before, at = self._used.get(tid, (used_s, now - 1))
        self._used[tid] = used_s, now
        return min(1.0, max(0.0, (used_s - before) / max(now - at, 0.01)))

    def _python(self, process: Process) -> PythonStack:
        try:
            return python_stacks.dump(process)
        except python_stacks.NotRead as reason:
            self.unable.setdefault("Python stacks", str(reason))
            return PythonStack()

    def _sample(self, ranks: Sequence[Process]) -> Mapping[int, Sequence[Stack]]:
        """Approximate stacks of the running threads, if perf(1) cannot take better ones."""
        found: dict[int, list[Stack]] = defaultdict(list)
        try:
            if not self._has_perf:
                for tid, stack in perf_events.sample(_running(ranks)):
                    found[tid].append(stack)
        except OSError as error:
            self.unable.setdefault("sampled stacks", error.strerror or str(error))
        return found


def _ranks(snapshot: Snapshot) -> list[Process]:
    return workers(snapshot.processes)


def _varies(snapshots: Sequence[Process]) -> bool:
    return len({snapshot.variables for snapshot in snapshots if snapshot.variables}) > 1


def _running(ranks: Iterable[Process]) -> list[tuple[int, int]]:
    return [(rank.pid, thread.tid) for rank in ranks for thread in rank.threads if _runs(thread)]


def _sampled(process: Process, found: Mapping[int, Sequence[Stack]]) -> Process:
    """The process with sampled stacks for those threads that have no native stack yet."""
    threads = [
        thread if thread.native else replace(thread, native=tuple(found.get(thread.tid, ())))
        for thread in process.threads
    ]
    return replace(process, threads=tuple(threads))


def _runs(thread: Thread) -> bool:
    return thread.state == "R" or thread.busy > BUSY


def take_snapshots(watcher: Watcher) -> list[Snapshot]:
    """Take `SNAPSHOTS` snapshots, `BETWEEN_S` apart; and up to `MORE` further ones if some rank has no stack.

    On a node with more ranks than processors, a waiting rank seldom runs, so sampling may miss it.
    """
    snapshots = watcher.snapshots(SNAPSHOTS)
    while len(snapshots) < SNAPSHOTS + MORE and any(
        rank.main and rank.main.state in "RS" and not is_seen(_of(rank.pid, snapshots))
        for rank in _ranks(snapshots[-1])
    ):
        snapshots += watcher.snapshots(MORE // 2)
    return snapshots


def _of(pid: int, snapshots: Iterable[Snapshot]) -> list[Process]:
    return [process for snapshot in snapshots for process in snapshot.processes if process.pid == pid]


def _stopped(process: Process) -> Process:
    """The process with native stacks read while it was stopped; they replace sampled ones."""
    try:
        found = stopping.stacks(process)
    except stopping.NotStopped as reason:
        return replace(process, refused={**process.refused, "native stacks": str(reason)})
    threads = [
        replace(thread, native=(found[thread.tid],), approximate=()) if thread.tid in found else thread
        for thread in process.threads
    ]
    return replace(process, threads=tuple(threads))


MOST_THREADS = 16
"""Maximum sleeping threads of a process without MPI, beside the main one, whose stacks are read. A rank of
PyTorch has 75 threads."""


def _asleep(process: Process) -> set[int]:
    """The sleeping threads whose stacks may show what the rank waits for: the main one and, if it waits for
    another one or MPI is loaded, the program's other threads."""
    main = process.main
    own = {main.tid} if main and main.state != "R" else set[int]()
    if main is None or process.has_mpi or main.wchan.startswith("futex"):
        others = [thread for thread in process.threads if thread.tid != process.pid and thread.state != "R"]
        own |= {thread.tid for thread in others if not is_noise(thread)} - own
    return own if process.has_mpi else {*sorted(own)[: 1 + MOST_THREADS]}


def _with_stacks(process: Process, samples: Mapping[int, Sequence[Stack]]) -> Process:
    found, refused = sleeping.stacks(process.pid, _asleep(process) - samples.keys())
    found |= {tid: tuple(own) for tid, own in samples.items()}
    threads = [replace(thread, approximate=found.get(thread.tid, ())) for thread in process.threads]
    fingerprint = ""
    if process.has_mpi:
        with suppress(OSError):
            fingerprint = callers.fingerprint(process.pid)
    return replace(
        process, threads=tuple(threads), callers=fingerprint, refused={**process.refused, **refused}
    )
