"""Run the prolog's checks: the engine, within what is left of the budget, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuipc_doctor import engine
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.model import Node, Report, Tier
from gpuipc_doctor.plan import Request
from gpuipc_doctor.prolog.order import Order
from gpuipc_doctor.supervise.execution import Limits

RESERVE_S = 0.5
"""Of the budget, for ending the workers, deciding and writing it down; of a small one a quarter."""

SCRATCH = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - a private directory is made there
"""Where the run's own directory may be, best first: shared memory is neither a full disk nor a network's."""

ROOMY_BYTES = 64 << 20


@contextmanager
def scratch() -> Iterator[Path]:
    """The directory for everything that a run writes for itself; gone afterwards.

    No variable such as ``TMPDIR`` has a say in where it is.
    """
    directory = Path(tempfile.mkdtemp(prefix="gpuipc-doctor-prolog-", dir=_roomy()))
    tempfile.tempdir = str(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _roomy() -> Path:
    for place in SCRATCH:
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOMY_BYTES:
            return place
    return SCRATCH[-1]


def test(
    order: Order, site: SiteConfig, budget_s: float, directory: Path, tell_doing: Callable[[str], None]
) -> Report:
    """Test the node until shortly before the budget ends, which began when the process did."""
    until = order.started_at + budget_s - min(RESERVE_S, budget_s / 4)
    request = Request(
        checks=site.prolog.checks,
        tier=Tier.PROLOG,
        deadline_s=site.prolog.deadline_s,
        budget_s=max(until - time.monotonic(), 0.01),
        workarounds=False,
        job_gpus=order.gpus,
    )
    limits = Limits(start_up_s=site.start_up_s, settle_s=0.2, grace_s=0.1, kill_s=0.3)
    node = _node(site.prolog.simulate, directory)
    return engine.run(request, site, node, _Watcher(tell_doing), remove=[directory], limits=limits)


def _node(profile: str, directory: Path) -> Node:
    if not profile:
        return Node()
    from gpuipc_doctor.simulator.node import prepare

    state = directory / "node"
    state.mkdir(mode=0o700)
    return prepare(profile, state)


class _Watcher:
    """Tells what runs; see `runner.Watcher`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._running: dict[str, str] = {}

    def planned(self, total: int) -> None: ...

    def started(self, key: str, text: str, deadline_s: float) -> None:
        self._running[key] = text
        self._say()

    def finished(self, key: str) -> None:
        self._running.pop(key, None)
        self._say()

    def _say(self) -> None:
        running = list(self._running.values())
        self._tell(f"{', '.join(running[:3])} ran" if running else "nothing ran")
