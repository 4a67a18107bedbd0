"""Growth of a job's processes over time: host and device memory, descriptors, mappings."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gpuipc_doctor.job.document import GROWTH, Growth, Process
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.node.memory_usage import per_minute
from gpuipc_doctor.stacks.proc_files import Gone, Reader

SAMPLES = 24
SHORTEST_S = 0.5
"""Minimum seconds between two samples."""

FEWEST = 8
"""Minimum samples for a judgement."""

MOST_TIMES = 4
"""Maximum duration of sampling on a busy node, as a multiple of the requested seconds."""

HOST, DEVICE, DESCRIPTORS, MAPPINGS = "host memory", "device memory", "descriptors", "mappings"
THREADS = "threads"
SHARED = "shared memory of the node"

OF_PROCESS = (HOST, DESCRIPTORS, MAPPINGS, THREADS)
"""Resources read from the kernel's files on a process (proc(5)). Host memory is ``RssAnon``, which old
kernels (before Linux 4.5) and some sandboxes do not have."""

FLOOR = {HOST: 1 << 20, DEVICE: 1 << 20, DESCRIPTORS: 1, MAPPINGS: 2, THREADS: 1, SHARED: 1 << 20}
"""Resource → largest change that does not count as growth. Allocators and interpreters cause such changes."""

Key = tuple[int | None, str]
"""(rank, resource); rank None for resources that belong to no rank."""

Series = dict[Key, list[tuple[float, int]]]


@dataclass(slots=True)
class Watched:
    """Everything sampled from a job's processes, and what could not be sampled."""

    ranks: Mapping[int, Process]
    seconds: float
    """Seconds for which to watch; up to `MOST_TIMES` as many if there are fewer than `FEWEST` samples."""
    took_s: float = 0.0
    began: float = field(default_factory=lambda: time.monotonic())
    series: Series = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    """What could not be watched → reason."""
    _times: list[float] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        return max(SHORTEST_S, self.seconds / SAMPLES)

    def sample(self) -> None:
        """Sample host memory, descriptors and mappings until the time is over."""
        while not self.add({}):
            time.sleep(self.interval_s)

    def add(self, device: Mapping[int, int]) -> bool:
        """Add a sample, with the bytes of device memory by pid. Returns whether there are enough samples."""
        at = time.monotonic()
        self._times.append(at)
        pids = ((rank, process.pid) for rank, process in self.ranks.items())
        self._add(at, [((rank, DEVICE), device[pid]) for rank, pid in pids if pid in device])
        self._add(at, _sample(self.ranks))
        samples, elapsed = len(self._times), at - self._times[0]
        if samples < FEWEST and elapsed >= self.seconds * MOST_TIMES:
            self.unseen[GROWTH] = f"only {samples} of {FEWEST} required samples in {elapsed:.0f} s"
        return GROWTH in self.unseen or (samples >= FEWEST and elapsed >= self.seconds)

    def _add(self, at: float, values: Iterable[tuple[Key, int]]) -> None:
        for key, value in values:
            self.series.setdefault(key, []).append((at, value))

    def grown(self) -> tuple[Growth, ...]:
        return tuple(judge(self.series, {rank: process.pid for rank, process in self.ranks.items()}))


def watch(
    ranks: Mapping[int, Process],
    seconds: float,
    devices: Callable[[float, Callable[[Mapping[int, int]], bool]], None] | None = None,
) -> Watched:
    """Sample these processes for this many ``seconds``. Raises `NoSuchJob` if no GPU can be queried.

    If given, ``devices(interval_s, add)`` samples device memory: it passes each sample, pid → bytes, to
    ``add`` until ``add`` returns True.
    """
    watched = Watched(ranks, seconds)
    try:
        if devices:
            devices(watched.interval_s, watched.add)
        else:
            watched.sample()
    except NoSuchJob as reason:
        watched.unseen[f"{GROWTH} of {DEVICE}"] = str(reason)
        watched.sample()
    watched.took_s = time.monotonic() - watched.began
    seen = {what for _, what in watched.series}
    unseen = [what for what in OF_PROCESS if ranks and what not in seen]
    watched.unseen |= {f"{GROWTH} of {what}": "the kernel does not report the amount" for what in unseen}
    return watched


_STATUS = re.compile(r"^(RssAnon|Threads):\s+([0-9]+)", re.MULTILINE)


def _sample(ranks: Mapping[int, Process]) -> Iterator[tuple[Key, int]]:
    for rank, process in ranks.items():
        with suppress(Gone):
            reader = Reader(process.pid)
            status = dict(_STATUS.findall(reader.text("status")))
            if "RssAnon" in status:  # pages of libraries come and go
                yield (rank, HOST), int(status["RssAnon"]) << 10
            if "Threads" in status:
                yield (rank, THREADS), int(status["Threads"])
            if (descriptors := reader.names("fd")) is not None:
                yield (rank, DESCRIPTORS), len(descriptors)
            if mappings := reader.raw("maps").count(b"\n"):
                yield (rank, MAPPINGS), mappings
    with suppress(OSError):
        shared = os.statvfs("/dev/shm")  # noqa: S108 - it is only looked at
        yield (None, SHARED), (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def judge(series: Series, pids: Mapping[int, int]) -> Iterator[Growth]:
    """Resources that still grow in the second half of the samples."""
    for (rank, what), samples in series.items():
        if len(samples) < FEWEST:
            continue
        found = per_minute(samples)
        later = per_minute(samples[len(samples) // 2 :])
        change = samples[-1][1] - samples[0][1]
        if change > FLOOR[what] and found.low > 0 and later.low >= 0 and later.estimate > found.estimate / 4:
            yield Growth(
                rank=rank,
                pid=pids.get(rank) if rank is not None else None,
                what=what,
                per_minute=found.estimate,
                low=found.low,
                high=found.high,
                first=samples[0][1],
                last=samples[-1][1],
            )
