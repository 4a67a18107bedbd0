"""What the prolog does, in the guard's child, where it may hang: read the config, run the checks, decide."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpuipc_doctor import config
from gpuipc_doctor.config import PrologConfig, SiteConfig
from gpuipc_doctor.model import Json, Node, Report, Tier
from gpuipc_doctor.prolog import decision
from gpuipc_doctor.prolog.decision import Concern, Decision, Kind
from gpuipc_doctor.prolog.guard import Tell
from gpuipc_doctor.yamlfile import BadFile

RESERVE_S = 0.5
"""Of the budget, for ending the workers, deciding and writing it down; of a small one a quarter."""

SCRATCH = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - a private directory is made there
"""Where the run's own directory may be, best first: shared memory is neither a full disk nor a network's."""

ROOMY_BYTES = 64 << 20


class Order(NamedTuple):
    """What the command line asks for. ``started_at``: `time.monotonic()` seconds; ``budget_s``: seconds."""

    started_at: float
    config: Path | None = None
    budget_s: float | None = None


def do(order: Order, tell: Tell) -> None:
    """Test the node and answer."""
    tell.doing(f"it read {order.config}")
    try:
        site = config.load(order.config) if order.config else SiteConfig()
    except BadFile as bad:
        for mistake in bad.mistakes:
            tell.say(f"gpuipc-doctor: {mistake}")
        text = f"ERROR the config is wrong, so there is no policy and the job starts: {bad.mistakes[0]}"
        tell.answer(0, decision.line(text))
        return
    budget_s = order.budget_s or site.budget_s[Tier.PROLOG]
    tell.ends_at(order.started_at + budget_s)
    until = order.started_at + budget_s - min(RESERVE_S, budget_s / 4)
    with _scratch(tell, site.prolog) as scratch:
        report = _run(site, scratch, until, tell)
    answer(tell, _decision(report, site.prolog))


def settle(kind: str, what: str, kept: Json, tell: Tell) -> None:
    """Answer for a child that did not (see `guard.Settle`)."""
    policy = PrologConfig.read(kept["policy"]) if kept else PrologConfig()
    if kind:
        concern = Concern(Kind(kind), f"{Kind(kind).word} {what}")
        answer(tell, decision.decide([concern], policy, otherwise="", mark=_mark(policy)))
    if kept:
        shutil.rmtree(kept["scratch"], ignore_errors=True)


def answer(tell: Tell, decided: Decision) -> None:
    tell.answer(decided.exit_code, decided.line)


def _decision(report: Report, policy: PrologConfig) -> Decision:
    return decision.decide(
        decision.concerns(report), policy, otherwise=decision.passed(report), mark=_mark(policy)
    )


def _mark(policy: PrologConfig) -> str:
    return f"SIMULATED ({policy.simulate})" if policy.simulate else ""


@contextmanager
def _scratch(tell: Tell, policy: PrologConfig) -> Iterator[Path]:
    """The run's own directory, for everything that it writes for itself; gone afterwards.

    No variable such as ``TMPDIR`` has a say in where it is.
    """
    scratch = Path(tempfile.mkdtemp(prefix="gpuipc-doctor-prolog-", dir=_roomy()))
    tempfile.tempdir = str(scratch)
    tell.keep({"policy": policy.written(), "scratch": str(scratch)})
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _roomy() -> Path:
    for place in SCRATCH:
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOMY_BYTES:
            return place
    return SCRATCH[-1]


def _run(site: SiteConfig, scratch: Path, until: float, tell: Tell) -> Report:
    from gpuipc_doctor import engine
    from gpuipc_doctor.plan import Request
    from gpuipc_doctor.supervise.execution import Limits

    request = Request(
        tier=Tier.PROLOG,
        deadline_s=site.prolog.deadline_s,
        budget_s=max(until - time.monotonic(), 0.01),
        workarounds=False,
        job_gpus=os.environ.get("SLURM_JOB_GPUS", ""),
    )
    limits = Limits(start_up_s=site.start_up_s, settle_s=0.2, grace_s=0.1, kill_s=0.3)
    node = _node(site.prolog.simulate, scratch)
    return engine.run(request, site, node, _Watcher(tell), remove=[scratch], limits=limits)


def _node(profile: str, scratch: Path) -> Node:
    if not profile:
        return Node()
    from gpuipc_doctor.simulator.node import prepare

    state = scratch / "node"
    state.mkdir(mode=0o700)
    return prepare(profile, state)


class _Watcher:
    """Tells the guard what runs; see `runner.Watcher`."""

    def __init__(self, tell: Tell) -> None:
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
        self._tell.doing(f"{', '.join(running[:3])} ran" if running else "nothing ran")
