"""Let kernels of two processes read, write and add to the same memory, and wait for each other's flags.

Other checks move data by the driver's copies. Applications load, store and add from kernels, and the
custom all-reduces of NCCL, NVSHMEM and inference engines rely on flags between kernels of two processes.
The exporter's and the importer's kernels use the exporter's memory, the importer's through a mapping: an
IPC handle, a descriptor of VMM memory, a pointer of a pool. On a pair of GPUs, the importer's process
also uses memory of both GPUs by peer access, without IPC. In each case:

- each kernel reads what the other's kernel wrote, up to the last element;
- both add to the same elements at the same time, atomically for the whole system, and no addition is
  lost;
- one kernel writes data and then a flag (release at system scope), while a kernel of the other process
  waits for the flag (acquire at system scope) and then reads the data; then the other way round.

Before, each process verifies its kernels in memory of its own. Additions are skipped where the driver
states that the link between two GPUs has no native atomics, the check where the driver does not compile,
load or launch the kernels; both say nothing about IPC.

No kernel can block a GPU: a kernel that waits gives up after a fixed number of loads, which take about
a second at most, and no other kernel waits for anything. Kernels of two processes on one GPU need not run at
the same time (the driver gives each process its time slices), and a busy node can start one of them late.
So a kernel that gives up is no fault: when the other process reports that the flag is stored, the wait is
repeated, and must then end at once. A flag is late, which is a fault, only if the waiting kernel was seen
to run on after that report.

AMD documents that memory of hipMalloc, pools and descriptors is coherent only when a kernel has ended.
There, IPC handles are of fine-grained memory, and kernels take turns in the other kinds.

NVIDIA's driver compiles the kernels from PTX, AMD's hiprtc from HIP C; no toolkit is needed. The kernels
were assembled for NVIDIA's GPUs from Pascal to Blackwell and compiled for AMD's, but have not run on
hardware yet. The simulated drivers play them by name; they show neither the order of loads and stores nor
caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from gpuipc_doctor.api import (
    Buffer,
    Check,
    Context,
    Device,
    Evidence,
    Finding,
    Gpu,
    Json,
    Memory,
    Probe,
    ProbeOutcome,
    Worker,
)
from gpuipc_doctor.api.gpu import Kernels, KernelsUnavailable, Linear
from gpuipc_doctor.api.offered_memory import (
    BY_DESCRIPTOR,
    BY_HANDLE,
    BY_POINTER,
    SHARED_BY,
    offer_memory,
    open_offered,
)

NBYTES = 1 << 20
"""Bytes of the shared memory: `COUNT` elements of 4 bytes, and the `FLAGS`."""

COUNT = (1 << 17) + 3
"""Number of elements; no multiple of the threads of a kernel."""

FLAGS = {"exporter": NBYTES - 256, "importer": NBYTES - 128}
"""Side that stores a flag → the flag's offset."""

ADDITIONS = 64
UNITS = {"exporter": 1, "importer": 1 << 16}
"""Number of times that each side adds, and the number that it adds: a wrong sum shows whose additions are
missing."""

LOADS = 1 << 18
"""Loads of a kernel that waits: at 0.3 to 3 µs each, 0.1 to 0.8 s."""

GRACE_S = 0.02
"""Seconds for which a waiting kernel may run on after the flag was stored."""

RESULT = 8
"""Offset of the result of a comparison in a side's memory for results; the result of a wait is at 0."""

MASK = 0xFFFFFFFF

PEER = "peer"

KINDS = {
    BY_HANDLE: "an IPC handle",
    BY_DESCRIPTOR: "a descriptor of VMM memory",
    BY_POINTER: "a pointer of a pool",
    PEER: "peer access within a process",
}
"""Kind of mapping → its name."""

ALONE = "wrong-alone"

FAULTS = {
    "wrong-read": "the importer's kernel reads wrong data through a mapping",
    "wrong-write": "the exporter's kernel reads wrong data after the importer's wrote through a mapping",
    "adds-lost": "sums are wrong after kernels of both sides added to the same memory",
    "flag-unseen": "a kernel does not see a flag that the other side's kernel has stored",
    "flag-late": "a running kernel does not see a flag that the other side's kernel has stored",
    "data-after-flag": "a kernel saw the other side's flag and reads wrong data written before it",
}
"""Key of a finding → its sentence."""


class IpcKernels(Check):
    id = "ipc-kernels"
    title = "kernels of two processes share memory and flags"
    requires = frozenset({"legacy-ipc", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in (*((device,) for device in ctx.devices), *ctx.pairs):
            yield Probe("", {"exporter": export, "importer": attach}, devices, {"kinds": usable(devices)})

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        exporter, importer = (done.records[role] for role in ("exporter", "importer"))
        if alone := {*exporter["alone"], *importer["alone"]}:
            yield wrong_alone(done, alone)
            return
        wrong = exporter["wrong"] + importer["wrong"]
        for key, says in FAULTS.items():
            if lines := [text for fault, text in wrong if fault == key]:
                yield Finding.fail(key, says, *lines)
        if wrong:
            return
        if reason := exporter["unavailable"] or importer["unavailable"]:
            says = "the driver does not run kernels of this check: {reason}"
            yield Finding.skip("no-kernels", says, reason=reason)
            return
        if not importer["atomics"]:
            says = "no additions between these GPUs: the driver states that their link has no native atomics"
            yield Finding.skip("no-native-atomics", says)
        says = "{elements} elements read and written by kernels of both sides through {kinds}"
        kinds = ", ".join(KINDS[kind] for kind in done.params["kinds"])
        flags = [exporter["flags"][place] + importer["flags"][place] for place in (0, 1)]
        yield Finding.ok("right", says, *evidence(*flags), elements=COUNT, kinds=kinds)


def wrong_alone(done: ProbeOutcome, alone: set[str]) -> Finding:
    """The finding if kernels of these sides were wrong in memory of their process.

    It blames a GPU only if the same kernels were right on another one.
    """
    lines = [text for role in ("exporter", "importer") for _, text in done.records[role]["wrong"]]
    on = dict(zip(("exporter", "importer"), done.devices * 2, strict=False))
    wrong = {on[name].label for name in alone}
    if right := [device.label for device in done.devices if device.label not in wrong]:
        says = "kernels on {device} read wrong data in memory of their own process, without IPC"
        control = Evidence.seen("control: the same kernels are right on {right}", right=right)
        return Finding.fail("wrong-alone", says, *lines, control, device=wrong.pop())
    return Finding.error(
        "wrong-alone",
        "the check's kernels are wrong on {devices} also without IPC: a fault of theirs, of the compiler or "
        "of the GPU",
        *lines,
        remedy="run the check on another GPU of this kind; if it is right there, this GPU is faulty",
        devices=sorted(wrong),
    )


def evidence(running: int, later: int) -> Iterable[Evidence]:
    says = "flags seen: {running} by a kernel that was waiting, {later} by a later one"
    yield Evidence.measured(says, running=running, later=later)


def usable(devices: tuple[Device, ...]) -> list[str]:
    """The kinds of mapping that these devices have."""
    return [
        kind
        for kind in KINDS
        if (len(devices) > 1 or kind != PEER)
        and all(SHARED_BY.get(kind, frozenset()) <= device.capabilities for device in devices)
    ]


# -- the roles --------------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    found = Found()
    side = ready(w, w.gpu, "exporter", found)
    if agreed(w, found) and side:
        for kind in w.params["kinds"]:
            if kind != PEER:
                with (
                    w.step(f"through {KINDS[kind]}"),
                    offer_memory(w, kind, NBYTES, coherent=True) as memory,
                ):
                    meet(w, turns_of_exporter(side.at(memory, kind, atomics=w.peer.recv())))
                    w.peer.recv()  # the importer has closed its mapping
        side.end()
    w.record(**found.record())


def attach(w: Worker) -> None:
    found, atomics = Found(), True
    side = ready(w, w.gpu, "importer", found)
    if agreed(w, found) and side:
        atomics = len(w.gpus) == 1 or w.gpu.has_native_atomics(w.gpus[0])
        for kind in w.params["kinds"]:
            with w.step(f"through {KINDS[kind]}"):
                if kind == PEER:
                    use_peer_access(w, side, found, atomics=atomics)
                    continue
                with open_offered(w, kind, NBYTES) as memory:
                    w.peer.send(atomics)
                    meet(w, turns_of_importer(side.at(memory, kind, atomics=atomics)))
                w.peer.send("closed")
        side.end()
    w.record(**found.record(), atomics=atomics)


def agreed(w: Worker, found: Found) -> bool:
    """Whether the kernels of both processes work."""
    w.peer.send(found.works)
    return bool(w.peer.recv()) and found.works


def meet(w: Worker, turns: Iterator[None]) -> None:
    """Take the turns of a side; between two of them, both processes wait for each other."""
    for _ in turns:
        w.peer.send(None)
        w.peer.recv()


def use_peer_access(w: Worker, importer: Side, found: Found, *, atomics: bool) -> None:
    """Take the turns of both sides in this process, with kernels on both GPUs."""
    other, before = w.gpus[0], len(found.wrong)
    exporter = ready(w, other, "exporter", found)
    if exporter and len(found.wrong) == before:
        with w.gpu.peer_access(other), other.alloc_coherent(NBYTES) as memory:
            sides = [side.at(memory, PEER, atomics=atomics) for side in (exporter, importer)]
            for _ in zip_longest(turns_of_exporter(sides[0]), turns_of_importer(sides[1])):
                pass
        exporter.end()


# -- a side: a GPU, its kernels, and the memory that both sides use ----------------------------------------


@dataclass
class Found:
    """What a process found."""

    unavailable: str = ""
    """Why its kernels cannot run."""
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """(key of `FAULTS`, or `ALONE`; observation)."""
    alone: set[str] = field(default_factory=set)
    """The sides whose kernels were wrong in memory of their own process."""
    flags: list[int] = field(default_factory=lambda: [0, 0])
    """Number of flags seen by a kernel that was waiting, and by a later one."""

    @property
    def works(self) -> bool:
        return not (self.unavailable or self.wrong)

    def record(self) -> dict[str, Json]:
        return {
            "unavailable": self.unavailable,
            "wrong": self.wrong,
            "alone": sorted(self.alone),
            "flags": self.flags,
        }


class Side:
    """A GPU and its kernels, at work in the memory that both sides use.

    ``name``: ``exporter`` or ``importer``. ``results``: memory of this side alone.
    """

    def __init__(
        self, w: Worker, gpu: Gpu, name: str, found: Found, kernels: Kernels, results: Buffer
    ) -> None:
        self.w, self.gpu, self.name, self.found = w, gpu, name, found
        self.kernels, self.results, self.stream = kernels, results, gpu.create_stream()
        self.memory: Memory = results
        self.through, self.at_once, self.atomics = "", True, True

    def at(self, memory: Memory, kind: str, *, atomics: bool = True) -> Side:
        """This side, in this memory. ``atomics``: whether both sides can add."""
        self.memory, self.atomics = memory, atomics
        self.through = KINDS[kind] if kind else "memory of its own"
        self.at_once = self.gpu.plain_memory_is_coherent or kind in (BY_HANDLE, PEER)
        return self

    def fill(self, data: Linear) -> None:
        self.kernels.fill(self.stream, self.memory.address, COUNT, data)

    def add(self) -> None:
        self.kernels.add(self.stream, self.memory.address, COUNT, UNITS[self.name], ADDITIONS)

    def store(self, setter: str, number: int) -> None:
        self.kernels.store(self.stream, self.memory.address + FLAGS[setter], number)

    def compare(self, data: Linear, before: Linear) -> None:
        """Queue a comparison, for `report`."""
        result = self.results.address + RESULT
        self.kernels.compare(self.stream, self.memory.address, COUNT, result, data, before)

    def wait(self, setter: str, number: int, data: Linear, before: Linear) -> None:
        """Queue a kernel that waits for the flag, and behind it a comparison."""
        self.clear_results()
        flag = self.memory.address + FLAGS[setter]
        self.kernels.wait(self.stream, flag, number, LOADS, self.results.address)
        self.compare(data, before)

    def done(self) -> None:
        self.stream.synchronize()

    def runs_on(self) -> bool:
        """Whether queued kernels are still busy after `GRACE_S`."""
        end = self.w.clock() + GRACE_S
        while self.stream.is_busy():
            if self.w.clock() > end:
                return True
        return False

    def has_seen(self, *, was_waiting: bool) -> bool:
        """Whether the kernel that waited saw the flag."""
        self.done()
        seen = self.numbers()[0] == 1
        self.found.flags[0 if was_waiting else 1] += seen
        return seen

    def clear_results(self) -> None:
        self.results.write(bytes(RESULT + 8) + b"\xff" * 8 + bytes(8))

    def numbers(self) -> list[int]:
        """The results: of a wait, and three of a comparison."""
        data = self.results.read(RESULT + 24)
        return [int.from_bytes(data[place : place + 8], "little") for place in range(0, len(data), 8)]

    def check(self, key: str, data: Linear, before: Linear) -> None:
        """Compare the memory with ``data``; a difference is a fault with this ``key``."""
        self.clear_results()
        self.compare(data, before)
        self.done()
        self.report(key, data)

    def report(self, key: str, data: Linear) -> None:
        """Report the differences that the latest comparison found."""
        _, number, least, earlier = self.numbers()
        if not number:
            return
        place, value = least >> 32, least & MASK
        right = (data[0] * place + data[1]) & MASK
        says = f"{number} of {COUNT} elements wrong, first element {place}: "
        says += f"{value:#010x} instead of {right:#010x}"
        if earlier:
            says += f"; {'all' if earlier == number else earlier} of them hold earlier data"
        if key == "adds-lost":
            says += additions_lost((right - value) & MASK)
        self.fault(key, f"{says}; a copy shows {self.copied(4 * place):#010x} there")

    def copied(self, offset: int) -> int:
        """An element as a copy to the host shows it."""
        return int.from_bytes(self.memory.read(4, offset), "little")

    def fault(self, key: str, says: str) -> None:
        if key == ALONE:
            self.found.alone.add(self.name)
        self.found.wrong.append((key, f"{self.through}, the {self.name}'s kernel: {says}"))

    def end(self) -> None:
        self.kernels.unload()
        self.results.free()


def additions_lost(missing: int) -> str:
    """Whose additions are missing from a sum, in words; empty if additions do not explain the difference."""
    lost = {name: missing // unit % UNITS["importer"] for name, unit in UNITS.items()}
    if max(lost.values()) > ADDITIONS:
        return ""
    return "; lost: " + ", ".join(
        f"{number} of the {name}'s {ADDITIONS} additions" for name, number in lost.items()
    )


def ready(w: Worker, gpu: Gpu, name: str, found: Found) -> Side | None:
    """Load the kernels on a GPU and verify them in memory of this process alone; None if they cannot run."""
    results = gpu.alloc(RESULT + 24)
    try:
        with w.step("kernels in memory of the process itself"):
            side = Side(w, gpu, name, found, gpu.load_kernels(), results)
            with gpu.alloc(NBYTES) as memory:
                verify_alone(side.at(memory, ""))
    except KernelsUnavailable as unavailable:
        found.unavailable = str(unavailable)
        results.free()
        return None
    return side


def verify_alone(side: Side) -> None:
    """Run each kernel once, so that none is loaded while another one waits."""
    side.fill(data_of(1))
    side.check(ALONE, data_of(1), data_of(0))
    side.add()
    side.check(ALONE, after_additions(data_of(1), UNITS[side.name]), data_of(1))
    side.store(side.name, 1)
    side.wait(side.name, 1, after_additions(data_of(1), UNITS[side.name]), data_of(1))
    side.done()
    if side.numbers()[0] != 1:
        side.fault(ALONE, "a flag that it stored itself was not seen")


# -- the turns; at `yield`, both sides wait for each other ---------------------------------------------------


def data_of(turn: int) -> Linear:
    """Data that differs by element and by turn."""
    return 2 * turn + 1, 0x01000193 * turn & MASK


def after_additions(data: Linear, *units: int) -> Linear:
    return data[0], data[1] + ADDITIONS * sum(units) & MASK


def turns_of_exporter(side: Side) -> Iterator[None]:
    for setter in FLAGS:
        side.store(setter, 0)
    side.fill(data_of(1))
    side.done()
    yield
    yield  # the importer has read, and written 2
    side.check("wrong-write", data_of(2), data_of(1))
    side.fill(data_of(3))
    side.done()
    yield
    yield  # the importer has read
    present = data_of(3)
    if side.atomics:
        side.add()
        if not side.at_once:
            side.done()
        yield
        side.done()
        yield  # the importer has also added
        present = after_additions(present, *UNITS.values())
        side.check("adds-lost", present, data_of(3))
        yield
    yield from flags(side, present)


def turns_of_importer(side: Side) -> Iterator[None]:
    yield  # the exporter has written 1
    side.check("wrong-read", data_of(1), data_of(0))
    side.fill(data_of(2))
    side.done()
    yield
    yield  # the exporter has read, and written 3
    side.check("wrong-read", data_of(3), data_of(1))
    yield
    present = data_of(3)
    if side.atomics:
        if side.at_once:
            side.add()
        yield
        if not side.at_once:
            side.add()
        side.done()
        yield
        yield  # the exporter has read the sums
        present = after_additions(present, *UNITS.values())
    yield from flags(side, present)


def flags(side: Side, present: Linear) -> Iterator[None]:
    """Each side in turn writes data and then a flag, for which the other side's kernel waits."""
    for turn, setter in enumerate(FLAGS, 4):
        if side.name == setter:
            yield  # the other side's kernel waits
            side.fill(data_of(turn))
            side.store(setter, turn)
            side.done()
            yield
        else:
            if side.at_once:
                side.wait(setter, turn, data_of(turn), present)
            yield
            yield  # the flag is stored
            look_for_flag(side, setter, turn, present)
        yield
        present = data_of(turn)


def look_for_flag(side: Side, setter: str, turn: int, present: Linear) -> None:
    """Conclude from a wait for a flag that is now stored; repeat it if it ended, or did not begin, before."""
    is_late = side.at_once and side.runs_on()
    seen = side.at_once and side.has_seen(was_waiting=True)
    if not seen:
        side.wait(setter, turn, data_of(turn), present)
        seen = side.has_seen(was_waiting=False)
        says = (
            f"the {setter}'s flag is stored, a copy shows {side.copied(FLAGS[setter])}, it should be {turn}"
        )
        if not seen:
            side.fault("flag-unseen", f"{says}; {LOADS} loads did not show it")
        elif is_late:
            side.fault(
                "flag-late", f"{says}; it ran on for {GRACE_S:g} s and did not see it, a later kernel did"
            )
    if seen:
        side.report("data-after-flag", data_of(turn))


CHECK = IpcKernels()
