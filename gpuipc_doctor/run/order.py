"""In which order probes start, and which of them may run at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpuipc_doctor.model import Device, Tier
from gpuipc_doctor.run.tours import Tour

MAX_JOBS, MAX_JOBS_OF_ONE = 4, 6
"""Maximum probes at a time, and on a single GPU. Drivers initialise one process at a time, so with more
probes, processes would wait for each other and might exceed their deadlines."""


def jobs(devices: Sequence[Device]) -> int:
    """Maximum number of probes at a time on this node."""
    return min(MAX_JOBS_OF_ONE if len(devices) == 1 else MAX_JOBS, len(os.sched_getaffinity(0)))


def priority(planned: Tour) -> tuple[bool, Tier, int, bool, int]:
    """Sort key: what shares its devices after a while, so that the rest runs beside it; checks of the prolog,
    then other shared probes, which run beside these: of these first the one that takes longest, which starts
    processes. Then come exclusive probes, those with most devices first. MPI jobs run in the gaps."""
    probe = planned.probe
    most_first = -len(probe.devices) if probe.exclusive else 0
    return not planned.will_share, planned.check.tier, turn(planned), not probe.starters, most_first


def turn(planned: Tour) -> int:
    """0 for a probe that shares its devices, now or later, 1 for an exclusive one, 2 for an MPI job."""
    is_exclusive = planned.probe.exclusive and not planned.will_share
    return 1 if is_exclusive else 2 if planned.probe.launch else 0


def startable(waiting: Sequence[Tour], running: Sequence[Tour], jobs: int) -> list[Tour]:
    """Probes that may start now, in order: an exclusive probe needs unused devices.

    At most half are MPI jobs, since two busy-waiting ranks use two processors.
    """
    used = {device for planned in running for device in planned.probe.devices}
    closed = {device for planned in running if planned.probe.exclusive for device in planned.probe.devices}
    chosen: list[Tour] = []
    for planned in waiting:
        if len(running) + len(chosen) >= jobs:
            break
        launched = sum(item.probe.launch is not None for item in (*running, *chosen))
        if planned.probe.launch and launched >= max(jobs // 2, 1):
            continue
        devices = set(planned.probe.devices)
        if planned.probe.exclusive and devices & used:
            closed |= devices  # the probe is earlier than those that share its devices
            continue
        if not planned.probe.exclusive and devices & closed:
            continue
        chosen.append(planned)
        used |= devices
        if planned.probe.exclusive:
            closed |= devices
    return chosen
