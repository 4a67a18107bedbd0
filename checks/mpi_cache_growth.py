"""Send buffers that are freed and grow each time, and see whether device memory is ever given back.

The pattern of eth-cscs/alps-gh200-reproducers (gpudirect-oom): each iteration allocates a large buffer, a
little larger than the last, and a small one that stays; the large one is sent and freed. MPI libraries that
keep IPC handles or mappings of freed buffers then lose about one large buffer each iteration, and on two
devices it shows whose memory it is. The controls: as many iterations without a message, in the same ranks;
buffers of one size; and this MPI's own switch that turns IPC off.

A cache with a bound levels off, so what counts is how the last third of the iterations goes. Their number is
what the share of the device's memory has room for, if every buffer were kept. A cache of more buffers than
that does not level off. Where somebody has set its bound, the growth is what he asked for: a warning. Else it
is a failure, though the library may have a bound of its own: it counts buffers of whatever size, Intel MPI's
up to 256, and an application of large ones is out of memory long before (17 of 8 GiB on an H200).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from gpuipc_doctor.api import (
    NOISE_BYTES,
    Check,
    Context,
    Device,
    Evidence,
    EvidenceKind,
    Finding,
    Gpu,
    Json,
    Ledger,
    Line,
    Probe,
    ProbeOutcome,
    Series,
    Slope,
    Tier,
    Worker,
    blind,
    interval,
    lasting,
    slope,
)

BASE, STEP, SMALL = 4 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, how much each is larger than the last, and of the small one that stays.

The small ones must keep the freed ranges apart: with blocks shared among them, a later large buffer fits
over earlier ones, and a library that notices gives the old ones up (Intel MPI 2021.17.2 does).
"""

FEWEST, MOST = 24, 43
"""Iterations. With fewer, many bounded caches are not full yet; for more, few shares have room."""

TELLING = 384 << 20
"""Bytes of all buffers below which nothing kept is no answer: on simulated devices, Intel MPI's growth and
that over UCX were seen with 648 MiB and not with 256."""

SOAK = 400
"""Iterations with buffers of one size in the soak tier, which decides over what grows a little."""

KEPT = 0.25
"""A lower bound of the slope above this fraction of the mean large buffer is growth without bound."""

BANDWIDTH_ROUNDS = 3


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI gives the memory of freed buffers back"
    requires = frozenset({"multi-process"})
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        for devices in ctx.a_pair_or_device_of_each_backend:
            room = ctx.memory.of(min(device.total_bytes for device in devices))
            sizes = growing(room)
            same = one_size(room, SOAK if ctx.tier is Tier.SOAK else len(sizes))
            yield probe("growing", devices, ctx, {"sizes": sizes})
            yield probe("one size", devices, ctx, {"sizes": same, "decides": ctx.tier is Tier.SOAK})
            if ctx.mpi.ipc_off:
                yield probe("IPC off", devices, ctx, {"sizes": sizes}, ctx.mpi.ipc_off)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if unsure := blind(done):
            yield unsure
            return
        places = list(enumerate(list(done.records)[: len(done.devices)]))  # of one device both see the same
        found = [judge_device(done, place, role) for place, role in places]
        yield from [finding for finding in found if finding] or [judge_plateau(done, places)]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        shared = len(done.devices) == 1
        lines = [
            Line("device of both ranks" if shared else f"{role}'s device", since_the_start(record["used"]))
            for role, record in list(done.records.items())[: len(done.devices)]
        ]
        sizes = tuple(done.params["sizes"])
        lines.append(Line("large buffer, freed each time", sizes))
        title = f"{done.probe}: used since the first iteration"
        yield Series(title, "iteration", tuple(range(1, len(sizes) + 1)), tuple(lines))


def growing(room: int) -> list[int]:
    """Sizes of buffers that fit into a share of so many bytes, all together, each larger than the last."""
    sizes = [BASE + STEP * number for number in range(MOST)]
    fitting = sum(total <= room for total in accumulate(sizes))
    sizes = sizes[: max(fitting, FEWEST)]
    scale = min(1.0, room / sum(sizes))
    return [int(size * scale) for size in sizes]


def one_size(room: int, most: int) -> list[int]:
    """Up to ``most`` buffers that fit into a share, all together, of one size that is worth an IPC handle."""
    number = max(FEWEST, min(most, room // BASE))
    return [min(4 * BASE, room // number)] * number


def probe(
    name: str,
    devices: tuple[Device, ...],
    ctx: Context,
    params: Mapping[str, Json],
    env: Mapping[str, str] = {},
) -> Probe:
    assert ctx.mpi is not None
    roles = {"sender": iterate, "receiver": iterate}
    params = {**params, "bounded_by": ctx.mpi.cache_bound, "bounded_to": ctx.mpi.cache_buffers}
    return Probe(name, roles, devices, params, exclusive=True, launch=ctx.mpi.with_env(env))


# -- judging ----------------------------------------------------------------------------------------------


def judge_plateau(done: ProbeOutcome, places: Sequence[tuple[int, str]]) -> Finding:
    """Judge whether buffers that left no growth were such as a library keeps."""
    evidence = [plateau(role, done.records[role]) for _, role in places]
    if sum(done.params["sizes"]) < TELLING:
        return Finding.skip(
            "share-too-small",
            "{room:mib} of buffers are too little to tell by, though none was kept ({variant})",
            *evidence,
            remedy=f"let checks have {TELLING >> 20} MiB of the device: memory in the site config",
            room=sum(done.params["sizes"]),
            variant=done.probe,
        )
    return Finding.ok("levels-off", "memory comes back ({variant})", *evidence, variant=done.probe)


def judge_device(done: ProbeOutcome, place: int, role: str) -> Finding | None:
    """Judge how the memory used on the device of this place, which is this role's, went."""
    record, sizes = done.records[role], done.params["sizes"]
    growth, mean = lasting(record["used"]), sum(sizes) / len(sizes)
    if growth.low <= unsuspicious(record):
        return None
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    values = {"where": where, "growth": growth.estimate, "variant": done.probe}
    if growth.low <= KEPT * mean and not done.params.get("decides"):
        return Finding.warn(
            "grows-a-little",
            "used memory {where} grows by {growth:bytes} with each message ({variant})",
            interval(growth, len(sizes)),
            Evidence(EvidenceKind.CONTROL, "without messages it does not"),
            remedy="check mpi-cache-growth --tier soak sends more of them, and decides",
            **values,
        )
    most = done.params["bounded_to"] or 0
    if most > 2 * len(sizes) // 3:
        return Finding.warn(
            "keeps-many",
            "at least {buffers:round} freed buffers are kept {where} ({variant}): {variable} is {most}",
            interval(growth, len(sizes)),
            *holders(done, place, growth),
            remedy="it counts buffers of whatever size: set it to what your memory has room for",
            buffers=(record["used"][-1] - record["used"][0]) / mean,
            variable=done.params["bounded_by"],
            most=most,
            **values,
        )
    return Finding.fail(
        "grows",
        "used memory {where} grows by {growth:mib} each iteration ({variant})",
        interval(growth, len(sizes)),
        kept(record["used"], mean),
        Evidence(
            EvidenceKind.SEEN,
            "at this rate this device is full after {left:round} more iterations",
            {"left": record["free"] / growth.estimate},
        ),
        *holders(done, place, growth),
        remedy=bound(done.params["bounded_by"]),
        **values,
    )


def unsuspicious(record: Json) -> float:
    """Bytes by which used memory may grow each time: as without messages, or noise over what is looked at."""
    control = record["control"]
    return max(slope(range(len(control)), control).high, NOISE_BYTES / (len(record["used"]) // 3))


def kept(used: Sequence[float], mean: float) -> Evidence:
    return Evidence(
        EvidenceKind.SEEN,
        "it did not level off: at least {buffers:round} buffers of {mean:mib} on average are kept in {times} "
        "iterations, which the share of memory has room for",
        {"buffers": (used[-1] - used[0]) / mean, "mean": mean, "times": len(used)},
    )


def bound(variable: str) -> str:
    says = f"if that is a cache, {variable} bounds it: set it to what your memory has room for"
    return says if variable else ""


def holders(done: ProbeOutcome, place: int, growth: Slope) -> Iterable[Evidence]:
    """Whose processes the growth is in, where it is known what each holds of this device.

    A driver counts memory that its owner has freed for those who still map it.
    """
    for role, record in done.records.items():
        held = record["held"][place]
        is_told = None not in held[len(held) // 2 :]
        if is_told and (theirs := lasting(held)).low > growth.low / 2:
            yield Evidence(
                EvidenceKind.HOLDER,
                "the {role}'s process holds it: {growth:mib} more each iteration",
                {"role": role, "growth": theirs.estimate},
            )


def plateau(role: str, record: Mapping[str, Json]) -> Evidence:
    return Evidence(
        EvidenceKind.SEEN,
        "{role}: {more:mib} more in use than at the start; growth by {least:bytes} each iteration would have "
        "been found",
        {
            "role": role,
            "more": record["used"][-1] - record["used"][0],
            "least": unsuspicious(record) - lasting(record["used"]).low,
        },
    )


def since_the_start(used: Sequence[float]) -> tuple[float, ...]:
    return tuple(bytes_used - used[0] for bytes_used in used)


# -- the ranks --------------------------------------------------------------------------------------------


def iterate(w: Worker) -> None:
    gpu, sizes = w.gpus[w.mpi.rank % len(w.gpus)], w.params["sizes"]
    ledger = ledger_in_turn(w, gpu)
    control, _ = send_and_free(w, gpu, ledger, sizes[: len(sizes) // 3], communicates=False)
    used, held = send_and_free(w, gpu, ledger, sizes, communicates=True)
    w.record(used=used, control=control, held=held, free=gpu.memory_info()[0])
    with gpu.alloc(sizes[-1]) as large, w.step("measure the bandwidth"):
        times = w.mpi.ping_pong(large.address, sizes[-1], 1 - w.mpi.rank, BANDWIDTH_ROUNDS)
    w.record(price=(sizes[-1] / min(times) / 1e9, "GB/s"))
    w.mpi.finalize()


def ledger_in_turn(w: Worker, gpu: Gpu) -> Ledger:
    """A ledger, opened by one rank after the other: they may share the device."""
    for rank in range(w.mpi.size):
        if rank == w.mpi.rank:
            ledger = Ledger(w, gpu)
        w.mpi.barrier()
    return ledger


def send_and_free(
    w: Worker, gpu: Gpu, ledger: Ledger, sizes: Sequence[int], *, communicates: bool
) -> tuple[list[int], list[list[int | None]]]:
    """Send a buffer of each size, and free it: by iteration, used memory without the small ones, which stay.

    And by device, what this process holds of it.
    """
    partner, grows, small, used = 1 - w.mpi.rank, sizes[0] < sizes[-1], [], []
    held: list[list[int | None]] = [[] for _ in w.gpus]
    for number, nbytes in enumerate(sizes, 1):
        with gpu.alloc(nbytes) as large, w.step(f"iteration {number}, {nbytes} B"):
            if grows:
                small.append(gpu.alloc(SMALL))
            if communicates and w.role == "sender":
                w.mpi.send(large.address, nbytes, partner)
            elif communicates:
                w.mpi.recv(large.address, nbytes, partner)
            w.mpi.barrier()
        w.mpi.barrier()
        used.append(ledger.used() - SMALL * len(small))
        for series, each in zip(held, w.gpus, strict=True):
            series.append(each.memory_of_this_process())
    return used, held


CHECK = MpiCacheGrowth()
