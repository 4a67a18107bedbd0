"""The parent's part: run the sampling worker and pass on its samples. Loads no driver and no NVML.

No GPU context is created, so watching uses no device memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuipc_doctor.model import Finding, Json, Node
from gpuipc_doctor.node.memory_usage import GpuUsers, Sample
from gpuipc_doctor.probe_types import Probe
from gpuipc_doctor.supervise import blame
from gpuipc_doctor.supervise.probe import Limits
from gpuipc_doctor.supervise.session import Session
from gpuipc_doctor.supervise.tree import interruptible

ENOUGH = object()

DEADLINE_S = 10.0
"""Seconds for each call of one sample, which takes milliseconds on a healthy node."""


@dataclass(frozen=True, slots=True)
class End:
    """Why watching ended. Both fields are empty unless something failed."""

    trouble: Finding | None = None
    absent: tuple[str, ...] = ()
    """Why no GPU could be read."""
    users: GpuUsers | None = None
    health: Mapping[str, Json] | None = None


def watch(
    node: Node,
    backends: Sequence[str],
    interval_s: float,
    listener: Callable[[Sample], object],
    *,
    start_up_s: float,
    loads: bool = False,
    users: bool = False,
    health: Mapping[str, Json] | None = None,
    deadline_s: float = DEADLINE_S,
) -> End:
    """Sample at this interval, or once if it is 0, until interrupted or the listener returns `ENOUGH`.

    ``loads``: also read the GPUs' utilisation and power. ``users``: look who uses GPUs, after one sample.
    ``health``: arguments of `Worker.gpu_health`, which is asked after the last sample.
    """
    from gpuipc_doctor.node import memory_sampling  # with NVML, which most runs do not read
    from gpuipc_doctor.report import json_documents

    params = {"interval": interval_s, "backends": list(backends), "root": node.root}
    params |= {"loads": loads, "users": users, "health": health}
    probe = Probe("", {"sampler": memory_sampling.sample}, params=params, deadline_s=interval_s + deadline_s)
    with (
        Session(node, Limits(start_up_s=start_up_s)) as session,
        interruptible(session.stop),
    ):

        def pass_on(news: dict[str, Any]) -> None:
            if listener(json_documents.load(Sample, news)) is ENOUGH:
                session.stop()

        outcome = session.run(
            "memory",
            Path(memory_sampling.__file__),
            probe,
            until=math.inf,
            listener=pass_on,
        )
    if outcome.stopped:
        return End()
    if not outcome.completed:
        return End(blame.conclude(outcome))
    told = outcome.records["sampler"]
    found = json_documents.load(GpuUsers, told["users"]) if "users" in told else None
    return End(absent=tuple(told.get("absent", ())), users=found, health=told.get("health"))
