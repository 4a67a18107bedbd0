"""Send buffers that are freed and grow each time, and see whether device memory is ever given back.

The pattern of eth-cscs/alps-gh200-reproducers (gpudirect-oom): each iteration allocates a large buffer, a
little larger than the last, and a small one that stays; the large one is sent and freed. MPI libraries that
keep IPC handles or mappings of freed buffers then lose about one large buffer each iteration, and on two
devices it shows whose memory it is. Here the buffers are a hundredth of the report's, and three controls
run beside it: no communication, buffers of one size, and this MPI's own switch that turns IPC off.

A cache with a bound levels off: the slope is that of the second half, and a plateau is told but not blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuipc_doctor.api import (
    Check,
    Context,
    Device,
    Finding,
    Json,
    Line,
    Probe,
    ProbeOutcome,
    Series,
    Slope,
    Worker,
    slope,
)

ITERATIONS = 24
BASE, STEP, SMALL = 16 << 20, 2 << 20, 2 << 20
"""Bytes of the first large buffer, how much each is larger than the last, and of the small one that stays.

The small ones must keep the freed ranges apart: with blocks shared among them, a later large buffer fits
over earlier ones, and a library that notices gives the old ones up (Intel MPI 2021.17.2 does).
"""

KEPT = 0.25
"""A lower bound of the slope above this fraction of the mean large buffer is growth without bound."""

VARIANTS = {
    "growing": {"grows": True, "communicates": True},
    "no communication": {"grows": True, "communicates": False},
    "one size": {"grows": False, "communicates": True},
}


BANDWIDTH_ROUNDS = 3


class MpiCacheGrowth(Check):
    id = "mpi-cache-growth"
    title = "MPI gives the memory of freed buffers back"
    requires = frozenset({"multi-process"})
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        for devices in ctx.a_pair_or_device_of_each_backend:
            for name, params in VARIANTS.items():
                yield probe(name, devices, ctx, params)
            if ctx.mpi.ipc_off:
                yield probe("IPC off", devices, ctx, VARIANTS["growing"], ctx.mpi.ipc_off)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        roles = list(done.records)[: len(done.devices)]  # ranks that share a device see the same
        findings = [judge_device(done, place, role) for place, role in enumerate(roles)]
        yield from [finding for finding in findings if finding] or [
            Finding.ok(f"memory comes back ({done.probe})", *map(plateau, done.records.items()))
        ]

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        shared = len(done.devices) == 1  # then both ranks see the same
        lines = [
            Line("device of both ranks" if shared else f"{role}'s device", since_the_start(record["used"]))
            for role, record in list(done.records.items())[: len(done.devices)]
        ]
        large = Line("large buffer, freed each time", tuple(done.records["sender"]["large"]))
        title = f"{done.probe}: used since the first iteration"
        yield Series(title, "iteration", tuple(range(1, ITERATIONS + 1)), (*lines, large))


def since_the_start(used: Sequence[float]) -> tuple[float, ...]:
    return tuple(bytes_used - used[0] for bytes_used in used)


def probe(
    name: str,
    devices: tuple[Device, ...],
    ctx: Context,
    params: Mapping[str, Json],
    env: Mapping[str, str] = {},
) -> Probe:
    assert ctx.mpi is not None
    total = sum((BASE + STEP * i) for i in range(ITERATIONS))
    room = ctx.memory.of(min(device.total_bytes for device in devices))
    scale = min(1.0, room / total)
    roles = {"sender": iterate, "receiver": iterate}
    params = {**params, "scale": scale}
    return Probe(name, roles, devices, params, exclusive=True, launch=ctx.mpi.with_env(env))


def judge_device(done: ProbeOutcome, place: int, role: str) -> Finding | None:
    """Judge how the memory used on the device of this place, which is this role's, went."""
    record = done.records[role]
    growth = lasting(record["used"])
    large = record["large"][len(record["large"]) // 2 :]
    mean = sum(large) / len(large)
    if growth.low <= KEPT * mean:
        return None
    where = f"on the {role}'s device" if len(done.devices) > 1 else "on the device of both ranks"
    left = record["free"] / growth.estimate
    return Finding.fail(
        f"used memory {where} grows by {growth.estimate / 2**20:.1f} MiB each iteration ({done.probe})",
        f"95 % interval {growth.low / 2**20:.1f} to {growth.high / 2**20:.1f} MiB; "
        f"the large buffer, freed each time, has {mean / 2**20:.1f} MiB on average",
        f"at this rate this device is full after {left:.0f} more iterations",
        *holders(done, place, KEPT * mean),
    )


def lasting(series: list[int]) -> Slope:
    """How a series goes on once bounded caches are full: the slope of its second half."""
    half = len(series) // 2
    return slope(range(half, len(series)), series[half:])


def holders(done: ProbeOutcome, place: int, least: float) -> Iterator[str]:
    """Whose processes the growth is in, where it is known what each holds of this device.

    A driver counts memory that its owner has freed for those who still map it.
    """
    for role, record in done.records.items():
        held = record["held"][place]
        is_told = None not in held[len(held) // 2 :]
        if is_told and (growth := lasting(held)).low > least:
            yield f"the {role}'s process holds it: {growth.estimate / 2**20:.1f} MiB more each iteration"


def plateau(item: tuple[str, Mapping[str, Json]]) -> str:
    role, record = item
    return f"{role}: {(record['used'][-1] - record['used'][0]) / 2**20:.1f} MiB more in use than at the start"


def iterate(w: Worker) -> None:
    is_sender = w.role == "sender"
    gpu = w.gpus[w.mpi.rank % len(w.gpus)]
    scale, partner = w.params["scale"], 1 - w.mpi.rank
    kept, used, sizes = [], [], []
    held: list[list[int | None]] = [[] for _ in w.gpus]
    for number in range(ITERATIONS):
        nbytes = int((BASE + STEP * (number if w.params["grows"] else 0)) * scale)
        with gpu.alloc(nbytes) as large, w.step(f"iteration {number + 1}, {nbytes} B"):
            kept.append(gpu.alloc(SMALL))
            if w.params["communicates"]:
                (w.mpi.send if is_sender else w.mpi.recv)(large.address, nbytes, partner)
            w.mpi.barrier()
        w.mpi.barrier()
        used.append(gpu.memory_used() - SMALL * len(kept))
        for series, each in zip(held, w.gpus, strict=True):
            series.append(each.memory_of_this_process())
        sizes.append(nbytes)
    w.record(used=used, held=held, large=sizes, free=gpu.memory_info()[0])
    if w.params["communicates"]:
        with gpu.alloc(sizes[-1]) as large, w.step("measure the bandwidth"):
            times = w.mpi.ping_pong(large.address, sizes[-1], partner, BANDWIDTH_ROUNDS)
        w.record(price=(sizes[-1] / min(times) / 1e9, "GB/s"))
    for small in kept:
        small.free()
    w.mpi.finalize()


CHECK = MpiCacheGrowth()
