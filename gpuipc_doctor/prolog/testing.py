"""Run the prolog's checks: the engine, within what is left of the budget, in a directory of its own."""

from __future__ import annotations

import os
import secrets
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
from gpuipc_doctor.supervise.keeping import Keeper

RESERVE_S = 0.5
"""Of the budget, for ending the workers, deciding and writing it down; of a small one a quarter."""

ROOMY = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - private directories are made there
"""Where a run's own files may be, best first: shared memory is neither a full disk nor a network's."""

ROOMY_BYTES = 64 << 20


def _roomy() -> Path:
    for place in ROOMY:
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOMY_BYTES:
            return place
    return ROOMY[-1]


def test(order: Order, site: SiteConfig, budget_s: float, tell_doing: Callable[[str], None]) -> Report:
    """Test the node until shortly before the budget ends, which began when the process did.

    No variable such as ``TMPDIR`` has a say in where the run's files are.
    """
    until = order.started_at + budget_s - min(RESERVE_S, budget_s / 4)
    tempfile.tempdir = str(_roomy())
    with _node(site.prolog.simulate) as node:
        request = Request(
            checks=site.prolog.checks,
            tier=Tier.PROLOG,
            deadline_s=site.prolog.deadline_s,
            budget_s=max(until - time.monotonic(), 0.01),
            workarounds=False,
            job_gpus=order.gpus,
        )
        limits = Limits(start_up_s=site.start_up_s, settle_s=0.2, grace_s=0.1, kill_s=0.3)
        return engine.run(request, site, node, _Watcher(tell_doing), limits=limits)


@contextmanager
def _node(profile: str) -> Iterator[Node]:
    """The node to test; a simulated one has files, which are removed whatever becomes of this process."""
    if not profile:
        yield Node()
        return
    from gpuipc_doctor.simulator.node import prepare

    marker = secrets.token_hex(8)
    state = Path(tempfile.gettempdir()) / f"gpuipc-doctor-node-{marker}"
    keeper = Keeper(marker, [state])
    try:
        state.mkdir(mode=0o700)
        yield prepare(profile, state)
    finally:
        shutil.rmtree(state, ignore_errors=True)
        keeper.dismiss()


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
        last = self._running.pop(key)
        if self._running:
            self._say()
        else:
            self._tell(f"what {last} showed was concluded")

    def _say(self) -> None:
        self._tell(f"{', '.join(list(self._running.values())[:3])} ran")
