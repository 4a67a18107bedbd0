"""Short histories, each of one dimension in which applications are large and random histories small.

Together they perform each kind of operation at least `FLOOR` times, and use each class of size once that the
room allows. What a scene proposes and the model forbids (without a capability, on a vendor's driver) is left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, permutations, product
from random import Random
from typing import TYPE_CHECKING

from gpuipc_doctor.api import NOISE_BYTES
from gpuipc_doctor.histories.contents import FULL_BYTES
from gpuipc_doctor.histories.operations import WHOLE, Operation

if TYPE_CHECKING:
    from gpuipc_doctor.histories.generator import Generator

KIB, MIB = 1 << 10, 1 << 20
GRANULE = 2 * MIB

FLOOR = 8
"""Times that each kind of operation occurs, but those of `RARE`."""

RARE = {
    "create-context": "making a context takes 230 ms on an H200",
    "end-context": "its successor takes as long",
    "kill": "ending a process takes 70 ms on an H200, and its successor's context 230 ms",
    "idle": "takes seconds",
    "read-by-kernel": "each loads its kernels anew, and HIP compiles them",
    "write-by-kernel": "likewise",
}
"""Operation that occurs less often in the acceptance tier → why."""

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

CROWD = 5
"""Processes that share memory at once."""

Scene = Iterator[Operation]


def sizes_without_room(room: int) -> list[str]:
    return [f"memory {name}" for name, nbytes in SIZES.items() if nbytes > room]


def play(g: Generator) -> Iterator[Scene]:
    """The scenes in order; with several devices, the exporter is on another one in each."""
    if g.limits.wide:
        yield unused(g)
    memory = [sizes, many, offsets, large_copy, physical, many_physical, fabric, pools]
    for place, scene in enumerate([*memory, events, threads, freed, ends, both_ways, contexts]):
        yield scene(g, place % g.devices)
    if g.devices > 1:
        yield two_devices(g)
        yield pairs(g)
        yield each_device(g)
    yield crowd(g, 0)  # ends a process, which others would replace


def in_turn(crew: Sequence[int], turn: int) -> tuple[int, int]:
    """The exporter and the importer of two processes, in roles that change with each turn."""
    return crew[turn % 2], crew[1 - turn % 2]


def forks(crew: Iterable[int]) -> Scene:
    for by in crew:
        yield Operation("fork", by)


def look(by: int, on: int, nbytes: int, stamp: int, vary: Random) -> Scene:
    """Write to a part of the memory at an odd offset, and at the end, and read that."""
    length = min(61, nbytes - 1)
    offset = vary.randrange(nbytes - length) | 1 if nbytes > length + 1 else 0
    for at in {min(offset, nbytes - length), nbytes - length}:
        yield Operation("write", by, on=on, offset=at, length=length, stamp=stamp)
        yield Operation("read", by, on=on, offset=max(at - 5, 0), length=min(length + 5, nbytes - at))


def share(g: Generator, a: int, b: int, objects: Sequence[int], nbytes: int, *, by: str = "") -> Scene:
    """Physical memory that ``a`` writes and ``b`` maps; ``by``: the suffix of its operations.

    ``objects``: the memory, its mapping, the imported memory and its mapping.
    """
    memory, view, imported, seen = objects
    yield Operation(f"create{by}", a, makes=memory, nbytes=nbytes)
    yield Operation("map", a, on=memory, makes=view)
    yield Operation("write", a, on=view, stamp=g.number())
    yield Operation(f"import{by}", b, on=memory, makes=imported)
    yield Operation("map", b, on=imported, makes=seen)


def unshare(a: int, b: int, objects: Sequence[int]) -> Scene:
    """Unmap and release the objects of `share`, the importer's first."""
    memory, view, imported, seen = objects
    for by, thing, do in ((b, seen, "unmap"), (b, imported, "release"), (a, view, "unmap")):
        yield Operation(do, by, on=thing)
    yield Operation("release", a, on=memory)


def unused(g: Generator) -> Scene:
    """Memory that is not used for some seconds."""
    a, b, *_ = g.crew(2, 0)
    buffer, mapping, *objects = (g.number() for _ in range(6))
    yield Operation("allocate", a, makes=buffer, nbytes=65536)
    yield Operation("write", a, on=buffer, stamp=g.number())
    yield Operation("open", b, on=buffer, makes=mapping)
    yield from share(g, a, b, objects, 2 * MIB)
    yield Operation("idle", a)
    for by, shown in ((b, mapping), (a, buffer), (b, objects[-1])):
        yield Operation("read", by, on=shown)


def sizes(g: Generator, device: int) -> Scene:
    """Memory of each class of size, one after the other."""
    a, b, *_ = g.crew(2, device)
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= g.limits.room]
    for kind, nbytes in product(("", WHOLE), fitting):
        kind = kind if nbytes <= MOST_WHOLE else ""
        buffer, mapping = g.number(), g.number()
        yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
        yield Operation("write", a, on=buffer, kind=kind, stamp=g.number())
        yield Operation("open", b, on=buffer, makes=mapping)
        yield Operation("read", b, on=mapping, kind=kind)
        yield Operation("ask", a, on=buffer, offset=nbytes - 1)
        yield Operation("ask", b, on=mapping, offset=nbytes // 2)
        yield from look(b, mapping, nbytes, g.number(), g.vary)
        yield Operation("read", a, on=buffer)
        yield from look(a, buffer, nbytes, g.number(), g.vary)
        yield Operation("read", b, on=mapping)
        yield Operation("export", a, on=buffer)
        yield Operation("close", b, on=mapping)
        yield Operation("free", a, on=buffer)


def many(g: Generator, device: int) -> Scene:
    """Many live mappings, and small segments in one block."""
    a, b, *_ = g.crew(2, device)
    nbytes = g.vary.choice((256, 1000, 4096))
    buffers = [g.number() for _ in range(MAPPINGS)]
    for buffer in buffers:
        yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
        yield Operation("write", a, on=buffer, stamp=g.number())
    mappings = {buffer: g.number() for buffer in buffers}
    for buffer, mapping in mappings.items():
        yield Operation("open", b, on=buffer, makes=mapping)
    for mapping in mappings.values():
        yield Operation("read", b, on=mapping)
    closed = g.vary.sample(buffers, MAPPINGS // 2)
    for buffer in closed:
        yield Operation("close", b, on=mappings[buffer])
        yield Operation("free", a, on=buffer)
    for buffer in buffers[::8]:
        yield Operation("read", b, on=mappings[buffer])
    for buffer in [buffer for buffer in buffers if buffer not in closed][:4]:
        again = g.number()
        yield Operation("close", b, on=mappings[buffer])
        yield Operation("write", a, on=buffer, stamp=g.number())
        yield Operation("open", b, on=buffer, makes=again)
        yield Operation("read", b, on=again)


def offsets(g: Generator, device: int) -> Scene:
    """Writes, fills and copies at offsets of every alignment, and copies of more than 5 MiB."""
    a, b, *_ = g.crew(2, device)
    nbytes = 6 * MIB + 1000 if g.limits.room >= 13 * MIB else 512 * KIB
    one, other, mapping = g.number(), g.number(), g.number()
    for buffer in (one, other):
        yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
        yield Operation("write", a, on=buffer, stamp=g.number())
    yield Operation("open", b, on=one, makes=mapping)
    for turn in range(8):
        length = g.vary.choice((1, 3, 255, 4097, 65537))
        at, start = g.vary.randrange(nbytes - length), g.vary.randrange(nbytes - length)
        by, on = (a, one) if turn % 2 else (b, mapping)
        yield Operation("write", by, on=on, offset=at | 1, length=length, stamp=g.number())
        yield Operation("copy", a, on=one, of=other, offset=start, start=at, length=length)
        kind = ("8", "16", "32")[turn % 3]
        yield Operation("fill", by, on=on, kind=kind, offset=at // 4 * 4, length=4096, stamp=g.number())
        yield Operation("read", b, on=mapping, offset=at, length=length)
        yield Operation("read", a, on=one, offset=start, length=length)
        yield Operation("read", b, on=mapping)
        at_once = Operation("copy-across-streams", a, on=other, of=one, offset=at, start=start, length=length)
        yield at_once
        yield Operation("read", a, on=other, offset=at, length=length)
    yield Operation("copy", a, on=one, of=other)
    yield Operation("read", b, on=mapping)
    yield Operation("fill", a, on=one, kind="32", length=nbytes // 4 * 4, stamp=g.number())
    yield Operation("read", b, on=mapping)


def large_copy(g: Generator, device: int) -> Scene:
    """A copy on the device of more than 64 MiB."""
    a, b, *_ = g.crew(2, device)
    nbytes = SIZES["above 64 MiB"]
    if g.limits.room >= 2 * nbytes:
        one, other, mapping = g.number(), g.number(), g.number()
        for buffer in (one, other):
            yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
            yield Operation("write", a, on=buffer, stamp=g.number())
        yield Operation("open", b, on=one, makes=mapping)
        yield Operation("copy", a, on=one, of=other)
        yield Operation("read", b, on=mapping)


def many_physical(g: Generator, device: int) -> Scene:
    """More imported memories than a table of 32 holds, if there is room; half of them end first."""
    a, b, *_ = g.crew(2, device)
    shared = [[g.number() for _ in range(4)] for _ in range(min(34, g.limits.room // GRANULE))]
    for objects in shared:
        yield from share(g, a, b, objects, GRANULE)
    for objects in shared:
        yield Operation("read", b, on=objects[-1])
    for ended, other in zip(shared[::2], shared[1::2], strict=False):
        yield from unshare(a, b, ended)
        yield Operation("read", b, on=other[-1])


def physical(g: Generator, device: int) -> Scene:
    """Physical memory up to sizes of a pool of tensors."""
    a, b, *_ = g.crew(2, device)
    for mib in (2, 2, 4, 6, 8, 2, 66, 258):
        nbytes = mib * MIB
        if nbytes > g.limits.room:
            continue
        _, view, imported, seen = objects = [g.number() for _ in range(4)]
        yield from share(g, a, b, objects, nbytes)
        yield Operation("read", b, on=seen, kind=WHOLE if nbytes <= 8 * MIB else "")
        yield from look(b, seen, nbytes, g.number(), g.vary)
        yield Operation("read", a, on=view)
        if nbytes <= 4 * MIB:  # at a second address, too
            again = g.number()
            yield Operation("map", b, on=imported, makes=again)
            yield Operation("read", b, on=again, kind=WHOLE)
            yield Operation("unmap", b, on=again)
        yield from unshare(a, b, objects)


def fabric(g: Generator, device: int) -> Scene:
    """Physical memory by fabric handle."""
    crew = g.crew(2, device)
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn)
        objects = [g.number() for _ in range(4)]
        yield from share(g, a, b, objects, 2 * MIB, by="-fabric")
        yield Operation("read", b, on=objects[-1])
        yield from unshare(a, b, objects)


def pools(g: Generator, device: int) -> Scene:
    """Pools that are trimmed while they are imported, with memory of several sizes, and some that stays."""
    crew = g.crew(2, device)
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= min(g.limits.room, 80 * MIB)]
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn)
        if turn == FLOOR // 2:
            yield from forks(crew)
        pool, imported, stays, seen = (g.number() for _ in range(4))
        yield Operation("create-pool", a, makes=pool)
        yield Operation("import-pool", b, on=pool, makes=imported)
        yield Operation("allocate-from-pool", a, on=pool, makes=stays, nbytes=4096)
        yield Operation("write", a, on=stays, stamp=g.number())
        yield Operation("import-pointer", b, on=stays, of=imported, makes=seen)
        for nbytes in (fitting[turn % len(fitting)], 4096):
            memory, pointer, again = g.number(), g.number(), g.number()
            yield Operation("allocate-from-pool", a, on=pool, makes=again, nbytes=nbytes)
            yield Operation("free-to-pool", a, on=again)
            yield Operation("allocate-from-pool", a, on=pool, makes=memory, nbytes=nbytes)
            yield Operation("write", a, on=memory, stamp=g.number())
            yield Operation("import-pointer", b, on=memory, of=imported, makes=pointer)
            yield Operation("read", b, on=pointer, kind=WHOLE if nbytes <= 8 * MIB else "")
            yield Operation("trim", a, on=pool)
            yield from look(b, pointer, nbytes, g.number(), g.vary)
            yield Operation("read", a, on=memory)
            yield Operation("free-to-pool", b, on=pointer)
            yield Operation("free-to-pool", a, on=memory)
            yield Operation("read", b, on=seen)
        yield Operation("free-to-pool", b, on=seen)
        yield Operation("free-to-pool", a, on=stays)
        yield Operation("destroy-pool", b, on=imported)
        yield Operation("destroy-pool", a, on=pool)


def events(g: Generator, device: int) -> Scene:
    """A copy whose end one process records, and for which the other waits before it reads."""
    crew = g.crew(2, device)
    shared = [[g.number() for _ in range(3)] for _ in crew]
    for turn, (one, other, mapping) in enumerate(shared):
        a, b = in_turn(crew, turn)
        for buffer in (one, other):
            yield Operation("allocate", a, makes=buffer, nbytes=MIB)
            yield Operation("write", a, on=buffer, stamp=g.number())
        yield Operation("open", b, on=one, makes=mapping)
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn)
        if turn == FLOOR // 2:
            yield from forks(crew)
        one, other, mapping = shared[turn % 2]
        event, opened = g.number(), g.number()
        yield Operation("create-event", a, makes=event)
        yield Operation("open-event", b, on=event, makes=opened)
        yield Operation("write", a, on=other, stamp=g.number())
        yield Operation("copy-and-record", a, on=one, of=other, within=event)
        waits, waited, shown = (a, event, one) if turn % 3 == 2 else (b, opened, mapping)
        yield Operation("wait-event", waits, on=waited)
        yield Operation("read", waits, on=shown)
        yield Operation("destroy-event", b, on=opened)
        yield Operation("destroy-event", a, on=event)


def threads(g: Generator, device: int) -> Scene:
    """Other threads than the context's, and forks after which the process goes on."""
    crew = g.crew(2, device)
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn // 2)
        buffer, mapping, *objects = (g.number() for _ in range(6))
        yield Operation("allocate", a, makes=buffer, nbytes=5000)
        yield Operation("write-in-thread", a, on=buffer, stamp=g.number())
        yield Operation("open-in-thread", b, on=buffer, makes=mapping)
        yield Operation("read", b, on=mapping)
        yield Operation("fork", b if turn % 2 else a)
        yield Operation("read-in-thread", b, on=mapping)
        yield Operation("close-in-thread", b, on=mapping)
        yield Operation("free-in-thread", a, on=buffer)
        if turn % 4 == 1:
            yield from share(g, a, b, objects, 2 * MIB)
            for offset in range(0, 2 * MIB, FULL_BYTES):
                yield Operation("read", b, on=objects[-1], offset=offset, length=FULL_BYTES)


def freed(g: Generator, device: int) -> Scene:
    """Memory that is freed while another process has it open, as registration caches do."""
    crew = g.crew(2, device)
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn)
        old, stale, new, mapping = (g.number() for _ in range(4))
        yield Operation("allocate", a, makes=old, nbytes=2 * MIB)
        yield Operation("write", a, on=old, stamp=g.number())
        yield Operation("open", b, on=old, makes=stale)
        yield Operation("free-open", a, on=old)
        yield Operation("allocate", a, makes=new, nbytes=2 * MIB)
        yield Operation("write", a, on=new, stamp=g.number())
        yield Operation("open", b, on=new, makes=mapping)
        yield Operation("read", b, on=mapping)
        yield Operation("close", b, on=stale)
        yield Operation("read", b, on=mapping)
        yield Operation("close", b, on=mapping)
        yield Operation("free", a, on=new)


def ends(g: Generator, device: int) -> Scene:
    """Memory given up in other orders than usual, and then used by the process that still has it."""
    crew = g.crew(2, device)
    nbytes = 2 * MIB if g.limits.room >= 32 * MIB else 64 * KIB
    for turn, order in enumerate([(0, 1, 2), (1, 2, 0)]):
        a, b = in_turn(crew, turn)
        mappings = [g.number() for _ in order]
        for mapping in mappings:
            buffer = g.number()
            yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
            yield Operation("write", a, on=buffer, stamp=g.number())
            yield Operation("open", b, on=buffer, makes=mapping)
        for closed, other in pairwise(order):
            yield Operation("close", b, on=mappings[closed])
            yield Operation("read", b, on=mappings[other])
            yield Operation("read", b, on=mappings[order[-1]])
    for turn in range(2):  # the exporter first: the memory lives on
        a, b = in_turn(crew, turn)
        memory, view, imported, seen = objects = [g.number() for _ in range(4)]
        yield from share(g, a, b, objects, 2 * MIB)
        yield Operation("unmap", a, on=view)
        yield Operation("release", a, on=memory)
        yield Operation("read", b, on=seen)
        yield Operation("release", b, on=imported)
        yield Operation("read", b, on=seen)
    for turn in range(2):  # the importer first, which then imports the same again
        a, b = in_turn(crew, turn)
        pool, imported, memory, first, again = (g.number() for _ in range(5))
        yield Operation("create-pool", a, makes=pool)
        yield Operation("import-pool", b, on=pool, makes=imported)
        yield Operation("allocate-from-pool", a, on=pool, makes=memory, nbytes=nbytes)
        yield Operation("write", a, on=memory, stamp=g.number())
        for pointer in (first, again):
            yield Operation("import-pointer", b, on=memory, of=imported, makes=pointer)
            yield Operation("read", b, on=pointer)
            yield Operation("free-to-pool", b, on=pointer)
            yield Operation("read", a, on=memory)


def both_ways(g: Generator, device: int) -> Scene:
    """Two processes that each export, import and free beside what they have open, as ranks do."""
    crew = g.crew(2, device)
    most = g.limits.room // (FLOOR + 1)
    fitting = [nbytes for nbytes in (4096, 65536, 2 * MIB, 4 * MIB + 512) if nbytes <= most]
    mappings: list[tuple[int, int]] = []
    for turn in range(FLOOR):
        a, b = in_turn(crew, turn)
        nbytes = g.vary.choice(fitting)
        extra, buffer, mapping = (g.number() for _ in range(3))
        yield Operation("allocate", a, makes=extra, nbytes=nbytes)
        yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
        yield Operation("write", a, on=buffer, stamp=g.number())
        yield Operation("free", a, on=extra)
        yield Operation("open", b, on=buffer, makes=mapping)
        mappings.append((b, mapping))
        for by, opened in mappings[-2:]:
            yield Operation("read", by, on=opened)


def contexts(g: Generator, device: int) -> Scene:
    """Two contexts of a process, and memory in each; then large memory is opened where one has ended."""
    a, b, *_ = g.crew(2, device)
    context, first, second, mapping, late, opened = (g.number() for _ in range(6))
    yield Operation("allocate", a, makes=first, nbytes=4096)
    yield Operation("write", a, on=first, stamp=g.number())
    yield Operation("create-context", a, makes=context)
    yield Operation("allocate", a, makes=second, nbytes=4096)
    for _ in range(FLOOR // 2):
        yield Operation("write", a, on=second, stamp=g.number())
        yield Operation("use-context", a, on=0)
        yield Operation("read", a, on=first)
        yield Operation("use-context", a, on=context)
        yield Operation("read", a, on=second)
    yield Operation("open", b, on=second, makes=mapping)
    yield Operation("read", b, on=mapping)
    yield Operation("close", b, on=mapping)
    yield Operation("end-context", a, on=context)
    large = 4 * MIB + 512 if g.limits.room >= 8 * MIB else 2 * MIB
    yield Operation("allocate", b, makes=late, nbytes=large)
    yield Operation("write", b, on=late, stamp=g.number())
    yield Operation("open", a, on=late, makes=opened)
    yield Operation("read", a, on=opened, kind=WHOLE)


def crowd(g: Generator, device: int) -> Scene:
    """Memory that five processes share; then one of them ends and its exporter goes on.

    There is more of each kind than used memory may change unnoticed: what a killed process keeps is seen.
    """
    a, *others = g.crew(CROWD, device)
    buffer, memory, view, pool, pooled = (g.number() for _ in range(5))
    nbytes = KEPT if g.limits.room >= 4 * KEPT else GRANULE
    yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
    yield Operation("write", a, on=buffer, stamp=g.number())
    yield Operation("create", a, makes=memory, nbytes=nbytes)
    yield Operation("map", a, on=memory, makes=view)
    yield Operation("write", a, on=view, stamp=g.number())
    yield Operation("create-pool", a, makes=pool)
    yield Operation("allocate-from-pool", a, on=pool, makes=pooled, nbytes=nbytes)
    yield Operation("write", a, on=pooled, stamp=g.number())
    mappings = {by: g.number() for by in others}
    for by, mapping in mappings.items():
        imported, seen, of_pool, pointer = (g.number() for _ in range(4))
        yield Operation("open", by, on=buffer, makes=mapping)
        yield Operation("read", by, on=mapping, kind=WHOLE)
        yield Operation("import", by, on=memory, makes=imported)
        yield Operation("map", by, on=imported, makes=seen)
        yield Operation("read", by, on=seen, kind=WHOLE)
        yield Operation("import-pool", by, on=pool, makes=of_pool)
        yield Operation("import-pointer", by, on=pooled, of=of_pool, makes=pointer)
        yield Operation("read", by, on=pointer, kind=WHOLE)
    first, *_, last = others
    event = g.number()
    yield Operation("create-event", a, makes=event)
    for by in others[:-1]:
        yield Operation("open-event", by, on=event, makes=g.number())
    yield Operation("write", last, on=mappings[last], stamp=g.number())
    yield Operation("kill", last)
    yield Operation("export", a, on=buffer)
    yield Operation("read", a, on=buffer)
    new, mapping = g.number(), g.number()
    yield Operation("allocate", a, makes=new, nbytes=65536)
    yield Operation("write", a, on=new, stamp=g.number())
    yield Operation("open", first, on=new, makes=mapping)
    yield Operation("read", first, on=mapping)


def two_devices(g: Generator) -> Scene:
    """A process with contexts on two devices."""
    a, b = g.crew(1, 0)[0], g.crew(1, 1)[0]
    context, own, theirs, far, mapping, opened = (g.number() for _ in range(6))
    yield Operation("allocate", b, makes=theirs, nbytes=65536)
    yield Operation("write", b, on=theirs, stamp=g.number())
    yield Operation("create-context", a, makes=context, device=2)
    yield Operation("allocate", a, makes=far, nbytes=65536)
    yield Operation("write", a, on=far, stamp=g.number())
    yield Operation("open", b, on=far, makes=mapping)
    yield Operation("read", b, on=mapping)
    yield Operation("open", a, on=theirs, makes=opened)
    yield Operation("read", a, on=opened)
    yield Operation("ask", a, on=opened, offset=9)
    yield Operation("use-context", a, on=0)
    yield Operation("allocate", a, makes=own, nbytes=65536)
    yield Operation("write", a, on=own, stamp=g.number())
    again = g.number()
    yield Operation("open", b, on=own, makes=again)
    yield Operation("read", b, on=again)


def each_device(g: Generator) -> Scene:
    """Each device's memory of each kind, which the next device's process uses, too."""
    crew = [g.crew(1, device)[0] for device in range(g.devices)]
    nbytes = MIB + 4097
    for a, b in zip(crew, [*crew[1:], crew[0]], strict=True):
        one, other, mapping, event, opened = (g.number() for _ in range(5))
        pool, imported, memory, pointer, *objects = (g.number() for _ in range(8))
        for buffer in (one, other):
            yield Operation("allocate", a, makes=buffer, nbytes=nbytes)
            yield Operation("write", a, on=buffer, stamp=g.number())
        yield Operation("open", b, on=one, makes=mapping)
        yield Operation("create-event", a, makes=event)
        yield Operation("open-event", b, on=event, makes=opened)
        yield Operation("copy-and-record", a, on=one, of=other, within=event)
        yield Operation("wait-event", b, on=opened)
        yield Operation("read", b, on=mapping)
        yield Operation("fill", a, on=one, kind="32", offset=4096, length=65536, stamp=g.number())
        yield Operation("copy", a, on=other, of=one, offset=777, start=4000, length=9000)
        yield Operation("copy-across-streams", a, on=other, of=one, offset=KIB, length=9)
        yield Operation("read-in-thread", a, on=other, offset=777, length=9000)
        yield Operation("ask", a, on=one, offset=nbytes // 2)
        yield Operation("fork", a)
        yield from look(b, mapping, nbytes, g.number(), g.vary)
        yield from share(g, a, b, objects, 2 * MIB)
        yield Operation("read", b, on=objects[-1])
        yield Operation("create-pool", a, makes=pool)
        yield Operation("import-pool", b, on=pool, makes=imported)
        yield Operation("allocate-from-pool", a, on=pool, makes=memory, nbytes=nbytes)
        yield Operation("write", a, on=memory, stamp=g.number())
        yield Operation("import-pointer", b, on=memory, of=imported, makes=pointer)
        yield Operation("read", b, on=pointer)
        yield Operation("trim", a, on=pool)


def pairs(g: Generator) -> Scene:
    """Each device's memory, opened on each other that reaches it."""
    crew = [g.crew(1, device)[0] for device in range(g.devices)]
    buffers: dict[tuple[int, int], int] = {}
    sizes = [nbytes for nbytes in (4096, 2 * MIB + 4097, 8 * MIB) if nbytes <= g.limits.room // 4]
    for place, by in enumerate(crew):
        for nbytes in sizes:
            buffer = buffers[place, nbytes] = g.number()
            yield Operation("allocate", by, makes=buffer, nbytes=nbytes)
            yield Operation("write", by, on=buffer, stamp=g.number())
    for turn, (place, to) in enumerate(permutations(range(len(crew)), 2)):
        buffer, mapping = buffers[place, sizes[turn % len(sizes)]], g.number()
        yield Operation("open", crew[to], on=buffer, makes=mapping)
        yield Operation("read", crew[to], on=mapping)
        yield Operation("write", crew[to], on=mapping, offset=turn, length=1000, stamp=g.number())
        yield Operation("read", crew[place], on=buffer)
        yield Operation("close", crew[to], on=mapping)
