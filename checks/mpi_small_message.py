"""Send small messages between two ranks in every way in which a cxi node was seen to hang or crash.

The report behind it (Slingshot, Cray MPICH, December 2023): device to device, 16 bytes hang and 256 bytes
crash, blocking and not. Here every size goes device to device, host to device and device to host, in both
directions, blocking and non-blocking; each message is verified, with guard bytes behind it that must stay
as they were. What hangs or crashes is left out and the rest is tried in fresh ranks, so the result is a map
and not the first stone. Last, latency and bandwidth are measured, device to device.

All of it happens on each device, between any two of the node, and, where `--nodes 2` asks for that, between
the first devices of two nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Finding,
    Json,
    Memory,
    Probe,
    ProbeOutcome,
    Worker,
    difference,
    pattern,
)

SIZES = (0, 1, 8, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Bytes; those at which the MPI in use changes its protocol come in addition."""

GUARD = 64
"""Bytes behind each message that nobody may touch."""

PLACES = (("device", "device"), ("host", "device"), ("device", "host"))
"""Where the message comes from, and where it goes."""

MODES = ("blocking", "non-blocking")

LARGE = (4 << 20, 16 << 20)
"""Bytes of messages whose bandwidth is measured, too: a latency says little of what a node can move."""

PASSES, WARM_UP, ROUNDS, LARGE_ROUNDS = 4, 5, 25, 3
"""All sizes are timed in turn, again and again: ranks that share a processor for a while slow one size in one
pass (1 ms in place of 1 µs was seen, in every round of it), and what is a size's own shows in every pass."""

OUT_OF_LINE = 20.0
"""A latency so many times that of both its neighbours in size is pointed out."""

ENOUGH = 3
"""So many sizes that fail in one way, and no other size is tried in that way: each costs a deadline."""

ACROSS, REST = "between nodes", "the rest"
"""Names of probes."""

Way = tuple[str, str, str, int]
"""From where, to where, in which mode, from which rank."""

Cell = tuple[int, str, str, str, int]
"""One square of the map: bytes, then the way."""

Failed = tuple[Cell, str]
"""A cell that failed, and how its probe ended."""


class MpiSmallMessage(Check):
    id = "mpi-small-message"
    title = "small messages between ranks arrive, whole and in time"
    requires = frozenset({"multi-process"})
    needs_mpi = True

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        sizes = sorted({*SIZES, *(size for size in ctx.mpi.edges if size <= SIZES[-1])})
        pairs = [(a, b) for a, b in ctx.pairs if a.index < b.index]
        params = {"sizes": sizes, "failed": []}
        for devices in [*((device,) for device in ctx.devices), *pairs]:
            yield Probe("", ROLES, devices, params, launch=ctx.mpi.launch)
        if ctx.mpi.across:
            for backend in dict.fromkeys(device.backend for device in ctx.devices):
                first = next(device for device in ctx.devices if device.backend == backend)
                yield Probe(ACROSS, ROLES, (first,), params, launch=ctx.mpi.across)

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        if failed.blamed and (cell := failed.records[failed.blamed].get("cell")):
            role = failed.roles[failed.blamed]
            ending = f"{failed.blamed} {role.ending.value} in {role.operation or 'no call'}"
            params = {**failed.params, "failed": [*failed.params["failed"], [cell, ending]]}
            name = f"{ACROSS}, {REST}" if failed.probe.startswith(ACROSS) else REST
            yield Probe(name, ROLES, failed.devices, params, launch=failed.launch)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        wrong = [line for record in done.records.values() for line in record["wrong"]]
        first = done.records["rank 0"]
        nodes = {record["node"] for record in done.records.values()}
        if len(nodes) != 1 + done.probe.startswith(ACROSS):
            wanted = "two nodes" if done.probe.startswith(ACROSS) else "one node"
            yield Finding.error(
                f"the launcher did not put the ranks on {wanted}: they ran on {' and '.join(sorted(nodes))}",
                remedy="see that the allocation has the nodes, and to mpi.launcher of the site config",
            )
            return
        if failed := done.params["failed"]:
            yield Finding.fail(
                f"map of what failed; {first['messages']} kinds of message are right", *mapped(failed)
            )
        if wrong:
            yield Finding.fail(
                f"{len(wrong)} of {first['messages']} kinds of message arrived wrong", *wrong[:8]
            )
        times = {int(size): value for size, value in first["latency_us"].items()}
        if odd := list(out_of_line(times)):
            yield Finding.warn("a size is out of line with its neighbours", *odd)
        if not (failed or wrong or odd):
            where = f" from {' to '.join(sorted(nodes))}" if done.probe.startswith(ACROSS) else ""
            yield Finding.ok(f"{first['messages']} kinds of message right{where}", *figures(times))


def figures(times: dict[int, dict[str, float]]) -> Iterator[str]:
    """Latency and bandwidth by size, from microseconds one way."""
    for size, us in times.items():
        speed = f", {size / us['median'] / 1e3:.3g} GB/s" if size else ""
        yield f"{size} B: median {us['median']:.1f} µs, fastest {us['min']:.1f} µs{speed}"


def out_of_line(times: dict[int, dict[str, float]]) -> Iterator[str]:
    """Sizes that take far longer than the next smaller and the next larger one."""
    sizes = sorted(times)
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        # The fastest of all rounds: a busy processor slows most of them, but not all.
        here, around = times[size]["min"], max(times[before]["min"], times[after]["min"])
        if here > OUT_OF_LINE * around:
            yield f"{size} B: {here:.1f} µs; {before} B and {after} B: at most {around:.1f} µs"


def mapped(failed: list[Failed]) -> Iterator[str]:
    """The failed cells, a line for each way and ending."""
    for way, ending in dict.fromkeys((way_of(cell), ending) for cell, ending in failed):
        sizes = [cell[0] for cell, other in failed if way_of(cell) == way and other == ending]
        larger = ", and no more sizes tried" if len(sizes) >= ENOUGH else ""
        yield f"{way_in_words(way)}: {', '.join(f'{size} B' for size in sizes)}{larger}: {ending}"


def given_up(cell: Cell, failed: list[Failed]) -> bool:
    """Whether a cell has failed, or enough others of its way."""
    same_way = [other[0] for other, _ in failed if way_of(other) == way_of(cell)]
    return cell[0] in same_way or len(same_way) >= ENOUGH


def goes_there_and_back(size: int, failed: list[Failed]) -> bool:
    """Whether messages of this size do so as they do when they are timed."""
    cells = [(size, *PLACES[0], MODES[0], sender) for sender in (0, 1)]
    return not any(given_up(cell, failed) for cell in cells)


def exchange(w: Worker) -> None:
    gpu = w.gpus[w.mpi.rank % len(w.gpus)]
    space = max(w.params["sizes"]) + GUARD
    wrong: list[str] = []
    messages = 0
    with gpu.alloc(space) as device:
        places = {"device": device, "host": w.host_memory(space)}
        for cell in cells(w.params["sizes"]):
            if not given_up(cell, w.params["failed"]):
                w.record(cell=cell)
                messages += 1
                with w.step(describe(cell)):
                    wrong += deliver(w, cell, places)
        w.record(cell=None)
    safe = [size for size in (*w.params["sizes"], *LARGE) if goes_there_and_back(size, w.params["failed"])]
    with gpu.alloc(LARGE[-1]) as device:
        latency = time_one_way(w, device, safe)
    w.record(wrong=wrong, messages=messages, latency_us=latency, node=w.mpi.node)
    if small := [size for size in safe if size not in LARGE]:
        w.record(price=(latency[small[-1]]["median"], f"µs at {small[-1]} B"))
    w.mpi.finalize()


def cells(sizes: list[int]) -> Iterator[Cell]:
    for size in sizes:
        for source, target in PLACES:
            for mode in MODES:
                for sender in (0, 1):
                    yield size, source, target, mode, sender


def describe(cell: Cell) -> str:
    return f"{cell[0]} B, {way_in_words(way_of(cell))}"


def way_of(cell: Cell) -> Way:
    _, source, target, mode, sender = cell
    return source, target, mode, sender


def way_in_words(way: Way) -> str:
    source, target, mode, sender = way
    return f"{source} to {target}, {mode}, rank {sender} to rank {1 - sender}"


def deliver(w: Worker, cell: Cell, places: dict[str, Memory]) -> list[str]:
    """This rank's part in one message; returns what the receiver finds wrong with it."""
    size, source, target, mode, sender = cell
    is_sender = w.mpi.rank == sender
    message, guard = pattern(size, size, sender, MODES.index(mode)), pattern(GUARD, 0)
    memory = places[source if is_sender else target]
    memory.write((message if is_sender else bytes(size)) + guard)
    transfer(w, memory.address, size, mode, is_sender)
    if is_sender:
        return []
    if wrong := difference(memory.read(size + GUARD), message + guard):
        return [f"{describe(cell)}: {wrong}"]
    return []


def transfer(w: Worker, address: int, nbytes: int, mode: str, is_sender: bool) -> None:
    partner = 1 - w.mpi.rank
    if mode == "blocking":
        (w.mpi.send if is_sender else w.mpi.recv)(address, nbytes, partner)
    else:
        w.mpi.wait([(w.mpi.isend if is_sender else w.mpi.irecv)(address, nbytes, partner)])


def time_one_way(w: Worker, device: Buffer, sizes: list[int]) -> dict[int, dict[str, Json]]:
    """Microseconds one way by size, device to device, blocking."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes * PASSES:
        partner, rounds = 1 - w.mpi.rank, LARGE_ROUNDS if size in LARGE else ROUNDS
        with w.step(f"time {size} B, device to device"):
            w.mpi.ping_pong(device.address, size, partner, min(WARM_UP, rounds))
            times[size] += w.mpi.ping_pong(device.address, size, partner, rounds)
    return {size: {"min": min(each) * 1e6, "median": median(each) * 1e6} for size, each in times.items()}


ROLES = {"rank 0": exchange, "rank 1": exchange}

CHECK = MpiSmallMessage()
