"""What a job's processes take more of as time passes: memory of host and device, descriptors, mappings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from gpuipc_doctor.api.trend import Slope, slope
from gpuipc_doctor.job.document import Growth, Process
from gpuipc_doctor.job.processes import Gone, Reader

SAMPLES = 24
SHORTEST_S = 0.5
"""Between two samples."""

FEWEST = 8
"""Samples that are judged."""

HOST, DEVICE, DESCRIPTORS, MAPPINGS = "host memory", "device memory", "descriptors", "mappings"
SHARED = "shared memory of the node"

FLOOR = {HOST: 1 << 20, DEVICE: 1 << 20, DESCRIPTORS: 1, MAPPINGS: 2, SHARED: 1 << 20}
"""Change from first to last sample that is not growth: allocators and interpreters move by as much."""

Key = tuple[int | None, str]
"""Rank, and what it holds; None for what belongs to no rank."""

Series = dict[Key, list[tuple[float, int]]]


def watch(
    ranks: Mapping[int, Process], seconds: float, device_memory: Callable[[], Mapping[int, int]]
) -> tuple[Growth, ...]:
    """Sample these processes for so many seconds. ``device_memory``: bytes by pid."""
    interval = max(SHORTEST_S, seconds / SAMPLES)
    began = time.monotonic()
    series: Series = {}
    has_gpu = any(process.has_gpu for process in ranks.values())
    while True:
        at = time.monotonic()
        for key, value in _sample(ranks, device_memory() if has_gpu else {}):
            series.setdefault(key, []).append((at, value))
        if at - began >= seconds:
            return tuple(judge(series, {rank: process.pid for rank, process in ranks.items()}))
        time.sleep(max(0.0, interval - (time.monotonic() - at)))


def _sample(ranks: Mapping[int, Process], device: Mapping[int, int]) -> Iterator[tuple[Key, int]]:
    for rank, process in ranks.items():
        with suppress(Gone):
            reader = Reader(process.pid)
            if (anonymous := _anonymous_bytes(reader)) is not None:
                yield (rank, HOST), anonymous
            if (descriptors := reader.count("fd")) is not None:
                yield (rank, DESCRIPTORS), descriptors
            if mappings := reader.raw("maps").count(b"\n"):
                yield (rank, MAPPINGS), mappings
            if process.pid in device:
                yield (rank, DEVICE), device[process.pid]
    with suppress(OSError):
        shared = os.statvfs("/dev/shm")  # noqa: S108 - it is only looked at
        yield (None, SHARED), (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def _anonymous_bytes(reader: Reader) -> int | None:
    """Memory that no file stands behind; pages of libraries come and go."""
    for line in reader.text("status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return None


def judge(series: Series, pids: Mapping[int, int]) -> Iterator[Growth]:
    """What grows in the second half of the samples, too; what levels off fills a cache."""
    for (rank, what), samples in series.items():
        if len(samples) < FEWEST:
            continue
        found = _slope(samples)
        later = _slope(samples[len(samples) // 2 :])
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


def _slope(samples: Sequence[tuple[float, int]]) -> Slope:
    """Change in a minute."""
    return slope([at / 60 for at, _ in samples], [value for _, value in samples])
