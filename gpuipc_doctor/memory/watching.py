"""The parent's part: run the worker that samples, and hand on what it tells. Loads no driver and no NVML."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.memory import sampling
from gpuipc_doctor.memory.usage import Sample
from gpuipc_doctor.model import Finding, Node, Probe
from gpuipc_doctor.report import documents
from gpuipc_doctor.supervise import blame
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.tree import interruptible

DEADLINE_S = 10.0
"""For one sample, of milliseconds on a healthy node."""


@dataclass(frozen=True, slots=True)
class End:
    """How watching ended: interrupted, or with the one sample asked for, unless one of these says more."""

    trouble: Finding | None = None
    absent: tuple[str, ...] = ()
    """Why no GPU could be read."""


def watch(
    node: Node,
    backends: Sequence[str],
    interval_s: float,
    listener: Callable[[Sample], None],
    *,
    start_up_s: float,
) -> End:
    """Sample each ``interval_s`` seconds until interrupted, or once when that is 0."""
    params = {"interval": interval_s, "backends": list(backends), "root": node.root}
    probe = Probe("", {"sampler": sampling.sample}, params=params, deadline_s=interval_s + DEADLINE_S)
    with (
        Session(node, Limits(start_up_s=start_up_s)) as session,
        interruptible(session.stop),
    ):
        outcome = session.run(
            "memory",
            Path(sampling.__file__),
            probe,
            until=math.inf,
            listener=lambda news: listener(documents.load(Sample, news)),
        )
    if outcome.stopped:
        return End()
    if not outcome.completed:
        return End(blame.conclude(outcome))
    return End(absent=tuple(outcome.records["sampler"].get("absent", ())))
