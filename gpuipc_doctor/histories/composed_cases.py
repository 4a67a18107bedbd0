"""The composed part of an acceptance history: cases of one dimension each, often large in applications.

They are written down here, in order; only offsets, some sizes, and which of several equal objects end first
are drawn from the seed. Together they perform each kind of operation at least `FLOOR` times, and use each
class of size once that the room allows. What a case proposes and the model forbids (without a capability, on
a vendor's driver) is left out. The phases after these cases are drawn at random: see `generator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, permutations, product

from gpuipc_doctor.api import NOISE_BYTES
from gpuipc_doctor.histories.composed_case import FLOOR, ComposedCase
from gpuipc_doctor.histories.contents import FULL_BYTES
from gpuipc_doctor.histories.memory_draft import Draft
from gpuipc_doctor.histories.memory_state import GRANULE
from gpuipc_doctor.histories.operations import WHOLE, Operation

KIB, MIB = 1 << 10, 1 << 20

SIZES = {
    "up to 64 KiB": 1000,
    "up to 2 MiB": 226656,
    "just below 2 MiB": 2 * MIB - 512,
    "just above 2 MiB": 2 * MIB + 4097,
    "just above 4 MiB": 4 * MIB + 512,
    "up to 64 MiB": 8 * MIB,
    "above 64 MiB": 66 * MIB + 3,
    "above 256 MiB": 258 * MIB + 7,
}
"""Class of size → a size of it in bytes."""

MAPPINGS = 68
"""Mappings, and small segments of a block, that are live at once: more than 64."""

MOST_WHOLE = 70 * MIB
"""Most bytes that are written and read in one copy."""

KEPT = NOISE_BYTES + GRANULE
"""Bytes of each memory that a process has when it is killed."""

MOST_PROCESSES = 5
"""Processes that share memory at once."""


def sizes_without_room(room: int) -> list[str]:
    return [f"memory {name}" for name, nbytes in SIZES.items() if nbytes > room]


def compose(draft: Draft) -> Iterator[list[Operation]]:
    """The cases in order; with several devices, the exporter is on another one in each."""

    def composed(case: Callable[[ComposedCase], None], device: int, processes: int = 2) -> list[Operation]:
        making = ComposedCase(draft, device, processes)
        case(making)
        return making.operations

    if draft.limits.wide:
        yield composed(unused, 0)
    memory = [sizes, many, offsets, large_copy, physical, many_physical, fabric, pools]
    for place, case in enumerate([*memory, events, threads, freed, ends, both_ways, contexts]):
        yield composed(case, place % draft.devices)
    if draft.devices > 1:
        for case in (two_devices, pairs, each_device):
            yield composed(case, 0, processes=0)
    yield composed(five_processes, 0, MOST_PROCESSES)  # ends a process, which others would replace


def unused(c: ComposedCase) -> None:
    """Memory that is not used for some seconds."""
    a, b = c.processes
    buffer = c.buffer(a, 65536)
    mapping = c.open(b, buffer)
    *_, seen = c.share(a, b)
    c.do("idle", a)
    for by, shown in ((b, mapping), (a, buffer), (b, seen)):
        c.read(by, shown)


def sizes(c: ComposedCase) -> None:
    """Memory of each class of size, one after the other."""
    a, b = c.processes
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= c.room]
    for kind, nbytes in product(("", WHOLE), fitting):
        kind = kind if nbytes <= MOST_WHOLE else ""
        buffer = c.buffer(a, nbytes, kind)
        mapping = c.open(b, buffer)
        c.read(b, mapping, kind=kind)
        c.do("ask", a, buffer, offset=nbytes - 1)
        c.do("ask", b, mapping, offset=nbytes // 2)
        c.look(b, mapping, nbytes)
        c.read(a, buffer)
        c.look(a, buffer, nbytes)
        c.read(b, mapping)
        c.do("export", a, buffer)
        c.do("close", b, mapping)
        c.do("free", a, buffer)


def many(c: ComposedCase) -> None:
    """Many live mappings, and small segments in one block."""
    a, b = c.processes
    nbytes = c.vary.choice((256, 1000, 4096))
    buffers = [c.buffer(a, nbytes) for _ in range(MAPPINGS)]
    mappings = {buffer: c.open(b, buffer) for buffer in buffers}
    for mapping in mappings.values():
        c.read(b, mapping)
    closed = c.vary.sample(buffers, MAPPINGS // 2)
    for buffer in closed:
        c.do("close", b, mappings[buffer])
        c.do("free", a, buffer)
    for buffer in buffers[::8]:
        c.read(b, mappings[buffer])
    for buffer in [buffer for buffer in buffers if buffer not in closed][:4]:
        c.do("close", b, mappings[buffer])
        c.write(a, buffer)
        c.read(b, c.open(b, buffer))


def offsets(c: ComposedCase) -> None:
    """Writes, fills and copies at offsets of every alignment, and copies of more than 5 MiB."""
    a, b = c.processes
    nbytes = 6 * MIB + 1000 if c.room >= 13 * MIB else 512 * KIB
    one, other = c.buffer(a, nbytes), c.buffer(a, nbytes)
    mapping = c.open(b, one)
    for turn in range(8):
        length = c.vary.choice((1, 3, 255, 4097, 65537))
        at, start = c.vary.randrange(nbytes - length), c.vary.randrange(nbytes - length)
        by, on = (a, one) if turn % 2 else (b, mapping)
        c.write(by, on, offset=at | 1, length=length)
        c.do("copy", a, one, of=other, offset=start, start=at, length=length)
        c.change("fill", by, on, kind=("8", "16", "32")[turn % 3], offset=at // 4 * 4, length=4096)
        c.read(b, mapping, offset=at, length=length)
        c.read(a, one, offset=start, length=length)
        c.read(b, mapping)
        c.do("copy-across-streams", a, other, of=one, offset=at, start=start, length=length)
        c.read(a, other, offset=at, length=length)
    c.do("copy", a, one, of=other)
    c.read(b, mapping)
    c.change("fill", a, one, kind="32", length=nbytes // 4 * 4)
    c.read(b, mapping)


def large_copy(c: ComposedCase) -> None:
    """A copy on the device of more than 64 MiB."""
    a, b = c.processes
    nbytes = SIZES["above 64 MiB"]
    if c.room >= 2 * nbytes:
        one, other = c.buffer(a, nbytes), c.buffer(a, nbytes)
        mapping = c.open(b, one)
        c.do("copy", a, one, of=other)
        c.read(b, mapping)


def many_physical(c: ComposedCase) -> None:
    """More imported memories than a table of 32 holds, if there is room; half of them end first."""
    a, b = c.processes
    shared = [c.share(a, b) for _ in range(min(34, c.room // GRANULE))]
    for *_, seen in shared:
        c.read(b, seen)
    for ended, (*_, seen) in zip(shared[::2], shared[1::2], strict=False):
        c.unshare(a, b, ended)
        c.read(b, seen)


def physical(c: ComposedCase) -> None:
    """Physical memory up to sizes of a pool of tensors."""
    a, b = c.processes
    for mib in (2, 2, 4, 6, 8, 2, 66, 258):
        nbytes = mib * MIB
        if nbytes > c.room:
            continue
        _, view, imported, seen = objects = c.share(a, b, nbytes)
        c.read(b, seen, kind=WHOLE if nbytes <= 8 * MIB else "")
        c.look(b, seen, nbytes)
        c.read(a, view)
        if nbytes <= 4 * MIB:  # at a second address, too
            again = c.make("map", b, imported)
            c.read(b, again, kind=WHOLE)
            c.do("unmap", b, again)
        c.unshare(a, b, objects)


def fabric(c: ComposedCase) -> None:
    """Physical memory by fabric handle."""
    for _, a, b in c.turns():
        objects = c.share(a, b, suffix="-fabric")
        c.read(b, objects[-1])
        c.unshare(a, b, objects)


def pools(c: ComposedCase) -> None:
    """Pools that are trimmed while they are imported, with memory of several sizes, and some that stays."""
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= min(c.room, 80 * MIB)]
    for turn, a, b in c.turns(forks=True):
        pool, imported, stays, seen = c.pool(a, b, 4096)
        for nbytes in (fitting[turn % len(fitting)], 4096):
            again = c.make("allocate-from-pool", a, pool, nbytes=nbytes)
            c.do("free-to-pool", a, again)
            memory = c.make("allocate-from-pool", a, pool, nbytes=nbytes)
            c.write(a, memory)
            pointer = c.make("import-pointer", b, memory, of=imported)
            c.read(b, pointer, kind=WHOLE if nbytes <= 8 * MIB else "")
            c.do("trim", a, pool)
            c.look(b, pointer, nbytes)
            c.read(a, memory)
            c.do("free-to-pool", b, pointer)
            c.do("free-to-pool", a, memory)
            c.read(b, seen)
        c.do("free-to-pool", b, seen)
        c.do("free-to-pool", a, stays)
        c.do("destroy-pool", b, imported)
        c.do("destroy-pool", a, pool)


def events(c: ComposedCase) -> None:
    """A copy whose end one process records, and for which the other waits before it reads."""
    shared = []
    for turn in range(2):
        a, b = c.in_turn(turn)
        one, other = c.buffer(a, MIB), c.buffer(a, MIB)
        shared.append((one, other, c.open(b, one)))
    for turn, a, b in c.turns(forks=True):
        one, other, mapping = shared[turn % 2]
        event = c.make("create-event", a)
        opened = c.make("open-event", b, event)
        c.write(a, other)
        c.do("copy-and-record", a, one, of=other, within=event)
        waits, waited, shown = (a, event, one) if turn % 3 == 2 else (b, opened, mapping)
        c.do("wait-event", waits, waited)
        c.read(waits, shown)
        c.do("destroy-event", b, opened)
        c.do("destroy-event", a, event)


def threads(c: ComposedCase) -> None:
    """Other threads than the context's, and forks after which the process goes on."""
    for turn in range(FLOOR):
        a, b = c.in_turn(turn // 2)
        buffer = c.make("allocate", a, nbytes=5000)
        c.change("write-in-thread", a, buffer)
        mapping = c.make("open-in-thread", b, buffer)
        c.read(b, mapping)
        c.do("fork", b if turn % 2 else a)
        c.do("read-in-thread", b, mapping)
        c.do("close-in-thread", b, mapping)
        c.do("free-in-thread", a, buffer)
        if turn % 4 == 1:
            *_, seen = c.share(a, b)
            for offset in range(0, GRANULE, FULL_BYTES):
                c.read(b, seen, offset=offset, length=FULL_BYTES)


def freed(c: ComposedCase) -> None:
    """Memory that is freed while another process has it open, as registration caches do."""
    for _, a, b in c.turns():
        old = c.buffer(a, GRANULE)
        stale = c.open(b, old)
        c.do("free-open", a, old)
        new = c.buffer(a, GRANULE)
        mapping = c.open(b, new)
        c.read(b, mapping)
        c.do("close", b, stale)
        c.read(b, mapping)
        c.do("close", b, mapping)
        c.do("free", a, new)


def ends(c: ComposedCase) -> None:
    """Memory given up in other orders than usual, and then used by the process that still has it."""
    nbytes = GRANULE if c.room >= 32 * MIB else 64 * KIB
    for turn, order in enumerate([(0, 1, 2), (1, 2, 0)]):
        a, b = c.in_turn(turn)
        mappings = [c.open(b, c.buffer(a, nbytes)) for _ in order]
        for closed, other in pairwise(order):
            c.do("close", b, mappings[closed])
            c.read(b, mappings[other])
            c.read(b, mappings[order[-1]])
    for turn in range(2):  # the exporter first: the memory lives on
        a, b = c.in_turn(turn)
        memory, view, imported, seen = c.share(a, b)
        c.do("unmap", a, view)
        c.do("release", a, memory)
        c.read(b, seen)
        c.do("release", b, imported)
        c.read(b, seen)
    for turn in range(2):  # the importer first, which then imports the same again
        a, b = c.in_turn(turn)
        _, imported, memory, pointer = c.pool(a, b, nbytes)
        for again in (True, False):
            c.read(b, pointer)
            c.do("free-to-pool", b, pointer)
            c.read(a, memory)
            if again:
                pointer = c.make("import-pointer", b, memory, of=imported)


def both_ways(c: ComposedCase) -> None:
    """Two processes that each export, import and free beside what they have open, as ranks do."""
    most = c.room // (FLOOR + 1)
    fitting = [nbytes for nbytes in (4096, 65536, GRANULE, 4 * MIB + 512) if nbytes <= most]
    mappings: list[tuple[int, int]] = []
    for _, a, b in c.turns():
        nbytes = c.vary.choice(fitting)
        extra = c.make("allocate", a, nbytes=nbytes)
        buffer = c.buffer(a, nbytes)
        c.do("free", a, extra)
        mappings.append((b, c.open(b, buffer)))
        for by, opened in mappings[-2:]:
            c.read(by, opened)


def contexts(c: ComposedCase) -> None:
    """Two contexts of a process, and memory in each; then large memory is opened where one has ended."""
    a, b = c.processes
    first = c.buffer(a, 4096)
    context = c.make("create-context", a)
    second = c.make("allocate", a, nbytes=4096)
    for _ in range(FLOOR // 2):
        c.write(a, second)
        c.do("use-context", a, 0)
        c.read(a, first)
        c.do("use-context", a, context)
        c.read(a, second)
    mapping = c.open(b, second)
    c.read(b, mapping)
    c.do("close", b, mapping)
    c.do("end-context", a, context)
    large = 4 * MIB + 512 if c.room >= 8 * MIB else GRANULE
    c.read(a, c.open(a, c.buffer(b, large)), kind=WHOLE)


def five_processes(c: ComposedCase) -> None:
    """Memory that five processes share; then one of them ends and its exporter goes on.

    There is more of each kind than used memory may change unnoticed: what a killed process keeps is seen.
    """
    a, *others = c.processes
    nbytes = KEPT if c.room >= 4 * KEPT else GRANULE
    buffer = c.buffer(a, nbytes)
    memory = c.make("create", a, nbytes=nbytes)
    c.write(a, c.make("map", a, memory))
    pool = c.make("create-pool", a)
    pooled = c.make("allocate-from-pool", a, pool, nbytes=nbytes)
    c.write(a, pooled)
    mappings: list[int] = []
    for by in others:
        mappings.append(c.open(by, buffer))
        c.read(by, mappings[-1], kind=WHOLE)
        c.read(by, c.make("map", by, c.make("import", by, memory)), kind=WHOLE)
        imported = c.make("import-pool", by, pool)
        c.read(by, c.make("import-pointer", by, pooled, of=imported), kind=WHOLE)
    first, *_, last = others
    event = c.make("create-event", a)
    for by in others[:-1]:
        c.make("open-event", by, event)
    c.write(last, mappings[-1])
    c.do("kill", last)
    c.do("export", a, buffer)
    c.read(a, buffer)
    c.read(first, c.open(first, c.buffer(a, 65536)))


def two_devices(c: ComposedCase) -> None:
    """A process with contexts on two devices."""
    a, b = c.draft.members(1, 0)[0], c.draft.members(1, 1)[0]
    theirs = c.buffer(b, 65536)
    c.make("create-context", a, device=2)
    c.read(b, c.open(b, c.buffer(a, 65536)))
    opened = c.open(a, theirs)
    c.read(a, opened)
    c.do("ask", a, opened, offset=9)
    c.do("use-context", a, 0)
    c.read(b, c.open(b, c.buffer(a, 65536)))


def each_device(c: ComposedCase) -> None:
    """Each device's memory of each kind, which the next device's process uses, too."""
    processes = [c.draft.members(1, device)[0] for device in range(c.draft.devices)]
    nbytes = MIB + 4097
    for a, b in zip(processes, [*processes[1:], processes[0]], strict=True):
        one, other = c.buffer(a, nbytes), c.buffer(a, nbytes)
        mapping = c.open(b, one)
        event = c.make("create-event", a)
        opened = c.make("open-event", b, event)
        c.do("copy-and-record", a, one, of=other, within=event)
        c.do("wait-event", b, opened)
        c.read(b, mapping)
        c.change("fill", a, one, kind="32", offset=4096, length=65536)
        c.do("copy", a, other, of=one, offset=777, start=4000, length=9000)
        c.do("copy-across-streams", a, other, of=one, offset=KIB, length=9)
        c.do("read-in-thread", a, other, offset=777, length=9000)
        c.do("ask", a, one, offset=nbytes // 2)
        c.do("fork", a)
        c.look(b, mapping, nbytes)
        *_, seen = c.share(a, b)
        c.read(b, seen)
        pool, *_, pointer = c.pool(a, b, nbytes)
        c.read(b, pointer)
        c.do("trim", a, pool)


def pairs(c: ComposedCase) -> None:
    """Each device's memory, opened on each other that reaches it."""
    processes = [c.draft.members(1, device)[0] for device in range(c.draft.devices)]
    fitting = [nbytes for nbytes in (4096, 2 * MIB + 4097, 8 * MIB) if nbytes <= c.room // 4]
    buffers = {
        (place, nbytes): c.buffer(by, nbytes) for place, by in enumerate(processes) for nbytes in fitting
    }
    for turn, (place, to) in enumerate(permutations(range(len(processes)), 2)):
        buffer = buffers[place, fitting[turn % len(fitting)]]
        mapping = c.open(processes[to], buffer)
        c.read(processes[to], mapping)
        c.write(processes[to], mapping, offset=turn, length=1000)
        c.read(processes[place], buffer)
        c.do("close", processes[to], mapping)
