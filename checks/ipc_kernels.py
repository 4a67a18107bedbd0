"""Let kernels of two processes read, write and add to the same memory, and wait for each other's flags.

Other checks move data by the driver's copies. Applications load, store and add from kernels, and the
custom all-reduces of NCCL, NVSHMEM and inference engines rely on flags between kernels of two processes.
The exporter's and the importer's kernels use the exporter's memory, the importer's through a mapping: an
IPC handle, a descriptor of VMM memory, a pointer of a pool. On a pair of GPUs, the importer's process
also uses memory of both GPUs by peer access, without IPC. In each case:

- each kernel reads what the other's kernel wrote, up to the last element;
- both add to the same elements, and many times to one of them, at the same time, atomically for the whole
  system, and no addition is lost;
- one kernel writes data and then a flag (release at system scope), while a kernel of the other process
  waits for the flag (acquire at system scope) and then reads the data; then the other way round.

Kernels of full blocks, in the default stream, then do the last with 16 MiB (in soak 260 MiB), whose flags
stay in the first segment.

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
were assembled for NVIDIA's GPUs from Pascal to Blackwell and ran on up to four H200s; those for AMD's were
only compiled. The simulated drivers play them by name; they show neither the order of loads and stores nor
caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from gpuipc_doctor.api import Check, Context, Device, Evidence, Finding, Probe, ProbeOutcome, Tier, Worker
from gpuipc_doctor.api.gpu import Linear
from gpuipc_doctor.api.offered_memory import SHARED_BY, offer_memory, open_offered

from ._ipc_kernels_alone import judge_alone, load_side
from ._ipc_kernels_side import (
    COUNT,
    FLAGS,
    GRACE_S,
    KINDS,
    LARGE_COUNT,
    LARGE_DATA,
    LOADS,
    NBYTES,
    PEER,
    SOAK_COUNT,
    UNITS,
    Found,
    Side,
    add_units,
    make_data,
)

PROCESSES = 2
"""Each has large memory of its own, before it is shared."""

FAULTS = {
    "wrong-read": "the importer's kernel reads wrong data through a mapping",
    "wrong-write": "the exporter's kernel reads wrong data after the importer's kernel wrote to a mapping",
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
            fits = ctx.tier is Tier.SOAK and ctx.room(devices) >= PROCESSES * 4 * SOAK_COUNT
            params = {"kinds": list_kinds(devices), "large": SOAK_COUNT if fits else LARGE_COUNT}
            yield Probe("", {"exporter": export, "importer": attach}, devices, params)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if alone := list(judge_alone(done)):
            yield from alone
            return
        exporter, importer = (done.records[role] for role in ("exporter", "importer"))
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
        running, later = map(sum, zip(exporter["flags"], importer["flags"], strict=True))
        seen = "flags seen: {running} by a kernel that was waiting, {later} by a later one"
        yield Finding.ok(
            "right",
            "{elements} elements read and written by kernels of both sides through {kinds}",
            Evidence.measured(seen, running=running, later=later),
            elements=COUNT,
            kinds=", ".join(KINDS[kind] for kind in done.params["kinds"]),
        )


def list_kinds(devices: tuple[Device, ...]) -> list[str]:
    """The kinds of mapping that these devices have."""
    common = frozenset[str].intersection(*(device.capabilities for device in devices))
    kinds = [kind for kind, needed in SHARED_BY.items() if needed <= common]
    return [*kinds, PEER] if len(devices) > 1 else kinds


# -- the roles --------------------------------------------------------------------------------------------


def export(w: Worker) -> None:
    found = Found()
    side = load_side(w, w.gpu, "exporter", found)
    if agree(w, found) and side:
        for kind in w.params["kinds"]:
            if kind == PEER:
                continue
            step = w.step(f"through {KINDS[kind]}")
            with step, offer_memory(w, kind, NBYTES, coherent=True) as memory:
                meet(w, take_exporter_turns(side.move_to(memory, kind, atomics=w.peer.recv())))
                with offer_memory(w, kind, 4 * w.params["large"], side.fill_large, coherent=True):
                    meet(w, take_flag_turns(side, LARGE_DATA, 6))
                    w.peer.recv()  # the importer has closed its mapping
                w.peer.recv()  # the importer has closed its mapping
        side.end()
    w.record(**found.record())


def attach(w: Worker) -> None:
    found, atomics = Found(), True
    side = load_side(w, w.gpu, "importer", found)
    if agree(w, found) and side:
        atomics = len(w.gpus) == 1 or w.gpu.has_native_atomics(w.gpus[0])
        for kind in w.params["kinds"]:
            with w.step(f"through {KINDS[kind]}"):
                if kind == PEER:
                    use_peer_access(w, side, found, atomics=atomics)
                    continue
                with open_offered(w, kind, NBYTES) as memory:
                    w.peer.send(atomics)
                    meet(w, take_importer_turns(side.move_to(memory, kind, atomics=atomics)))
                    with open_offered(w, kind, 4 * w.params["large"]) as large:
                        side.move_data_to(large).check("wrong-read", LARGE_DATA, make_data(0))
                        meet(w, take_flag_turns(side, LARGE_DATA, 6))
                    w.peer.send("closed")
                w.peer.send("closed")
        side.end()
    w.record(**found.record(), atomics=atomics)


def agree(w: Worker, found: Found) -> bool:
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
    exporter = load_side(w, other, "exporter", found)
    if exporter and len(found.wrong) == before:
        with w.gpu.peer_access(other), other.alloc_coherent(NBYTES) as memory:
            sides = [side.move_to(memory, PEER, atomics=atomics) for side in (exporter, importer)]
            for _ in zip_longest(take_exporter_turns(sides[0]), take_importer_turns(sides[1])):
                pass
        exporter.end()


# -- the turns; at `yield`, both sides wait for each other ---------------------------------------------------


def take_exporter_turns(side: Side) -> Iterator[None]:
    side.clear()
    side.fill(make_data(1))
    side.finish()
    yield
    yield  # the importer has read, and written 2
    side.check("wrong-write", make_data(2), make_data(1))
    side.fill(make_data(3))
    side.finish()
    yield
    yield  # the importer has read
    present = make_data(3)
    if side.atomics:
        side.add()
        if not side.at_once:
            side.finish()
        yield
        side.finish()
        yield  # the importer has also added
        present = add_units(present, *UNITS.values())
        side.check("adds-lost", present, make_data(3))
        side.check_counter("adds-lost", *FLAGS)
        yield
    yield from take_flag_turns(side, present)


def take_importer_turns(side: Side) -> Iterator[None]:
    yield  # the exporter has written 1
    side.check("wrong-read", make_data(1), make_data(0))
    side.fill(make_data(2))
    side.finish()
    yield
    yield  # the exporter has read, and written 3
    side.check("wrong-read", make_data(3), make_data(1))
    yield
    present = make_data(3)
    if side.atomics:
        if side.at_once:
            side.add()
        yield
        if not side.at_once:
            side.add()
        side.finish()
        yield
        yield  # the exporter has read the sums
        present = add_units(present, *UNITS.values())
    yield from take_flag_turns(side, present)


def take_flag_turns(side: Side, present: Linear, first: int = 4) -> Iterator[None]:
    """Each side in turn writes data and then a flag, for which the other side's kernel waits."""
    for turn, setter in enumerate(FLAGS, first):
        if side.name == setter:
            yield  # the other side's kernel waits
            side.fill(make_data(turn))
            side.store(setter, turn)
            side.finish()
            yield
        else:
            if side.at_once:
                side.wait(setter, turn, make_data(turn), present)
            yield
            yield  # the flag is stored
            look_for_flag(side, setter, turn, present)
        yield
        present = make_data(turn)


def look_for_flag(side: Side, setter: str, turn: int, present: Linear) -> None:
    """Conclude from a wait for a flag that is now stored; repeat it if it ended, or did not begin, before."""
    is_late = side.at_once and side.runs_on()
    seen = side.at_once and side.has_seen(was_waiting=True)
    if not seen:
        side.wait(setter, turn, make_data(turn), present)
        seen = side.has_seen(was_waiting=False)
        copied = side.read_copy(FLAGS[setter])
        says = f"the {setter}'s flag is stored, a copy shows {copied}, it should be {turn}"
        if not seen:
            side.fault("flag-unseen", f"{says}; {LOADS} loads did not show it")
        elif is_late:
            late = f"it ran on for {GRACE_S:g} s and did not see it, a later kernel did"
            side.fault("flag-late", f"{says}; {late}")
    if seen:
        side.report("data-after-flag", make_data(turn))


CHECK = IpcKernels()
