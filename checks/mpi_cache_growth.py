"""Send growing buffers, free each, and check that device memory is released.

The pattern is that of eth-cscs/alps-gh200-reproducers (gpudirect-oom): each iteration allocates a large
buffer, a little larger than the last, and a small one that stays; the large buffer is sent and freed. An MPI
library that keeps IPC handles or mappings of freed buffers then loses about one large buffer each iteration.
With two devices, the device whose used memory grows shows whose memory is lost. Controls: the same iterations
without messages; buffers of one size; and this MPI's own setting that turns IPC off. If used memory changed,
it is watched while no rank works, and what it then does is subtracted.

Only the last third of the iterations counts. If used memory grew, as many small buffers follow as the memory
limit allows, since most caches limit the number of buffers, and then a large one. All are allocated before
the first is freed, so that no address is used twice: even a library without a bound, such as Open MPI's
smcuda, releases a mapping when a later buffer has its address. A cache is bounded if it evicts buffers for
the small ones and levels off; its bound is in bytes if the large buffer then adds nothing. Growth that stops
is a warning, and so is a bounded cache (in the soak tier only if its bound was passed twice). All other
growth is a failure, unless the library's bound is set to more buffers than were sent. Intel MPI's default
bound of 256 is a failure: 17 buffers of 8 GiB fill an H200.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import environ

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Evidence,
    Finding,
    Json,
    Ledger,
    Line,
    Probe,
    ProbeOutcome,
    Reading,
    Series,
    Tier,
    Worker,
    account,
    blind,
    watched,
)
from gpuipc_doctor.api.buffer_growth import (
    BufferGrowth,
    equal_sizes,
    growing_sizes,
    held_by,
    how_many,
    share_no_address,
)
from gpuipc_doctor.api.latency import record_bandwidth
from gpuipc_doctor.api.ledger import interval, ledger_in_turn
from gpuipc_doctor.api.trend import last_third

BASE, STEP, SMALL = 4 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, increase per iteration, and bytes of a small buffer. Small buffers stay
allocated to keep the freed ranges apart. Each fills a driver block, so that no later large buffer overlaps an
earlier one: some libraries (Intel MPI 2021.17.2) would notice the overlap and release the earlier one."""

MOST = 43
"""Maximum iterations; fewer if the memory limit is small."""

TELLING = 180 << 20
"""Minimum bytes of all large buffers together. With fewer, some buffers have the same number of 2 MiB blocks
and reuse earlier addresses, so that a run without growth would prove nothing."""

MANY = {False: 192, True: 384}
"""Whether the tier is soak → maximum number of small buffers; twice as many in soak, to exceed a cache's
bound twice. A larger cache is as bad as one without a bound: 192 buffers of 1 GiB fill most GPUs."""

FOR_LARGE = {False: 0.6, True: 0.3}
"""Whether the tier is soak → fraction of the memory limit for large buffers. The rest is for the small
buffers, which a library may all keep at the same time."""

TOO_FEW = 24
"""Minimum growing buffers to distinguish a leak from a cache. Each buffer is 2 MiB larger than the last, so a
cache of two buffers grows like a loss of 4 MiB per buffer."""

SAME, SOAK = 128, 400
"""Iterations with buffers of one size, outside and in the soak tier. Drivers count in blocks of 2 MiB, so the
last third of 128 iterations shows growth from 256 KiB per iteration on; with 400, from 64 KiB on. If used
memory rose by so much as a block in the last two thirds of 128, the others of the 400 follow."""

RISES = 0.9
"""Used memory that rose until this part of the iterations, or longer, still rises."""

TELL_LEAK = "to tell a leak from a cache, run `gpuipc-doctor check mpi-cache-growth --tier soak`"


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI releases the memory of freed buffers"
    requires = frozenset({"multi-process"})
    needs_mpi = True
    curable_warnings = frozenset({"keeps-many", "grows-a-little"})
    explains_losses = curable_warnings | {"grows", "stops"}

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        roles, soak = {"sender": iterate, "receiver": iterate}, ctx.tier is Tier.SOAK
        common: dict[str, Json] = {
            "bounded_by": ctx.mpi.cache_bound,
            "bounded_to": ctx.mpi.cache_buffers,
            "in_bytes": ctx.mpi.cache_in_bytes,
            "decides": soak,
        }
        for devices in ctx.a_pair_or_device_of_each_backend:
            room = ctx.room(devices)
            large = FOR_LARGE[soak] * room
            sizes = growing_sizes(large, BASE, STEP, MOST)
            blocks = [-(-nbytes // SMALL) * SMALL for nbytes in sizes]
            stay = SMALL * (len(sizes) + len(sizes) // 3)
            rest = (room - sum(blocks)) * len(devices) / 2 - stay - blocks[-1]
            small = how_many(rest, SMALL, MANY[soak])
            grow: dict[str, Json] = {**common, "sizes": sizes, "small": small, "large": large, "room": room}
            equal = equal_sizes(room, BASE, 2 * BASE, SOAK if soak else SAME)
            same: dict[str, Json] = {**common, "sizes": equal, "small": 0, "room": room}
            planned = [("growing", grow, {}), ("one size", same, {}), ("IPC off", grow, ctx.mpi.ipc_off)]
            for name, params, env in planned if ctx.mpi.ipc_off else planned[:2]:
                launch = ctx.mpi.with_env(env)
                yield Probe(name, roles, devices, params, exclusive=True, launch=launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if unsure := blind(done):
            yield unsure
            return
        seen = measured(done)
        found = [
            judge_hidden(done, *each) if each[1].is_hidden else judge_growth(done, place, *each)
            for place, each in enumerate(seen.items())
        ]
        yield from filter(None, found) if any(found) else [judge_plateau(done, seen)]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        seen, shared = measured(done), len(done.devices) == 1
        lines = [
            Line("device of both ranks" if shared else f"{role}'s device", each.since_the_first)
            for role, each in seen.items()
        ]
        at = tuple(range(1, len(lines[0].values) + 1))
        sizes = next(iter(seen.values())).sizes
        sizes = (*sizes, *[SMALL] * done.params["small"], sizes[-1])[: len(at)]
        title = f"{done.probe}: growth of used memory since the first iteration"
        yield Series(title, "iteration", at, (*lines, Line("size of the freed buffer", sizes)))


# -- judging ----------------------------------------------------------------------------------------------


def measured(done: ProbeOutcome) -> dict[str, BufferGrowth]:
    """Role → growth of its device's used memory. If both ranks share a device, both have the same growth."""
    ranks, small = list(done.records.items())[: len(done.devices)], done.params["small"]
    are_apart = all(
        share_no_address(record["follow"], record["freed"])
        for record in done.records.values()
        if "follow" in record
    )
    found = {}
    for place, (role, record) in enumerate(ranks):
        idle, sent, at = account(record).idle, len(record["used"]), record.get("at", [])
        series = idle.without([*record["used"], *record.get("then", [])], at)
        control = idle.without(record["control"], record.get("control_at", []))
        doubt = idle.change_within(record["seconds"] * len(last_third(record["used"])))[1]
        held = held_by_all(
            [*each["held"][place], *(each["then_held"][place] if "then_held" in each else ())]
            for each in done.records.values()
        )
        if idle.moves and held:
            series, control, doubt = held, [0.0] * len(control), 0.0
        then = series[sent:]
        found[role] = BufferGrowth(
            record["sizes"],
            series[:sent],
            control,
            then[:small],
            SMALL,
            then[small:],
            are_apart,
            max(1.0, record["seconds"] / record["seconds_control"]),
            doubt,
        )
    return found


def held_by_all(held: Iterable[Sequence[int | None]]) -> list[float]:
    """The sum of these series of processes' usage; empty if the driver does not report it."""
    sums = [
        None if None in each else float(sum(map(int, filter(None, each)))) for each in zip(*held, strict=True)
    ]
    return [] if None in sums else [each for each in sums if each is not None]


def judge_plateau(done: ProbeOutcome, seen: dict[str, BufferGrowth]) -> Finding:
    """Judge a run without growth: PASS, or SKIP if its buffers were too small to be cached."""
    evidence = [each.plateau(role, account(done.records[role]).block) for role, each in seen.items()]
    room = sum(next(iter(seen.values())).sizes)
    least = TELLING / FOR_LARGE[done.params["decides"]] / 2**20
    if room < TELLING:
        return Finding.skip(
            "share-too-small",
            "no buffer was kept, but {room:mib} may be too little to fill a cache ({variant})",
            *evidence,
            remedy=f"raise `memory` in the site config to {least:.0f} MiB of device memory",
            room=room,
            variant=done.probe,
        )
    if limit := next(iter(done.records.values())).get("not_reached"):
        return Finding.skip(
            "limit-not-reached",
            "the memory limit is too small for messages over {limit} B, set by {variable} ({variant})",
            *evidence,
            remedy="raise the limit of device memory: `memory` in the site config",
            variable=done.params["bounded_by"],
            limit=limit,
            variant=done.probe,
        )
    return Finding.ok("levels-off", "memory is released ({variant})", *evidence, variant=done.probe)


def judge_hidden(done: ProbeOutcome, role: str, seen: BufferGrowth) -> Finding:
    """The ERROR if used memory moves by itself, and no growth is large enough to be seen."""
    says = "growth below {least:bytes} with each message would not have been noticed ({variant})"
    return account(done.records[role]).moving(
        Evidence.seen(says, least=seen.unsuspicious, variant=done.probe)
    )


def judge_growth(done: ProbeOutcome, place: int, role: str, seen: BufferGrowth) -> Finding | None:
    """Judge the growth on the device of ``role``; ``place`` is the index of this device."""
    growth, params, decides = seen.growth, done.params, done.params["decides"]
    sent, followed = len(seen.small), len(seen.small) + len(seen.late)
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    values: dict[str, Json] = {"where": where, "growth": growth.estimate, "variant": done.probe}
    rate, held = interval(growth, len(seen.used)), held_by(done, place, growth)
    are_few = seen.sizes[0] < seen.sizes[-1] and not params["small"] and len(seen.used) < TOO_FEW
    if are_few and (seen.grows or seen.rose_often):
        return Finding.error(
            "too-few-to-tell",
            "cannot tell a cache from a leak after {times} buffers: {buffers} are kept {where} ({variant})",
            rate,
            *held,
            remedy="raise `memory` in the site config to 1024 MiB of device memory",
            times=len(seen.used),
            buffers=seen.at_least,
            **values,
        )
    if not seen.grows:
        return judge_creep(done, role, seen) if seen.creep or seen.climb else None
    remedy, most = bounded_by(params), params["bounded_to"] or 0
    all_sent = not params["small"] or followed > params["small"]
    bound = seen.bound if all_sent else None
    kept = "{bound:mib} of freed buffers" if seen.counts_bytes else "{buffers:round} freed buffers"
    if bound and seen.was_passed(bound, 2 if decides else 1):
        values |= {"bound": bound, "buffers": bound / SMALL, "sent": sent, "each": SMALL}
        filled = done.devices[place].total_bytes * SMALL / bound / 2**30
        reach = f"{bound / SMALL:.0f} kept buffers of {filled:.1f} GiB each would fill this device"
        return Finding.warn(
            "keeps-many",
            f"about {kept} are kept {{where}} ({{variant}}), and used memory levels off",
            Evidence.seen(
                "{sent} further buffers of {each:mib} evicted the earlier, larger buffers from MPI's cache; "
                "no address was reused",
                **values,
            ),
            *([] if seen.counts_bytes else [reach]),
            *held,
            remedy=remedy,
            **values,
        )
    if seen.apart and seen.releases and 0 < seen.creep < SMALL / 4:
        return judge_creep(done, role, seen)
    if all_sent and seen.stops:
        return Finding.warn(
            "stops",
            "used memory {where} grew by {more:mib}, then levelled off ({variant})",
            Evidence.seen(
                "each of the first buffers added {growth:mib}; then {sent} buffers of {each:mib} and one of "
                "{large:mib} added nothing",
                sent=sent,
                each=SMALL,
                large=seen.sizes[-1],
                **values,
            ),
            *held,
            more=seen.since_the_first[-1],
            **values,
        )
    if not seen.is_large and not decides:
        return Finding.warn(
            "grows-a-little",
            "used memory {where} grows by {growth:bytes} with each message ({variant})",
            rate,
            Evidence.control("control: no growth without messages"),
            remedy=TELL_LEAK,
            **values,
        )
    values["buffers"] = seen.at_least
    if all_sent and most >= seen.at_least > (len(seen.used) + sent) / 2:
        says = "at least {buffers:round} freed buffers are kept {where} ({variant}); {variable} allows {most}"
        told = {"variable": params["bounded_by"], "most": most, **values}
        return Finding.warn("keeps-many", says, rate, *held, remedy=remedy, **told)
    says = "used memory still rose after {times} iterations: at least {buffers:round} freed buffers are kept"
    if seen.rose_until < RISES * (len(seen.used) + followed):
        says = "used memory rose until about iteration {rose} of {times}: at least {buffers:round} freed "
        says += "buffers are kept"
    if bound:
        often = "twice" if decides else "once"
        says = f"used memory may level off at {kept}; {{times}} iterations did not fill such a cache {often}"
    full = "at this rate the device is full after {left:round} more iterations"
    return Finding.fail(
        "grows",
        "used memory {where} grows by {growth:mib} each iteration ({variant})",
        rate,
        Evidence.seen(
            says,
            times=len(seen.used) + followed,
            rose=seen.rose_until,
            buffers=bound / SMALL if bound else seen.at_least,
            bound=bound,
        ),
        Evidence.seen(full, left=done.records[role]["free"] / growth.estimate),
        *held,
        remedy=remedy,
        **values,
    )


def judge_creep(done: ProbeOutcome, role: str, seen: BufferGrowth) -> Finding:
    """Judge slow growth: a library loses a few buffers, or a part of each."""
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    each = seen.beyond_the_first / (len(seen.used) - 1)
    is_large = bool(seen.creep) and not seen.grows and each >= SMALL
    values: dict[str, Json] = {
        "where": where,
        "growth": each if is_large else seen.creep or seen.climb,
        "variant": done.probe,
    }
    rose = Evidence.seen(
        "{sent} buffers of {each:mib} were sent; each of the last buffers took {creep:bytes} permanently"
        if seen.creep
        else "used memory permanently rose {steps} times in {times} iterations, also in the last third",
        sent=len(seen.small),
        each=SMALL,
        creep=seen.creep,
        steps=seen.steps,
        times=len(seen.used),
    )
    if is_large:
        says = "used memory {where} grows by {growth:mib} each iteration ({variant})"
        return Finding.fail("grows", says, rose, remedy=bounded_by(done.params), **values)
    says = "used memory {where} grows by {growth:bytes} with each message ({variant})"
    if done.params["decides"]:
        return Finding.fail("grows", says, rose, remedy=bounded_by(done.params), **values)
    return Finding.warn("grows-a-little", says, rose, remedy=TELL_LEAK, **values)


def bounded_by(params: Mapping[str, Json]) -> str:
    """The remedy if a variable limits the library's cache."""
    variable = params["bounded_by"]
    if not variable:
        return ""
    if params["in_bytes"]:
        return f"to limit MPI's cache, set {variable} (bytes) above the largest message's size"
    return f"to limit MPI's cache, set {variable} to a number of buffers that fits in memory"


# -- the ranks --------------------------------------------------------------------------------------------


def iterate(w: Worker) -> None:
    ledger, freed, sizes = ledger_in_turn(w), list[tuple[int, int]](), beyond_the_limit(w)
    small = [SMALL] * w.params["small"]
    follow = [w.gpu.alloc(nbytes) for nbytes in (*small, *(sizes[-1:] if small else []))]
    alive = follow[:]
    quietly = large_ones(w, sizes[: len(sizes) // 3], alive, freed)
    quiet = w.clock()
    control, _ = send_and_free(w, ledger, quietly, alive, communicates=False)
    are_equal = sizes[0] == sizes[-1]
    buffers = large_ones(w, sizes, alive, freed)
    if are_equal:  # otherwise small buffers stay, which take addresses
        buffers = watched(w, "sent and freed buffer", buffers)
    began = w.clock()
    used, held = send_and_free(w, ledger, buffers, alive)
    w.record(seconds_control=(began - quiet) / len(control), seconds=(w.clock() - began) / len(used))
    if w.mpi.any_says(ledger.is_doubtful(used, control)):
        ledger.watch_idle(w.clock() - began)
        w.mpi.barrier()
    if are_equal and w.mpi.any_says(growth_so_far(ledger, sizes, used, control, held).may_creep):
        sizes = [*sizes, *sizes[-1:] * (SOAK - len(sizes))]
        others = while_fits(w, ledger, large_ones(w, sizes[len(used) :], alive, freed), used[0])
        further, holders = send_and_free(w, ledger, others, alive)
        used += further
        held = [each + more for each, more in zip(held, holders, strict=True)]
    w.record(sizes=sizes[: len(used)], used=used, control=control, held=held, free=w.gpu.memory_info()[0])
    w.record(at=[each.at for each in used], control_at=[each.at for each in control])
    if follow and (
        w.params["decides"] or w.mpi.any_says(growth_so_far(ledger, sizes, used, control, held).may_grow)
    ):
        w.record(follow=[(buffer.address, buffer.nbytes) for buffer in follow], freed=freed)
        others = while_fits(w, ledger, one_by_one(alive, follow), used[0])
        then, then_held = send_and_free(w, ledger, others, alive)
        w.record(then=then, then_held=then_held, at=[each.at for each in (*used, *then)])
    record_bandwidth(w, sizes[-1])
    w.mpi.finalize()


def beyond_the_limit(w: Worker) -> list[int]:
    """Sizes of the buffers, if possible larger than the limit of the library's cache.

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


def large_ones(
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


def one_by_one(alive: list[Buffer], follow: list[Buffer]) -> Iterator[Buffer]:
    """Yield the buffers to ``follow`` and remove them from ``alive``."""
    for buffer in follow:
        alive.remove(buffer)
        yield buffer


def while_fits(w: Worker, ledger: Ledger, buffers: Iterator[Buffer], first: int) -> Iterator[Buffer]:
    """The buffers, until a rank's device uses more than ``first`` bytes and the memory limit."""
    while not w.mpi.any_says(ledger.used() > first + w.params["room"]):
        if (buffer := next(buffers, None)) is None:
            return
        yield buffer


def growth_so_far(
    ledger: Ledger,
    sizes: Sequence[int],
    used: Sequence[Reading],
    control: Sequence[Reading],
    held: Sequence[Sequence[int | None]],
) -> BufferGrowth:
    """Growth until now: of this process if used memory moves by itself and the driver counts processes."""
    idle = ledger.idle
    if idle.moves and (ours := held_by_all(held)):
        return BufferGrowth(sizes, ours, [0.0] * len(control))
    steady, quiet = (idle.without(each, [reading.at for reading in each]) for each in (used, control))
    seconds = (used[-1].at - used[0].at) * len(last_third(used)) / len(used)
    return BufferGrowth(sizes, steady, quiet, doubt=idle.change_within(seconds)[1])


def send_and_free(
    w: Worker,
    ledger: Ledger,
    buffers: Iterable[Buffer],
    alive: Sequence[Buffer],
    *,
    communicates: bool = True,
) -> tuple[list[Reading], list[list[int | None]]]:
    """Send each buffer and free it.

    Returns used memory after each iteration, less the ``alive`` buffers of this node's ranks, and this
    process's usage of each device.
    """
    partner, ranks, used = 1 - w.mpi.rank, w.mpi.size // len(w.gpus), list[Reading]()
    held: list[list[int | None]] = [[] for _ in w.gpus]
    for number, buffer in enumerate(buffers, 1):
        with buffer, w.step(f"iteration {number}, {buffer.nbytes} B"):
            if communicates and w.role == "sender":
                w.mpi.send(buffer.address, buffer.nbytes, partner)
            elif communicates:
                w.mpi.recv(buffer.address, buffer.nbytes, partner)
            w.mpi.barrier()
        w.mpi.barrier()
        ours = sum(buffer.nbytes for buffer in alive)
        used.append(ledger.used().less(ours * ranks))
        for series, each in zip(held, w.gpus, strict=True):
            theirs = each.memory_of_this_process()
            series.append(theirs if theirs is None or each is not w.gpu else theirs - ours)
    return used, held


CHECK = MpiCacheGrowth()
