"""Send growing buffers, free each, and check that device memory is released.

Each iteration allocates a large buffer, a little larger than the last, and a small one that stays; the large
buffer is sent and freed. An MPI library that keeps IPC handles or mappings of freed buffers then loses about
one large buffer each iteration. Where the driver tells memory by process, that shows who keeps it: sender,
receiver or, if only a descriptor does, nobody; elsewhere, of two devices, the one whose used memory grows.
Controls: the same iterations without messages; buffers of one size; and this MPI's own setting that turns IPC
off. If used memory of the whole device changed, it is watched while no rank works, and what it then does is
subtracted; if it moves by itself, growth in bursts is not blamed on MPI.

Only the last third of the iterations counts. If used memory grew, as many small buffers follow as the memory
limit allows, since most caches limit the number of buffers, and then a large one. All are allocated before
the first is freed, so that no address is used twice: even a library without a bound, such as Open MPI's
smcuda, releases a mapping when a later buffer has its address. A cache is bounded if it evicts buffers for
the small ones and levels off; its bound is in bytes if the large buffer then adds nothing. Growth that stops
is a warning, and so is a bounded cache (in the soak tier only if its bound was passed twice). All other
growth is a failure, unless the library's bound is set to more buffers than were sent. Intel MPI's default
bound of 256 is a failure: 17 buffers of 8 GiB fill an H200.

The pattern is that of eth-cscs/alps-gh200-reproducers (gpudirect-oom).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Finding,
    Json,
    Line,
    Meter,
    Probe,
    ProbeOutcome,
    Reading,
    Series,
    Subject,
    Tier,
    Worker,
    blind,
    watched,
)
from gpuipc_doctor.api.buffer_growth import Outcome
from gpuipc_doctor.api.driver_errors import NotAlone
from gpuipc_doctor.api.latency import record_bandwidth
from gpuipc_doctor.api.meter import meter_in_turn

from ._mpi_cache_growth_buffers import (
    SMALL,
    SOAK,
    allocate_large,
    exceed_limit,
    plan_equal,
    plan_growing,
    stop_when_full,
    take_from,
)
from ._mpi_cache_growth_findings import JUDGES, judge_flat
from ._mpi_cache_growth_series import growth_so_far, is_lost, measure_devices


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI releases the memory of freed buffers"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True
    curable_warnings = frozenset({"keeps-many", "grows-a-little"})
    explains_losses = curable_warnings | {"grows"}

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        roles = {"sender": iterate, "receiver": iterate}
        common: dict[str, Json] = {
            "bounded_by": ctx.mpi.cache_bound,
            "bounded_to": ctx.mpi.cache_buffers,
            "in_bytes": ctx.mpi.cache_in_bytes,
            "decides": ctx.tier is Tier.SOAK,
        }
        for devices in ctx.a_pair_or_device_of_each_backend:
            growing = {**common, **plan_growing(ctx, devices)}
            equal = {**common, **plan_equal(ctx, devices)}
            planned = [
                ("growing", growing, {}),
                ("one size", equal, {}),
                ("IPC off", growing, ctx.mpi.ipc_off),
            ]
            for name, params, env in planned if ctx.mpi.ipc_off else planned[:2]:
                launch = ctx.mpi.with_env(env)
                yield Probe(name, roles, devices, params, exclusive=True, by_process=True, launch=launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if unsure := blind(done):
            yield unsure
            return
        devices = measure_devices(done)
        outcomes = [(device.outcome, device) for device in devices]
        found = [JUDGES[outcome](device) for outcome, device in outcomes if outcome is not Outcome.FLAT]
        yield from found or [judge_flat(done, devices)]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        devices, is_shared = measure_devices(done), len(done.devices) == 1
        lines = [
            Line(
                "device of both ranks" if is_shared else f"{each.role}'s device", each.growth.since_the_first
            )
            for each in devices
        ]
        at = tuple(range(1, len(lines[0].values) + 1))
        large = devices[0].growth.sizes
        sizes = (*large, *[SMALL] * done.params["small"], large[-1])[: len(at)]
        title = f"{done.probe}: growth of used memory since the first iteration"
        yield Series(title, "iteration", at, (*lines, Line("size of the freed buffer", sizes)))


def iterate(w: Worker) -> None:
    meter = meter_in_turn(w)
    sizes = exceed_limit(w)
    freed = list[tuple[int, int]]()
    small = [SMALL] * w.params["small"]
    follow = [w.gpu.alloc(nbytes) for nbytes in (small and [*small, sizes[-1]])]
    alive = follow[:]
    quietly = allocate_large(w, sizes[: len(sizes) // 3], alive, freed)
    quiet = w.clock()
    control, _ = send_and_free(w, meter, quietly, alive, communicates=False)
    are_equal = sizes[0] == sizes[-1]
    buffers = allocate_large(w, sizes, alive, freed)
    if are_equal:  # otherwise small buffers stay, which take addresses
        buffers = watched(w, "sent and freed buffer", buffers)
    began = w.clock()
    used, held = send_and_free(w, meter, buffers, alive)
    w.record(seconds_control=(began - quiet) / len(control), seconds=(w.clock() - began) / len(used))
    if w.mpi.any_says(meter.may_move(used, control)):
        meter.watch_idle(w.clock() - began)
        w.mpi.barrier()
    if are_equal and w.mpi.any_says(growth_so_far(meter, sizes, used, control).may_creep):
        sizes = [*sizes, *sizes[-1:] * (SOAK - len(sizes))]
        others = stop_when_full(w, meter, allocate_large(w, sizes[len(used) :], alive, freed), used[0].nbytes)
        further, holders = send_and_free(w, meter, others, alive)
        used += further
        held = [each + more for each, more in zip(held, holders, strict=True)]
    w.record(sizes=sizes[: len(used)], held=held, free=w.gpu.memory_info()[0])
    w.record(used=[each.nbytes for each in used], control=[each.nbytes for each in control])
    w.record(at=[each.at for each in used], control_at=[each.at for each in control])
    decides = w.params["decides"]
    if follow and (decides or w.mpi.any_says(growth_so_far(meter, sizes, used, control).may_grow)):
        w.record(follow=[(buffer.address, buffer.nbytes) for buffer in follow], freed=freed)
        others = stop_when_full(w, meter, take_from(alive, follow), used[0].nbytes)
        then, _ = send_and_free(w, meter, others, alive)
        w.record(then=[each.nbytes for each in then], at=[each.at for each in (*used, *then)])
    if w.by_process and w.mpi.any_says(is_lost(held)):
        raise NotAlone("memory that no process holds grows")
    record_bandwidth(w, sizes[-1])
    w.mpi.finalize()


def send_and_free(
    w: Worker,
    meter: Meter,
    buffers: Iterable[Buffer],
    alive: Sequence[Buffer],
    *,
    communicates: bool = True,
) -> tuple[list[Reading], list[list[int | None]]]:
    """Send each buffer and free it.

    Returns used memory after each iteration, less the ``alive`` buffers of this node's ranks, and this
    process's usage of each device; last what no process holds of this rank's.
    """
    partner, ranks, used = 1 - w.mpi.rank, w.mpi.size // len(w.gpus), list[Reading]()
    held: list[list[int | None]] = [[] for _ in (*w.gpus, "nobody")]
    for number, buffer in enumerate(buffers, 1):
        with buffer, w.step(f"iteration {number}, {buffer.nbytes} B"):
            if communicates and w.role == "sender":
                w.mpi.send(buffer.address, buffer.nbytes, partner)
            elif communicates:
                w.mpi.recv(buffer.address, buffer.nbytes, partner)
            w.mpi.barrier()
        w.mpi.barrier()
        ours = sum(buffer.nbytes for buffer in alive)
        used.append(meter.used().less(ours * ranks))
        for series, each in zip(held, w.gpus, strict=False):
            theirs = each.memory_of_this_process()
            series.append(theirs if theirs is None or each is not w.gpu else theirs - ours)
        nobodys = w.memory_of_nobody()[w.gpus.index(w.gpu)]
        held[-1].append(nobodys and nobodys[0])
    return used, held


CHECK = MpiCacheGrowth()
