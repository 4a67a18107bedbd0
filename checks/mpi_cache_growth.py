"""Send buffers that are freed and grow each time, and see whether device memory is ever given back.

The pattern of eth-cscs/alps-gh200-reproducers (gpudirect-oom): each iteration allocates a large buffer, a
little larger than the last, and a small one that stays; the large one is sent and freed. MPI libraries that
keep IPC handles or mappings of freed buffers then lose about one large buffer each iteration, and on two
devices it shows whose memory it is. The controls: as many iterations without a message, in the same ranks;
buffers of one size; and this MPI's own switch that turns IPC off.

What counts is how the last third of the iterations goes. Where memory still grows then, small buffers follow,
as many as the share of memory has room for: a cache counts buffers, of whatever size. One that gives large
ones up for small ones and levels off has a bound, and it is known how many buffers it keeps: a warning. Else
it is a failure, unless somebody has set the bound to more than were sent. Intel MPI's own bound, 256, is more
than are sent, and 17 buffers of 8 GiB fill an H200.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
)

BASE, STEP, SMALL = 4 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, how much each is larger than the last, and of a small one.

The small ones that stay must keep the freed ranges apart: with blocks shared among them, a later large buffer
fits over earlier ones, and a library that notices gives the old ones up (Intel MPI 2021.17.2 does).
"""

MOST = 43
"""Iterations, as the share has room for them."""

TELLING = 180 << 20
"""Bytes of the fewest buffers. In less room some are equal, in the driver's blocks of 2 MiB, and come to lie
over earlier ones: then nothing kept is no answer."""

MANY = 192
"""Small buffers at most. A cache of more is as bad as one without a bound: 192 of 1 GiB fill most GPUs."""

FOR_LARGE, FOR_SMALL = 0.7, 0.25
"""Parts of the share, for both may come to be held at once. The rest is for what stays."""

SAME, SOAK = 128, 400
"""Iterations with buffers of one size, and in the soak tier, which decides over what grows a little. Drivers
count in blocks of 2 MiB: the last third of 128 shows growth by 256 KiB each time, of 400 by 64 KiB."""


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI gives the memory of freed buffers back"
    requires = frozenset({"multi-process"})
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        roles, soak = {"sender": iterate, "receiver": iterate}, ctx.tier is Tier.SOAK
        bound = {"bounded_by": ctx.mpi.cache_bound, "bounded_to": ctx.mpi.cache_buffers}
        for devices in ctx.a_pair_or_device_of_each_backend:
            room = ctx.room(devices)
            sizes = growing_sizes(FOR_LARGE * room, BASE, STEP, MOST)
            small = how_many(FOR_SMALL * room * len(devices) / 2, SMALL, MANY)
            grow: dict[str, Json] = {**bound, "sizes": sizes, "small": small, "room": room}
            sizes = equal_sizes(room, BASE, 2 * BASE, SOAK if soak else SAME)
            same: dict[str, Json] = {**bound, "sizes": sizes, "small": 0, "decides": soak}
            planned = [("growing", grow, {}), ("one size", same, {}), ("IPC off", grow, ctx.mpi.ipc_off)]
            for name, params, env in planned if ctx.mpi.ipc_off else planned[:2]:
                launch = ctx.mpi.with_env(env)
                yield Probe(name, roles, devices, params, exclusive=True, launch=launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if unsure := blind(done):
            yield unsure
            return
        seen = freed(done)
        found = [judge_growth(done, place, *each) for place, each in enumerate(seen.items())]
        yield from [finding for finding in found if finding] or [judge_plateau(done, seen)]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        seen, shared = freed(done), len(done.devices) == 1
        lines = [
            Line("device of both ranks" if shared else f"{role}'s device", each.since_the_first)
            for role, each in seen.items()
        ]
        at = tuple(range(1, len(lines[0].values) + 1))
        sizes = (*done.params["sizes"], *[SMALL] * len(at))[: len(at)]
        title = f"{done.probe}: used since the first iteration"
        yield Series(title, "iteration", at, (*lines, Line("buffer, freed each time", sizes)))


# -- judging ----------------------------------------------------------------------------------------------


def freed(done: ProbeOutcome) -> dict[str, BufferGrowth]:
    """What became of the memory of each device, by the rank whose it is; of one device both see the same."""
    ranks = list(done.records.items())[: len(done.devices)]
    return {
        role: BufferGrowth(done.params["sizes"], told["used"], told["control"], told.get("small", []), SMALL)
        for role, told in ranks
    }


def judge_plateau(done: ProbeOutcome, seen: dict[str, BufferGrowth]) -> Finding:
    """Judge whether buffers that left no growth were such as a library keeps."""
    evidence = [each.plateau(role, account(done.records[role]).block) for role, each in seen.items()]
    room = sum(done.params["sizes"])
    least = TELLING / FOR_LARGE / 2**20
    if room < TELLING:
        return Finding.skip(
            "share-too-small",
            "{room:mib} of buffers are too little to tell by, though none was kept ({variant})",
            *evidence,
            remedy=f"let checks have {least:.0f} MiB of the device: memory in the site config",
            room=room,
            variant=done.probe,
        )
    return Finding.ok("levels-off", "memory comes back ({variant})", *evidence, variant=done.probe)


def judge_growth(done: ProbeOutcome, place: int, role: str, seen: BufferGrowth) -> Finding | None:
    """Judge how the memory used on the device of this place, which is this role's, went."""
    if not seen.grows:
        return None
    growth, params, sent = seen.growth, done.params, len(seen.then)
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    values: dict[str, Json] = {"where": where, "growth": growth.estimate, "variant": done.probe}
    rate, held = interval(growth, len(seen.used)), held_by(done, place, growth)
    variable, most = params["bounded_by"], params["bounded_to"] or 0
    remedy = f"if that is a cache, {variable} bounds it: set it to what your memory has room for"
    remedy = remedy if variable else ""
    all_sent = sent >= params["small"]
    if all_sent and (buffers := seen.bound):
        values |= {"buffers": buffers, "sent": sent, "each": SMALL}
        filled = done.devices[place].total_bytes / buffers / 2**30
        return Finding.warn(
            "keeps-many",
            "about {buffers:round} freed buffers are kept {where} ({variant}), and then no more",
            Evidence.seen("{sent} of {each:mib} took the place of the large ones", **values),
            f"{buffers:.0f} of {filled:.1f} GiB would fill this device",
            *held,
            remedy=remedy,
            **values,
        )
    if not seen.are_kept and not params.get("decides"):
        return Finding.warn(
            "grows-a-little",
            "used memory {where} grows by {growth:bytes} with each message ({variant})",
            rate,
            Evidence.control("without messages it does not"),
            remedy="check mpi-cache-growth --tier soak sends more of them, and decides",
            **values,
        )
    values["buffers"] = seen.at_least
    if all_sent and most >= seen.at_least:
        says = "at least {buffers:round} freed buffers are kept {where} ({variant}): {variable} is {most}"
        told = {"variable": variable, "most": most, **values}
        return Finding.warn("keeps-many", says, rate, *held, remedy=remedy, **told)
    says = "it did not level off in {times} iterations: at least {buffers:round} freed buffers are kept"
    full = "at this rate this device is full after {left:round} more iterations"
    return Finding.fail(
        "grows",
        "used memory {where} grows by {growth:mib} each iteration ({variant})",
        rate,
        Evidence.seen(says, times=len(seen.used) + sent, buffers=seen.at_least),
        Evidence.seen(full, left=done.records[role]["free"] / growth.estimate),
        *held,
        remedy=remedy,
        **values,
    )


# -- the ranks --------------------------------------------------------------------------------------------


def iterate(w: Worker) -> None:
    sizes, stay, ledger = w.params["sizes"], list[Buffer](), ledger_in_turn(w)
    quietly = large_ones(w, sizes[: len(sizes) // 3], stay)
    control, _ = send_and_free(w, ledger, quietly, stay, communicates=False)
    used, held = send_and_free(w, ledger, large_ones(w, sizes, stay), stay)
    w.record(used=used, control=control, held=held, free=w.gpu.memory_info()[0])
    if w.mpi.any_says(BufferGrowth(sizes, used, control).grows) and w.params["small"]:
        more = range(len(stay), w.params["small"])
        stay += [w.gpu.alloc(SMALL) for _ in more]  # before any is freed: so none has another's address
        small = one_by_one(w, ledger, stay, used[0] + w.params["room"])
        w.record(small=send_and_free(w, ledger, small, stay)[0])
    record_bandwidth(w, sizes[-1])
    w.mpi.finalize()


def large_ones(w: Worker, sizes: Sequence[int], stay: list[Buffer]) -> Iterator[Buffer]:
    """A buffer of each size; where they grow, with a small one each that stays."""
    for nbytes in sizes:
        large = w.gpu.alloc(nbytes)
        if sizes[0] < sizes[-1]:
            stay.append(w.gpu.alloc(SMALL))
        yield large


def one_by_one(w: Worker, ledger: Ledger, waiting: list[Buffer], most: int) -> Iterator[Buffer]:
    """The buffers that wait, in both ranks as long as neither's device has more in use than ``most``."""
    while waiting and not w.mpi.any_says(ledger.used() > most):
        yield waiting.pop()


def send_and_free(
    w: Worker,
    ledger: Ledger,
    buffers: Iterable[Buffer],
    small: Sequence[Buffer],
    *,
    communicates: bool = True,
) -> tuple[list[int], list[list[int | None]]]:
    """Send each buffer, and free it: by iteration, used memory without the ``small`` ones, of ranks here.

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
        used.append(ledger.used() - SMALL * len(small) * ranks)
        for series, each in zip(held, w.gpus, strict=True):
            series.append(each.memory_of_this_process())
    return used, held


CHECK = MpiCacheGrowth()
