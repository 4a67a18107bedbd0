"""Send buffers that are freed and grow each time, and see whether device memory is ever given back.

The pattern of eth-cscs/alps-gh200-reproducers (gpudirect-oom): each iteration allocates a large buffer, a
little larger than the last, and a small one that stays; the large one is sent and freed. MPI libraries that
keep IPC handles or mappings of freed buffers then lose about one large buffer each iteration, and on two
devices it shows whose memory it is. The controls: as many iterations without a message, in the same ranks;
buffers of one size; and this MPI's own switch that turns IPC off.

Only the last third of the iterations counts. If more is in use than at first, small buffers follow, as many
as the share of memory has room for, and then a large one: most caches count buffers, of whatever size. They
are allocated before the first buffer is freed, so no address is used twice: a library without any bound,
such as Open MPI's smcuda, also releases a mapping if a later buffer has its address. A cache that releases
buffers for small ones and levels off has a bound, in bytes if the large one adds nothing: a warning; in the
soak tier only if that bound was passed twice. Growth that was seen to stop is a warning, too. The small
buffers also show a library that loses few of its buffers, or a little with each, beside a cache or without
one. Else it is a failure, unless the bound was set to more buffers than were sent. Intel MPI's own bound,
256, is more than are sent, and 17 buffers of 8 GiB fill an H200.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import environ

from gpuipc_doctor.api import (
    Buffer,
    BufferGrowth,
    Check,
    Context,
    Evidence,
    Finding,
    Json,
    Ledger,
    Line,
    Probe,
    ProbeOutcome,
    Series,
    Tier,
    Worker,
    account,
    blind,
    equal_sizes,
    growing_sizes,
    held_by,
    how_many,
    interval,
    ledger_in_turn,
    record_bandwidth,
    share_no_address,
    watched,
)

BASE, STEP, SMALL = 4 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, how much each is larger than the last, and of a small one: one block.

The small ones that stay must keep the freed ranges apart: with blocks shared among them, a later large buffer
fits over earlier ones, and a library that notices gives the old ones up (Intel MPI 2021.17.2 does).
"""

MOST = 43
"""Iterations, as the share has room for them."""

TELLING = 180 << 20
"""Bytes of the fewest buffers. In less room some are equal, in the driver's blocks of 2 MiB, and come to lie
over earlier ones: then nothing kept is no answer."""

MANY = {False: 192, True: 384}
"""Small buffers at most, by whether the tier is soak, in which a bound must be passed twice. A cache of more
buffers is as bad as one without a bound: 192 of 1 GiB fill most GPUs."""

FOR_LARGE = {False: 0.6, True: 0.3}
"""Part of the share, by whether the tier is soak. The rest is for the buffers that follow and for what stays:
all may be held at once."""

TOO_FEW = 24
"""Buffers that tell no leak from a cache if more than a third of them are kept and none can follow."""

SAME, SOAK = 128, 400
"""Iterations with buffers of one size, and in the soak tier, which decides over what grows a little. Drivers
count in blocks of 2 MiB: the last third of 128 shows growth by 256 KiB each time, of 400 by 64 KiB."""


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI gives the memory of freed buffers back"
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
            same: dict[str, Json] = {**common, "sizes": equal, "small": 0}
            planned = [("growing", grow, {}), ("one size", same, {}), ("IPC off", grow, ctx.mpi.ipc_off)]
            for name, params, env in planned if ctx.mpi.ipc_off else planned[:2]:
                launch = ctx.mpi.with_env(env)
                yield Probe(name, roles, devices, params, exclusive=True, launch=launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if unsure := blind(done):
            yield unsure
            return
        seen = measured(done)
        found = [judge_growth(done, place, *each) for place, each in enumerate(seen.items())]
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
        title = f"{done.probe}: used since the first iteration"
        yield Series(title, "iteration", at, (*lines, Line("buffer, freed each time", sizes)))


# -- judging ----------------------------------------------------------------------------------------------


def measured(done: ProbeOutcome) -> dict[str, BufferGrowth]:
    """The growth of used memory of each device, by the rank that uses it; both see the same of one device."""
    ranks, small = list(done.records.items())[: len(done.devices)], done.params["small"]
    are_apart = all(
        share_no_address(record["follow"], record["freed"])
        for record in done.records.values()
        if "follow" in record
    )
    found = {}
    for role, record in ranks:
        then = record.get("then", [])
        found[role] = BufferGrowth(
            record["sizes"],
            record["used"],
            record["control"],
            then[:small],
            SMALL,
            then[small:],
            are_apart,
            max(1.0, record["seconds"] / record["seconds_control"]),
        )
    return found


def judge_plateau(done: ProbeOutcome, seen: dict[str, BufferGrowth]) -> Finding:
    """Judge a run without growth: PASS, or SKIP if its buffers were too small to be cached."""
    evidence = [each.plateau(role, account(done.records[role]).block) for role, each in seen.items()]
    room = sum(next(iter(seen.values())).sizes)
    least = TELLING / FOR_LARGE[done.params["decides"]] / 2**20
    if room < TELLING:
        return Finding.skip(
            "share-too-small",
            "{room:mib} of buffers are too little to tell by, though none was kept ({variant})",
            *evidence,
            remedy=f"let checks have {least:.0f} MiB of the device: memory in the site config",
            room=room,
            variant=done.probe,
        )
    if limit := next(iter(done.records.values())).get("not_reached"):
        return Finding.skip(
            "limit-not-reached",
            "no message larger than {variable}={limit} fits into the share of memory ({variant})",
            *evidence,
            remedy="let checks use more device memory: memory in the site config",
            variable=done.params["bounded_by"],
            limit=limit,
            variant=done.probe,
        )
    return Finding.ok("levels-off", "memory comes back ({variant})", *evidence, variant=done.probe)


def judge_growth(done: ProbeOutcome, place: int, role: str, seen: BufferGrowth) -> Finding | None:
    """Judge how the memory used on the device of this place, which is this role's, went."""
    if not seen.grows:
        return judge_creep(done, role, seen) if seen.creep else None
    growth, params, decides = seen.growth, done.params, done.params["decides"]
    sent, followed = len(seen.small), len(seen.small) + len(seen.late)
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    values: dict[str, Json] = {"where": where, "growth": growth.estimate, "variant": done.probe}
    rate, held = interval(growth, len(seen.used)), held_by(done, place, growth)
    remedy, most = bounded_by(params), params["bounded_to"] or 0
    all_sent = not params["small"] or followed > params["small"]
    bound = seen.bound if all_sent else None
    kept = "{bound:mib} of freed buffers" if seen.counts_bytes else "{buffers:round} freed buffers"
    if bound and seen.was_passed(bound, 2 if decides else 1):
        values |= {"bound": bound, "buffers": bound / SMALL, "sent": sent, "each": SMALL}
        filled = done.devices[place].total_bytes * SMALL / bound / 2**30
        reach = f"{bound / SMALL:.0f} of {filled:.1f} GiB would fill this device"
        return Finding.warn(
            "keeps-many",
            f"about {kept} are kept {{where}} ({{variant}}), and then no more",
            Evidence.seen(
                "{sent} of {each:mib} displaced the large ones; no address was used twice", **values
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
            "used memory {where} grew by {more:mib} and then no more ({variant})",
            Evidence.seen(
                "{growth:mib} each iteration at first; {sent} more buffers of {each:mib} and one of "
                "{large:mib} added nothing, and nothing was released",
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
            Evidence.control("without messages it does not"),
            remedy="check mpi-cache-growth --tier soak sends more of them, and decides",
            **values,
        )
    values["buffers"] = seen.at_least
    is_growing = seen.sizes[0] < seen.sizes[-1]
    is_like_a_cache = is_growing and seen.at_least > len(seen.used) / 3
    if not params["small"] and is_like_a_cache and len(seen.used) < TOO_FEW:
        return Finding.error(
            "too-few-to-tell",
            "cannot tell a cache from a leak by {times} buffers: {buffers} are kept {where} ({variant})",
            rate,
            *held,
            remedy="let checks have 1024 MiB of the device: memory in the site config",
            times=len(seen.used),
            **values,
        )
    if all_sent and most >= seen.at_least > (len(seen.used) + sent) / 2:
        says = "at least {buffers:round} freed buffers are kept {where} ({variant}): {variable} is {most}"
        told = {"variable": params["bounded_by"], "most": most, **values}
        return Finding.warn("keeps-many", says, rate, *held, remedy=remedy, **told)
    says = "it did not level off in {times} iterations: at least {buffers:round} freed buffers are kept"
    if bound:
        often = "twice" if decides else "once"
        says = f"a bound of {kept}, if that is one, was not passed {often} in {{times}} iterations"
    full = "at this rate this device is full after {left:round} more iterations"
    return Finding.fail(
        "grows",
        "used memory {where} grows by {growth:mib} each iteration ({variant})",
        rate,
        Evidence.seen(
            says,
            times=len(seen.used) + followed,
            buffers=bound / SMALL if bound else seen.at_least,
            bound=bound,
        ),
        Evidence.seen(full, left=done.records[role]["free"] / growth.estimate),
        *held,
        remedy=remedy,
        **values,
    )


def judge_creep(done: ProbeOutcome, role: str, seen: BufferGrowth) -> Finding:
    """Judge growth that the small buffers have shown, of few of the buffers or a little with each."""
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    each = seen.beyond_the_first / (len(seen.used) - 1)
    is_large = not seen.grows and each >= SMALL
    values: dict[str, Json] = {
        "where": where,
        "growth": each if is_large else seen.creep,
        "variant": done.probe,
    }
    rose = Evidence.seen(
        "{sent} small buffers of {each:mib} followed: at their end, each raised it by {creep:bytes} for good",
        sent=len(seen.small),
        each=SMALL,
        creep=seen.creep,
    )
    if is_large:
        says = "used memory {where} grows by {growth:mib} each iteration ({variant})"
        return Finding.fail("grows", says, rose, remedy=bounded_by(done.params), **values)
    says = "used memory {where} grows by {growth:bytes} with each message ({variant})"
    if done.params["decides"]:
        return Finding.fail("grows", says, rose, remedy=bounded_by(done.params), **values)
    remedy = "check mpi-cache-growth --tier soak sends more of them, and decides"
    return Finding.warn("grows-a-little", says, rose, remedy=remedy, **values)


def bounded_by(params: Mapping[str, Json]) -> str:
    """What to do where a variable bounds the library's cache."""
    variable = params["bounded_by"]
    if not variable:
        return ""
    if params["in_bytes"]:
        return f"if that is a cache, {variable} bounds it, in bytes: more than the largest message has"
    return f"if that is a cache, {variable} bounds it: set it to what your memory has room for"


# -- the ranks --------------------------------------------------------------------------------------------


def iterate(w: Worker) -> None:
    ledger, freed, sizes = ledger_in_turn(w), list[tuple[int, int]](), beyond_the_limit(w)
    small = [SMALL] * w.params["small"]
    follow = [w.gpu.alloc(nbytes) for nbytes in (*small, *(sizes[-1:] if small else []))]
    alive = follow[:]
    quietly = large_ones(w, sizes[: len(sizes) // 3], alive, freed)
    quiet = w.clock()
    control, _ = send_and_free(w, ledger, quietly, alive, communicates=False)
    buffers = large_ones(w, sizes, alive, freed)
    if sizes[0] == sizes[-1]:  # else small ones stay, which take addresses
        buffers = watched(w, "sent and freed buffer", buffers)
    began = w.clock()
    used, held = send_and_free(w, ledger, buffers, alive)
    w.record(sizes=sizes, used=used, control=control, held=held, free=w.gpu.memory_info()[0])
    w.record(seconds_control=(began - quiet) / len(control), seconds=(w.clock() - began) / len(used))
    if follow and (w.params["decides"] or w.mpi.any_says(BufferGrowth(sizes, used, control).may_grow)):
        w.record(follow=[(buffer.address, buffer.nbytes) for buffer in follow], freed=freed)
        more = one_by_one(w, ledger, alive, follow, used[0] + w.params["room"])
        w.record(then=send_and_free(w, ledger, more, alive)[0])
    record_bandwidth(w, sizes[-1])
    w.mpi.finalize()


def beyond_the_limit(w: Worker) -> list[int]:
    """The planned sizes; if the cache is bounded in bytes here, larger ones than that bound, if they fit.

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
    """A buffer of each size; where they grow, with a small one each that stays alive."""
    for nbytes in sizes:
        large = w.gpu.alloc(nbytes)
        freed.append((large.address, nbytes))
        if sizes[0] < sizes[-1]:
            alive.append(w.gpu.alloc(SMALL))
        yield large


def one_by_one(
    w: Worker, ledger: Ledger, alive: list[Buffer], follow: list[Buffer], most: int
) -> Iterator[Buffer]:
    """The buffers that follow, in both ranks as long as neither's device has more in use than ``most``."""
    for buffer in follow:
        if w.mpi.any_says(ledger.used() > most):
            return
        alive.remove(buffer)
        yield buffer


def send_and_free(
    w: Worker,
    ledger: Ledger,
    buffers: Iterable[Buffer],
    alive: Sequence[Buffer],
    *,
    communicates: bool = True,
) -> tuple[list[int], list[list[int | None]]]:
    """Send each buffer, and free it: by iteration, used memory without what is ``alive`` of ranks here.

    And by device, what this process holds of it.
    """
    partner, ranks, used = 1 - w.mpi.rank, w.mpi.size // len(w.gpus), []
    held: list[list[int | None]] = [[] for _ in w.gpus]
    for number, buffer in enumerate(buffers, 1):
        with buffer, w.step(f"iteration {number}, {buffer.nbytes} B"):
            if communicates and w.role == "sender":
                w.mpi.send(buffer.address, buffer.nbytes, partner)
            elif communicates:
                w.mpi.recv(buffer.address, buffer.nbytes, partner)
            w.mpi.barrier()
        w.mpi.barrier()
        ours = sum(one.nbytes for one in alive)
        used.append(ledger.used() - ours * ranks)
        for series, each in zip(held, w.gpus, strict=True):
            theirs = each.memory_of_this_process()
            series.append(theirs if theirs is None or each is not w.gpu else theirs - ours)
    return used, held


CHECK = MpiCacheGrowth()
