"""Run the prolog's checks with the engine, within the rest of the budget, in a private directory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.files.writing import make_directory
from gpuipc_doctor.model import Node, Tier
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request, Watcher
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise import scratch
from gpuipc_doctor.supervise.probe import Limits

RESERVE_S = 0.5
"""Seconds of the budget for ending workers, deciding and logging; at most a quarter of the budget."""

ROOMY = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - private directories are made there
"""Directories for a run's files, best first. Shared memory comes first: a disk may be full or slow."""

LAST, LAST_BYTES = Path("/run/gpuipc-doctor/files"), 8 << 20
"""Directory for a run's files if a user has filled all of `ROOMY`, and its size in bytes."""

HANG_S, COLD_START_S = 30.0, 10.0
"""Seconds after which a call certainly hangs: `HANG_S` or, if longer, `COLD_START_S` for each GPU of the
node. Without persistence mode, a driver initialises GPUs one by one, 7 s each."""


START_S = 8.0
"""Further seconds in which the processes of each GPU start on a busy node."""


def usual_deadline_s(gpus: int) -> float:
    """Seconds for each operation on a node with this many GPUs, if the site does not state them."""
    return max(HANG_S, COLD_START_S * gpus)


class TimeLimits(NamedTuple):
    """Time limits. ``started_at``: `time.monotonic()` seconds at the start of the process."""

    started_at: float
    budget_s: float
    deadline_s: float
    """Seconds for each operation."""

    @property
    def ends_at(self) -> float:
        return self.started_at + self.budget_s

    @property
    def patient(self) -> TimeLimits:
        """With time for each GPU, tested apart from the others, to outlive the deadline: that tells a hang
        from a slow start."""
        return self._replace(budget_s=self.budget_s + self.deadline_s + START_S)


def places() -> tuple[Path, ...]:
    """`ROOMY`; before them, if all are full or cannot be written, `LAST`."""
    lacking = (scratch.lacks(place, LAST_BYTES) or not os.access(place, os.W_OK | os.X_OK) for place in ROOMY)
    return (LAST, *ROOMY) if all(lacking) and _make_last() else ROOMY


def _make_last() -> bool:
    """Mount memory at `LAST` for root's eyes and this process and its children only; it ends with them.

    Needs root, and mount namespaces: see unshare(2), mount(2).
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive_slave, no_setuid_no_devices = 0x20000, 0x4000 | 0x80000, 0x2 | 0x4
    try:
        make_directory(LAST, 0o700)
    except OSError:
        return False
    if os.geteuid() != 0 or untrusted(LAST / "directory") or libc.unshare(new_mounts):
        return False
    options = f"size={LAST_BYTES},mode=0700".encode()
    return not (
        libc.mount(b"none", b"/", None, recursive_slave, None)  # the node's other mounts go on to appear
        or libc.mount(b"tmpfs", os.fsencode(LAST), b"tmpfs", no_setuid_no_devices, options)
    )


@contextmanager
def node(profile: str) -> Iterator[Node]:
    """The node to test. The files of a simulated node are removed however this process ends.

    ``TMPDIR`` and similar variables do not change the directory of the run's files.
    """
    usable = places()
    tempfile.tempdir = str(usable[0])
    if not profile:
        yield Node()
        return
    from gpuipc_doctor.simulator.node import prepare

    with scratch.directory((*ROOMY, LAST.parent)) as state:  # with memory of GPUs, for which LAST is small
        yield prepare(profile, state)


def run_checks(
    site: SiteConfig, node: Node, gpus: str, limits: TimeLimits, watcher: Watcher, *, apart: bool
) -> Report:
    """Test a job's GPUs until shortly before the budget ends; ``apart``: each in processes of its own."""
    until = limits.ends_at - min(RESERVE_S, limits.budget_s / 4)
    request = Request(
        checks=site.prolog.checks,
        tier=Tier.PROLOG,
        deadline_s=limits.deadline_s,
        budget_s=max(until - time.monotonic(), 0.01),
        workarounds=False,
        job_gpus=gpus,
        by_gpu=apart,
    )
    ending = Limits(start_up_s=site.start_up_s, settle_s=0.2, grace_s=0.1, kill_s=0.3)
    return engine.run(request, site, node, watcher, limits=ending)
