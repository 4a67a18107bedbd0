"""The buffers that are sent and freed: their planned sizes, and when each is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import environ

from gpuipc_doctor.api import Buffer, Context, Device, Json, Meter, Tier, Worker
from gpuipc_doctor.api.buffer_growth import equal_sizes, growing_sizes, how_many

BASE, STEP, SMALL = 4 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, increase per iteration, and bytes of a small buffer. Small buffers stay
allocated to keep the freed ranges apart. Each fills a driver block, so that no later large buffer overlaps an
earlier one: some libraries (Intel MPI 2021.17.2) would notice the overlap and release the earlier one."""

MOST = 43
"""Maximum iterations; fewer if the memory limit is small."""

MANY = {False: 192, True: 384}
"""Whether the tier is soak → maximum number of small buffers; twice as many in soak, to exceed a cache's
bound twice. A larger cache is as bad as one without a bound: 192 buffers of 1 GiB fill most GPUs."""

FOR_LARGE = {False: 0.6, True: 0.3}
"""Whether the tier is soak → fraction of the memory limit for large buffers. The rest is for the small
buffers, which a library may all keep at the same time."""

SAME, SOAK = 128, 400
"""Iterations with buffers of one size, outside and in the soak tier. Drivers count in blocks of 2 MiB, so the
last third of 128 iterations shows growth from 256 KiB per iteration on; with 400, from 64 KiB on. If used
memory rose by so much as a block in the last two thirds of 128, the others of the 400 follow."""


def plan_growing(ctx: Context, devices: Sequence[Device]) -> dict[str, Json]:
    """Parameters of a probe with buffers that grow, and small ones that follow if they find room."""
    room, soak = ctx.room(devices), ctx.tier is Tier.SOAK
    sizes = growing_sizes(FOR_LARGE[soak] * room, BASE, STEP, MOST)
    blocks = [-(-nbytes // SMALL) * SMALL for nbytes in sizes]
    stay = SMALL * (len(sizes) + len(sizes) // 3)
    rest = (room - sum(blocks)) * len(devices) / 2 - stay - blocks[-1]
    small = how_many(rest, SMALL, MANY[soak])
    return {"sizes": sizes, "small": small, "large": FOR_LARGE[soak] * room, "room": room}


def plan_equal(ctx: Context, devices: Sequence[Device]) -> dict[str, Json]:
    """Parameters of a probe with buffers of one size."""
    room = ctx.room(devices)
    sizes = equal_sizes(room, BASE, 2 * BASE, SOAK if ctx.tier is Tier.SOAK else SAME)
    return {"sizes": sizes, "small": 0, "room": room}


def exceed_limit(w: Worker) -> list[int]:
    """Sizes of the large buffers, if possible larger than the limit of the library's cache.

    Open MPI's smcuda never closes the mapping of a message that is larger than its limit.
    """
    planned: list[int] = w.params["sizes"]
    limit = environ.get(w.params["bounded_by"], "")
    if not w.params["in_bytes"] or "large" not in w.params or not limit.isdecimal():
        return planned
    first = max(BASE, int(limit) + STEP)
    larger = growing_sizes(w.params["large"], first, STEP, MOST)
    if larger[0] == first:
        return larger
    w.record(not_reached=int(limit))
    return planned


def allocate_large(
    w: Worker, sizes: Sequence[int], alive: list[Buffer], freed: list[tuple[int, int]]
) -> Iterator[Buffer]:
    """Allocate buffers of these ``sizes``. If the sizes grow, a small buffer that stays allocated follows
    each one."""
    for nbytes in sizes:
        large = w.gpu.alloc(nbytes)
        freed.append((large.address, nbytes))
        if sizes[0] < sizes[-1]:
            alive.append(w.gpu.alloc(SMALL))
        yield large


def take_from(alive: list[Buffer], follow: list[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers to ``follow`` and remove them from ``alive``."""
    for buffer in follow:
        alive.remove(buffer)
        yield buffer


def stop_when_full(w: Worker, meter: Meter, buffers: Iterator[Buffer], first: int) -> Iterator[Buffer]:
    """The buffers, until a rank's device uses more than ``first`` bytes and the memory limit."""
    while not w.mpi.any_says(meter.used().nbytes > first + w.params["room"]):
        if (buffer := next(buffers, None)) is None:
            return
        yield buffer
