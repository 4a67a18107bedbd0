"""A rank that is killed in an operation: the others abort, and all ranks start again.

Beside a process for each rank there is one that takes the place of rank 0 at first, on the same device. When
it is killed, the other ranks queue an operation that can never end. They abort the communicator, and rank 0
itself takes part in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuipc_doctor.api import Collectives, Communicator, Context, GpuStream, Probe, Tier, Worker
from gpuipc_doctor.collective.all_ranks import AllRanks
from gpuipc_doctor.collective.communicators import LEAST_DEVICE, figures, first_sum_is_right

NAME = "killed rank"

HARMS = frozenset({"kills an importer"})
"""Ranks map each other's memory."""

LEAST = {"device": 16 * LEAST_DEVICE, "descriptors": 1, "threads": 1, "shared": 1}
"""Figure → the least growth that counts. A single growth of device memory may be a kernel that was loaded."""

SETTLES_S = 2.0
"""Seconds in which a growth may go: memory that is released late, another job's start."""


def after_launch(ctx: Context, launch: Probe) -> Iterator[Probe]:
    """The probe for the ranks of a launch, in soak."""
    if ctx.tier is Tier.SOAK and len(launch.devices) > 1:
        killed = f"{NAME} 0"
        roles = {**dict.fromkeys(launch.roles, outlive), killed: be_killed}
        concurrent, ends = frozenset(roles), frozenset({killed})
        alone = replace(launch, by_process=False, alone_at_first=False)  # a killed rank's memory is nobody's
        yield replace(alone, name=NAME, roles=roles, concurrent=concurrent, harms=HARMS, ends=ends)


def be_killed(w: Worker) -> None:
    """Be rank 0 until the others are about to queue an operation."""
    ranks = AllRanks(w)
    library = w.collectives(w.params["library"])
    for _ in range(3):  # the others start and end a communicator, and look at what they hold
        ranks.all_say(None)
    comm = _begin_with_killed(ranks, library, library.unique_id())
    first_sum_is_right(w, comm, w.gpu.create_stream())
    ranks.all_say(None)
    w.die()


def outlive(w: Worker) -> None:
    """Be a rank that outlives the killed one."""
    ranks = AllRanks(w)
    library = w.collectives(w.params["library"])
    w.gpu.primary_context()
    stream = w.gpu.create_stream()
    with w.step("communicator before a rank is killed"):
        _start_and_end(w, ranks, library, stream)
    before = figures(w)
    ranks.all_say(None)
    abort_s = _lose_rank(w, ranks, library, stream)
    with w.step("communicator after a rank was killed"):
        start_s, is_right = _start_and_end(w, ranks, library, stream)
    w.wait_until(lambda: not growth(before, figures(w)), SETTLES_S)
    w.record(abort_s=abort_s, start_s=start_s, wrong=not is_right, left=growth(before, figures(w)))


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Figure → how much it has grown, if that counts."""
    grown = {name: after[name] - before[name] for name in LEAST if name in before and name in after}
    return {name: more for name, more in grown.items() if more >= LEAST[name]}


def _begin_with_killed(ranks: AllRanks, library: Collectives, unique_id: bytes | None = None) -> Communicator:
    """A communicator in which the killed rank, the last role, is rank 0."""
    return library.init(ranks.size, ranks.all_say(unique_id)[-1], ranks.rank)


def _begin_alone(ranks: AllRanks, library: Collectives) -> Communicator:
    ranks.all_say(None)
    return library.init(1, library.unique_id(), 0)


def _lose_rank(w: Worker, ranks: AllRanks, library: Collectives, stream: GpuStream) -> float:
    """Lose a rank in an operation; returns the seconds of the abort.

    Rank 0 makes the same calls with a communicator of its own, since hanging ranks are compared by them.
    """
    with w.step("communicator of a rank that will be killed"):
        comm = (_begin_alone if ranks.is_first else _begin_with_killed)(ranks, library)
        first_sum_is_right(w, comm, stream)
    ranks.all_say(None)
    if ranks.is_first:
        ranks.others.pop().wait_gone()
    with w.step("a rank is killed"), w.gpu.alloc(4) as buffer:
        # As large as the sum before: another size may first connect ranks, which waits for the killed one.
        comm.all_reduce(buffer.address, buffer.address, 1, "int32", stream)
        ranks.all_say(None)  # the rank is gone
        began = w.clock()
        comm.abort()
        stream.synchronize()
        seconds = w.clock() - began
    ranks.all_say(None)
    return seconds


def _start_and_end(w: Worker, ranks: AllRanks, library: Collectives, stream: GpuStream) -> tuple[float, bool]:
    """Seconds of the start of a communicator of all ranks, and whether its first sum is right."""
    began = w.clock()
    comm = ranks.begin(library)
    is_right = first_sum_is_right(w, comm, stream)
    seconds = w.clock() - began
    comm.destroy()
    ranks.all_say(None)
    return seconds, is_right
