"""The composed part of an acceptance history: scenes of one dimension each, often large in applications.

They are written down here, in order; only offsets, some sizes, and which of several equal objects end first
are drawn from the seed. Together they perform each kind of operation at least `FLOOR` times, and use each
class of size once that the room allows. What a scene proposes and the model forbids (without a capability, on
a vendor's driver) is left out. The epochs after the scenes are drawn at random: see `generator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import Any

from gpuipc_doctor.api import NOISE_BYTES
from gpuipc_doctor.histories.contents import FULL_BYTES
from gpuipc_doctor.histories.memory_draft import Draft
from gpuipc_doctor.histories.memory_state import GRANULE
from gpuipc_doctor.histories.operations import WHOLE, Operation

KIB, MIB = 1 << 10, 1 << 20

FLOOR = 8
"""Times that each kind of operation occurs, but those of `memory_operations.RARE`."""

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


def sizes_without_room(room: int) -> list[str]:
    return [f"memory {name}" for name, nbytes in SIZES.items() if nbytes > room]


class Scene:
    """A composed history in the making. Methods that make an object return its number."""

    def __init__(self, draft: Draft, device: int, processes: int = 2) -> None:
        """``device``: of the first process."""
        self.operations: list[Operation] = []
        self.draft, self.vary, self.room = draft, draft.vary, draft.limits.room
        self.crew: Sequence[int] = draft.members(processes, device) if processes else ()

    def do(self, do: str, by: int, on: int = 0, **fields: Any) -> None:
        self.operations.append(Operation(do, by, on, **fields))

    def make(self, do: str, by: int, on: int = 0, **fields: Any) -> int:
        """Do what makes an object."""
        number = self.draft.number()
        self.do(do, by, on, makes=number, **fields)
        return number

    def change(self, do: str, by: int, on: int, **fields: Any) -> None:
        """Do what writes new contents."""
        self.do(do, by, on, stamp=self.draft.number(), **fields)

    def write(self, by: int, on: int, **fields: Any) -> None:
        self.change("write", by, on, **fields)

    def read(self, by: int, on: int, **fields: Any) -> None:
        self.do("read", by, on, **fields)

    def buffer(self, by: int, nbytes: int, kind: str = "") -> int:
        """A buffer with contents."""
        buffer = self.make("allocate", by, nbytes=nbytes)
        self.write(by, buffer, kind=kind)
        return buffer

    def open(self, by: int, buffer: int) -> int:
        return self.make("open", by, buffer)

    def in_turn(self, turn: int) -> tuple[int, int]:
        """The exporter and the importer of two processes, in roles that change with each turn."""
        return self.crew[turn % 2], self.crew[1 - turn % 2]

    def turns(self, *, forks: bool = False) -> Iterator[tuple[int, int, int]]:
        """`FLOOR` turns: (turn, exporter, importer). ``forks``: both processes fork before half of them."""
        for turn in range(FLOOR):
            if forks and turn == FLOOR // 2:
                for by in self.crew:
                    self.do("fork", by)
            yield turn, *self.in_turn(turn)

    def look(self, by: int, on: int, nbytes: int) -> None:
        """Write to a part of the memory at an odd offset, and at the end, and read that."""
        length, stamp = min(61, nbytes - 1), self.draft.number()
        offset = self.vary.randrange(nbytes - length) | 1 if nbytes > length + 1 else 0
        for at in {min(offset, nbytes - length), nbytes - length}:
            self.do("write", by, on, offset=at, length=length, stamp=stamp)
            self.read(by, on, offset=max(at - 5, 0), length=min(length + 5, nbytes - at))

    def share(self, a: int, b: int, nbytes: int = GRANULE, suffix: str = "") -> tuple[int, int, int, int]:
        """Physical memory that ``a`` writes and ``b`` maps: the memory, its mapping, the imported memory and
        its mapping. ``suffix``: of the operations that create and import it."""
        memory = self.make(f"create{suffix}", a, nbytes=nbytes)
        view = self.make("map", a, memory)
        self.write(a, view)
        imported = self.make(f"import{suffix}", b, memory)
        return memory, view, imported, self.make("map", b, imported)

    def unshare(self, a: int, b: int, objects: Sequence[int]) -> None:
        """Unmap and release the objects of `share`, the importer's first."""
        memory, view, imported, seen = objects
        for do, by, on in (("unmap", b, seen), ("release", b, imported), ("unmap", a, view)):
            self.do(do, by, on)
        self.do("release", a, memory)

    def pool(self, a: int, b: int, nbytes: int) -> tuple[int, int, int, int]:
        """A pool of ``a`` that ``b`` imports, and memory of it: both numbers of the pool, then of memory."""
        pool = self.make("create-pool", a)
        imported = self.make("import-pool", b, pool)
        memory = self.make("allocate-from-pool", a, pool, nbytes=nbytes)
        self.write(a, memory)
        return pool, imported, memory, self.make("import-pointer", b, memory, of=imported)


def play(draft: Draft) -> Iterator[list[Operation]]:
    """The scenes in order; with several devices, the exporter is on another one in each."""

    def composed(scene: Callable[[Scene], None], device: int, processes: int = 2) -> list[Operation]:
        making = Scene(draft, device, processes)
        scene(making)
        return making.operations

    if draft.limits.wide:
        yield composed(unused, 0)
    memory = [sizes, many, offsets, large_copy, physical, many_physical, fabric, pools]
    for place, scene in enumerate([*memory, events, threads, freed, ends, both_ways, contexts]):
        yield composed(scene, place % draft.devices)
    if draft.devices > 1:
        for scene in (two_devices, pairs, each_device):
            yield composed(scene, 0, processes=0)
    yield composed(crowd, 0, CROWD)  # ends a process, which others would replace


def unused(s: Scene) -> None:
    """Memory that is not used for some seconds."""
    a, b = s.crew[:2]
    buffer = s.buffer(a, 65536)
    mapping = s.open(b, buffer)
    *_, seen = s.share(a, b)
    s.do("idle", a)
    for by, shown in ((b, mapping), (a, buffer), (b, seen)):
        s.read(by, shown)


def sizes(s: Scene) -> None:
    """Memory of each class of size, one after the other."""
    a, b = s.crew[:2]
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= s.room]
    for kind, nbytes in product(("", WHOLE), fitting):
        kind = kind if nbytes <= MOST_WHOLE else ""
        buffer = s.buffer(a, nbytes, kind)
        mapping = s.open(b, buffer)
        s.read(b, mapping, kind=kind)
        s.do("ask", a, buffer, offset=nbytes - 1)
        s.do("ask", b, mapping, offset=nbytes // 2)
        s.look(b, mapping, nbytes)
        s.read(a, buffer)
        s.look(a, buffer, nbytes)
        s.read(b, mapping)
        s.do("export", a, buffer)
        s.do("close", b, mapping)
        s.do("free", a, buffer)


def many(s: Scene) -> None:
    """Many live mappings, and small segments in one block."""
    a, b = s.crew[:2]
    nbytes = s.vary.choice((256, 1000, 4096))
    buffers = [s.buffer(a, nbytes) for _ in range(MAPPINGS)]
    mappings = {buffer: s.open(b, buffer) for buffer in buffers}
    for mapping in mappings.values():
        s.read(b, mapping)
    closed = s.vary.sample(buffers, MAPPINGS // 2)
    for buffer in closed:
        s.do("close", b, mappings[buffer])
        s.do("free", a, buffer)
    for buffer in buffers[::8]:
        s.read(b, mappings[buffer])
    for buffer in [buffer for buffer in buffers if buffer not in closed][:4]:
        s.do("close", b, mappings[buffer])
        s.write(a, buffer)
        s.read(b, s.open(b, buffer))


def offsets(s: Scene) -> None:
    """Writes, fills and copies at offsets of every alignment, and copies of more than 5 MiB."""
    a, b = s.crew[:2]
    nbytes = 6 * MIB + 1000 if s.room >= 13 * MIB else 512 * KIB
    one, other = s.buffer(a, nbytes), s.buffer(a, nbytes)
    mapping = s.open(b, one)
    for turn in range(8):
        length = s.vary.choice((1, 3, 255, 4097, 65537))
        at, start = s.vary.randrange(nbytes - length), s.vary.randrange(nbytes - length)
        by, on = (a, one) if turn % 2 else (b, mapping)
        s.write(by, on, offset=at | 1, length=length)
        s.do("copy", a, one, of=other, offset=start, start=at, length=length)
        s.change("fill", by, on, kind=("8", "16", "32")[turn % 3], offset=at // 4 * 4, length=4096)
        s.read(b, mapping, offset=at, length=length)
        s.read(a, one, offset=start, length=length)
        s.read(b, mapping)
        s.do("copy-across-streams", a, other, of=one, offset=at, start=start, length=length)
        s.read(a, other, offset=at, length=length)
    s.do("copy", a, one, of=other)
    s.read(b, mapping)
    s.change("fill", a, one, kind="32", length=nbytes // 4 * 4)
    s.read(b, mapping)


def large_copy(s: Scene) -> None:
    """A copy on the device of more than 64 MiB."""
    a, b = s.crew[:2]
    nbytes = SIZES["above 64 MiB"]
    if s.room >= 2 * nbytes:
        one, other = s.buffer(a, nbytes), s.buffer(a, nbytes)
        mapping = s.open(b, one)
        s.do("copy", a, one, of=other)
        s.read(b, mapping)


def many_physical(s: Scene) -> None:
    """More imported memories than a table of 32 holds, if there is room; half of them end first."""
    a, b = s.crew[:2]
    shared = [s.share(a, b) for _ in range(min(34, s.room // GRANULE))]
    for *_, seen in shared:
        s.read(b, seen)
    for ended, (*_, seen) in zip(shared[::2], shared[1::2], strict=False):
        s.unshare(a, b, ended)
        s.read(b, seen)


def physical(s: Scene) -> None:
    """Physical memory up to sizes of a pool of tensors."""
    a, b = s.crew[:2]
    for mib in (2, 2, 4, 6, 8, 2, 66, 258):
        nbytes = mib * MIB
        if nbytes > s.room:
            continue
        _, view, imported, seen = objects = s.share(a, b, nbytes)
        s.read(b, seen, kind=WHOLE if nbytes <= 8 * MIB else "")
        s.look(b, seen, nbytes)
        s.read(a, view)
        if nbytes <= 4 * MIB:  # at a second address, too
            again = s.make("map", b, imported)
            s.read(b, again, kind=WHOLE)
            s.do("unmap", b, again)
        s.unshare(a, b, objects)


def fabric(s: Scene) -> None:
    """Physical memory by fabric handle."""
    for _, a, b in s.turns():
        objects = s.share(a, b, suffix="-fabric")
        s.read(b, objects[-1])
        s.unshare(a, b, objects)


def pools(s: Scene) -> None:
    """Pools that are trimmed while they are imported, with memory of several sizes, and some that stays."""
    fitting = [nbytes for nbytes in SIZES.values() if nbytes <= min(s.room, 80 * MIB)]
    for turn, a, b in s.turns(forks=True):
        pool, imported, stays, seen = s.pool(a, b, 4096)
        for nbytes in (fitting[turn % len(fitting)], 4096):
            again = s.make("allocate-from-pool", a, pool, nbytes=nbytes)
            s.do("free-to-pool", a, again)
            memory = s.make("allocate-from-pool", a, pool, nbytes=nbytes)
            s.write(a, memory)
            pointer = s.make("import-pointer", b, memory, of=imported)
            s.read(b, pointer, kind=WHOLE if nbytes <= 8 * MIB else "")
            s.do("trim", a, pool)
            s.look(b, pointer, nbytes)
            s.read(a, memory)
            s.do("free-to-pool", b, pointer)
            s.do("free-to-pool", a, memory)
            s.read(b, seen)
        s.do("free-to-pool", b, seen)
        s.do("free-to-pool", a, stays)
        s.do("destroy-pool", b, imported)
        s.do("destroy-pool", a, pool)


def events(s: Scene) -> None:
    """A copy whose end one process records, and for which the other waits before it reads."""
    shared = []
    for turn in range(2):
        a, b = s.in_turn(turn)
        one, other = s.buffer(a, MIB), s.buffer(a, MIB)
        shared.append((one, other, s.open(b, one)))
    for turn, a, b in s.turns(forks=True):
        one, other, mapping = shared[turn % 2]
        event = s.make("create-event", a)
        opened = s.make("open-event", b, event)
        s.write(a, other)
        s.do("copy-and-record", a, one, of=other, within=event)
        waits, waited, shown = (a, event, one) if turn % 3 == 2 else (b, opened, mapping)
        s.do("wait-event", waits, waited)
        s.read(waits, shown)
        s.do("destroy-event", b, opened)
        s.do("destroy-event", a, event)


def threads(s: Scene) -> None:
    """Other threads than the context's, and forks after which the process goes on."""
    for turn in range(FLOOR):
        a, b = s.in_turn(turn // 2)
        buffer = s.make("allocate", a, nbytes=5000)
        s.change("write-in-thread", a, buffer)
        mapping = s.make("open-in-thread", b, buffer)
        s.read(b, mapping)
        s.do("fork", b if turn % 2 else a)
        s.do("read-in-thread", b, mapping)
        s.do("close-in-thread", b, mapping)
        s.do("free-in-thread", a, buffer)
        if turn % 4 == 1:
            *_, seen = s.share(a, b)
            for offset in range(0, GRANULE, FULL_BYTES):
                s.read(b, seen, offset=offset, length=FULL_BYTES)


def freed(s: Scene) -> None:
    """Memory that is freed while another process has it open, as registration caches do."""
    for _, a, b in s.turns():
        old = s.buffer(a, GRANULE)
        stale = s.open(b, old)
        s.do("free-open", a, old)
        new = s.buffer(a, GRANULE)
        mapping = s.open(b, new)
        s.read(b, mapping)
        s.do("close", b, stale)
        s.read(b, mapping)
        s.do("close", b, mapping)
        s.do("free", a, new)


def ends(s: Scene) -> None:
    """Memory given up in other orders than usual, and then used by the process that still has it."""
    nbytes = GRANULE if s.room >= 32 * MIB else 64 * KIB
    for turn, order in enumerate([(0, 1, 2), (1, 2, 0)]):
        a, b = s.in_turn(turn)
        mappings = [s.open(b, s.buffer(a, nbytes)) for _ in order]
        for closed, other in pairwise(order):
            s.do("close", b, mappings[closed])
            s.read(b, mappings[other])
            s.read(b, mappings[order[-1]])
    for turn in range(2):  # the exporter first: the memory lives on
        a, b = s.in_turn(turn)
        memory, view, imported, seen = s.share(a, b)
        s.do("unmap", a, view)
        s.do("release", a, memory)
        s.read(b, seen)
        s.do("release", b, imported)
        s.read(b, seen)
    for turn in range(2):  # the importer first, which then imports the same again
        a, b = s.in_turn(turn)
        _, imported, memory, pointer = s.pool(a, b, nbytes)
        for again in (True, False):
            s.read(b, pointer)
            s.do("free-to-pool", b, pointer)
            s.read(a, memory)
            if again:
                pointer = s.make("import-pointer", b, memory, of=imported)


def both_ways(s: Scene) -> None:
    """Two processes that each export, import and free beside what they have open, as ranks do."""
    most = s.room // (FLOOR + 1)
    fitting = [nbytes for nbytes in (4096, 65536, GRANULE, 4 * MIB + 512) if nbytes <= most]
    mappings: list[tuple[int, int]] = []
    for _, a, b in s.turns():
        nbytes = s.vary.choice(fitting)
        extra = s.make("allocate", a, nbytes=nbytes)
        buffer = s.buffer(a, nbytes)
        s.do("free", a, extra)
        mappings.append((b, s.open(b, buffer)))
        for by, opened in mappings[-2:]:
            s.read(by, opened)


def contexts(s: Scene) -> None:
    """Two contexts of a process, and memory in each; then large memory is opened where one has ended."""
    a, b = s.crew[:2]
    first = s.buffer(a, 4096)
    context = s.make("create-context", a)
    second = s.make("allocate", a, nbytes=4096)
    for _ in range(FLOOR // 2):
        s.write(a, second)
        s.do("use-context", a, 0)
        s.read(a, first)
        s.do("use-context", a, context)
        s.read(a, second)
    mapping = s.open(b, second)
    s.read(b, mapping)
    s.do("close", b, mapping)
    s.do("end-context", a, context)
    large = 4 * MIB + 512 if s.room >= 8 * MIB else GRANULE
    s.read(a, s.open(a, s.buffer(b, large)), kind=WHOLE)


def crowd(s: Scene) -> None:
    """Memory that five processes share; then one of them ends and its exporter goes on.

    There is more of each kind than used memory may change unnoticed: what a killed process keeps is seen.
    """
    a, *others = s.crew
    nbytes = KEPT if s.room >= 4 * KEPT else GRANULE
    buffer = s.buffer(a, nbytes)
    memory = s.make("create", a, nbytes=nbytes)
    s.write(a, s.make("map", a, memory))
    pool = s.make("create-pool", a)
    pooled = s.make("allocate-from-pool", a, pool, nbytes=nbytes)
    s.write(a, pooled)
    mappings: list[int] = []
    for by in others:
        mappings.append(s.open(by, buffer))
        s.read(by, mappings[-1], kind=WHOLE)
        s.read(by, s.make("map", by, s.make("import", by, memory)), kind=WHOLE)
        imported = s.make("import-pool", by, pool)
        s.read(by, s.make("import-pointer", by, pooled, of=imported), kind=WHOLE)
    first, *_, last = others
    event = s.make("create-event", a)
    for by in others[:-1]:
        s.make("open-event", by, event)
    s.write(last, mappings[-1])
    s.do("kill", last)
    s.do("export", a, buffer)
    s.read(a, buffer)
    s.read(first, s.open(first, s.buffer(a, 65536)))


def two_devices(s: Scene) -> None:
    """A process with contexts on two devices."""
    a, b = s.draft.members(1, 0)[0], s.draft.members(1, 1)[0]
    theirs = s.buffer(b, 65536)
    s.make("create-context", a, device=2)
    s.read(b, s.open(b, s.buffer(a, 65536)))
    opened = s.open(a, theirs)
    s.read(a, opened)
    s.do("ask", a, opened, offset=9)
    s.do("use-context", a, 0)
    s.read(b, s.open(b, s.buffer(a, 65536)))


def each_device(s: Scene) -> None:
    """Each device's memory of each kind, which the next device's process uses, too."""
    crew = [s.draft.members(1, device)[0] for device in range(s.draft.devices)]
    nbytes = MIB + 4097
    for a, b in zip(crew, [*crew[1:], crew[0]], strict=True):
        one, other = s.buffer(a, nbytes), s.buffer(a, nbytes)
        mapping = s.open(b, one)
        event = s.make("create-event", a)
        opened = s.make("open-event", b, event)
        s.do("copy-and-record", a, one, of=other, within=event)
        s.do("wait-event", b, opened)
        s.read(b, mapping)
        s.change("fill", a, one, kind="32", offset=4096, length=65536)
        s.do("copy", a, other, of=one, offset=777, start=4000, length=9000)
        s.do("copy-across-streams", a, other, of=one, offset=KIB, length=9)
        s.do("read-in-thread", a, other, offset=777, length=9000)
        s.do("ask", a, one, offset=nbytes // 2)
        s.do("fork", a)
        s.look(b, mapping, nbytes)
        *_, seen = s.share(a, b)
        s.read(b, seen)
        pool, *_, pointer = s.pool(a, b, nbytes)
        s.read(b, pointer)
        s.do("trim", a, pool)


def pairs(s: Scene) -> None:
    """Each device's memory, opened on each other that reaches it."""
    crew = [s.draft.members(1, device)[0] for device in range(s.draft.devices)]
    fitting = [nbytes for nbytes in (4096, 2 * MIB + 4097, 8 * MIB) if nbytes <= s.room // 4]
    buffers = {(place, nbytes): s.buffer(by, nbytes) for place, by in enumerate(crew) for nbytes in fitting}
    for turn, (place, to) in enumerate(permutations(range(len(crew)), 2)):
        buffer = buffers[place, fitting[turn % len(fitting)]]
        mapping = s.open(crew[to], buffer)
        s.read(crew[to], mapping)
        s.write(crew[to], mapping, offset=turn, length=1000)
        s.read(crew[place], buffer)
        s.do("close", crew[to], mapping)
