"""Does a pool release freed memory at the next synchronisation, or keep it, as its release threshold says?"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Finding, GpuStream, Json, Pool, Worker
from gpuipc_doctor.api.leak_report import SETTLE_S


def cross_threshold(w: Worker, pool: Pool, stream: GpuStream, nbytes: int) -> None:
    """Free memory with a release threshold of 0, then with a larger one, which the pool keeps."""
    with w.step("release threshold 0"):
        allocate_and_free(pool, stream, nbytes)
        w.wait_until(lambda: not pool.reserved, SETTLE_S)
        w.record(unheld=pool.reserved)

    pool.hold(2 * nbytes)
    with w.step("release threshold above the allocated memory"):
        allocate_and_free(pool, stream, nbytes)
        w.record(held=pool.reserved)


def allocate_and_free(pool: Pool, stream: GpuStream, nbytes: int) -> None:
    pool.alloc(nbytes, stream).free(stream)
    stream.synchronize()


def judge_threshold(seen: Json) -> Iterable[Finding]:
    """Warn if a pool did not keep to its release threshold: drivers only *try* to keep to it."""
    nbytes, unheld, held = seen["nbytes"], seen["unheld"], seen["held"]
    if unheld:
        yield Finding.warn(
            "held-below-threshold",
            "a pool whose release threshold is 0 still held {reserved:mib} after synchronising",
            "trimming released the held memory",
            remedy="trim pools when other processes need the memory",
            reserved=unheld,
        )
    if held < nbytes:
        yield Finding.warn(
            "not-held",
            "a pool held {reserved:mib} although its release threshold is {threshold:mib}",
            "less memory than the threshold was allocated and freed",
            reserved=held,
            threshold=2 * nbytes,
        )
