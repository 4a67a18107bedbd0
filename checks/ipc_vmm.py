"""Share physical memory by descriptor, as NCCL, UCX and PyTorch do: `cuMemCreate`, export, import, map.

A descriptor is sent to the other process in a message (``SCM_RIGHTS``) or fetched by that process
(``pidfd_getfd``). A container may refuse one of these, although the driver supports sharing. All segments of
one size are imported before the first is read, so that swapped descriptors are noticed. They are unmapped one
by one while data is exchanged through the others.

In further cases, either process re-creates its context, after which IPC handles fail on some drivers; the
exporter releases everything; the exporter is killed; the importer is killed. If memory is missing after the
last case, a spare importer is also killed. Leaks over many imports are tested by `ipc-vmm-release`.

One process also maps, copies and unmaps memory many times without a pause: addresses are then reserved again
while the driver's own thread is still busy with the last copy.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from gpuipc_doctor.api import (
    ODD_BYTES,
    Check,
    Context,
    Finding,
    Json,
    Ledger,
    Peer,
    PhysicalMemory,
    Probe,
    ProbeOutcome,
    VmmMapping,
    Worker,
    account,
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    write_pattern,
    wrong_pattern,
)

NBYTES = 20 << 20
"""Bytes of each segment, before rounding up to the device's granularity."""

HARMS = frozenset({"kills an importer"})
"""`Probe.harms` of the probes that kill an importer or exporter, after which device memory may be lost."""

ENDS = {
    "exporter gone": frozenset({"exporter"}),
    "importer gone": frozenset({"importer", "spare importer"}),
}
"""`Probe.ends` of the probes that end a process."""

ROUTES = ("SCM_RIGHTS", "pidfd_getfd", "SCM_RIGHTS")
"""How the descriptor of each segment is passed."""
OLD = "Linux 5.6 has it; on a newer kernel, update the container's runtime, whose filter does not know it"
FORBIDDEN = "allow it in the container's seccomp profile, or set kernel.yama.ptrace_scope to 0"
REMAPPINGS = 640
"""Number of mappings without a pause. With 160, faulty ROCm 6.4.3 passed some runs."""

REMAPPED = 16 << 10
"""Bytes written and read in each of the `REMAPPINGS`, with one copy each way."""

CASES = ("with both contexts kept", "in the importer's new context", "from the exporter's new context")


class IpcVmm(Check):
    id = "ipc-vmm"
    title = "imported VMM memory is correct and outlives its exporter"
    requires = frozenset({"vmm-ipc", "multi-process", "contexts"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for name, (roles, _) in PROCEDURES.items():
            ends = ENDS.get(name, frozenset())
            harms, exclusive = HARMS if ends else frozenset(), name == "importer gone"
            fresh = "context" if name == "contexts" else ""
            alone = [(device,) for device in ctx.devices]
            for devices in ctx.exporters if ends else ctx.subjects if len(roles) > 1 else alone:
                yield Probe(name, roles, devices, harms=harms, exclusive=exclusive, fresh=fresh, ends=ends)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        _, judge = PROCEDURES[done.probe]
        yield from judge(done)


# -- data, by each route ----------------------------------------------------------------------------------


def export(w: Worker) -> None:
    nbytes = round_up(NBYTES, w.gpu.granule)
    memories = [w.gpu.create_physical(nbytes) for _ in ROUTES]
    mappings = [memory.map() for memory in memories]
    for n, mapping in enumerate(mappings):
        write_pattern(mapping, nbytes, n)
    w.peer.send(nbytes)
    arrived = []
    for memory in memories:
        descriptor = memory.export_descriptor()
        arrived.append(w.peer.send_descriptor(descriptor))
        os.close(descriptor)
        w.peer.recv()  # importing while another exports is tested by `ipc-concurrent`
    exchanged = []
    for n in filter(arrived.__getitem__, closing_order(len(ROUTES))):
        exchanged += exchange_as_exporter(w, mappings[n], nbytes, segment(n))
    w.record(exchanged=exchanged)
    w.peer.recv()  # the importer has unmapped
    for mapping, memory in zip(mappings, memories, strict=True):
        mapping.unmap()
        memory.release()


def attach(w: Worker) -> None:
    nbytes, refused = w.peer.recv(), ""
    wrong, exchanged = [], []
    imports: dict[int, tuple[PhysicalMemory, VmmMapping]] = {}
    for n, route in enumerate(ROUTES):
        try:
            descriptor = w.peer.fetch_descriptor() if route == "pidfd_getfd" else w.peer.recv_descriptor()
        except OSError as error:
            refused = error.strerror or str(error)
        else:
            with w.step(f"import {segment(n)}"):
                memory = w.gpu.import_descriptor(descriptor, nbytes)
                imports[n] = memory, memory.map()
            os.close(descriptor)
        w.peer.send("imported or refused")
    for n, (_, mapping) in imports.items():
        wrong += wrong_pattern(segment(n), mapping, nbytes, n)
    for n in filter(imports.__contains__, closing_order(len(ROUTES))):
        memory, mapping = imports[n]
        with w.step(f"exchange data in {segment(n)}, with some of the others unmapped"):
            exchanged += exchange_as_importer(w, mapping, nbytes, segment(n))
            mapping.unmap()
            memory.release()
    w.record(wrong=wrong, exchanged=exchanged, refused=refused, verified=nbytes * len(imports))
    w.peer.send("unmapped")


def segment(n: int) -> str:
    return f"segment {n + 1}, by {ROUTES[n]}"


def round_up(nbytes: int, granule: int) -> int:
    return -(-nbytes // granule) * granule


@contextmanager
def imported(w: Worker, step: str, descriptor: int, nbytes: int) -> Iterator[VmmMapping]:
    with w.step(step), w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
        yield mapping


def judge_data(done: ProbeOutcome) -> Iterable[Finding]:
    importer = done.records["importer"]
    bad = [*judge_wrong(importer), *judge_exchange(done)]
    yield from bad
    if importer["refused"]:
        yield Finding.warn(
            "pidfd-refused",
            "this environment refuses pidfd_getfd ({reason}); sharing by SCM_RIGHTS works",
            remedy="UCX and PyTorch's expandable segments need pidfd_getfd: "
            + (OLD if importer["refused"] == os.strerror(errno.ENOSYS) else FORBIDDEN),
            reason=importer["refused"],
        )
    elif not bad:
        says = "{nbytes:mib} verified in both directions, with descriptors from SCM_RIGHTS and pidfd_getfd"
        yield Finding.ok("right", says, nbytes=importer["verified"])


def judge_wrong(record: Mapping[str, Json]) -> Iterable[Finding]:
    if wrong := record["wrong"]:
        yield Finding.fail("wrong-data", "an imported descriptor shows wrong data", *wrong)


# -- addresses that are used again ------------------------------------------------------------------------


def remap(w: Worker) -> None:
    nbytes, wrong = min(w.gpu.granule, REMAPPED), list[str]()
    for number in range(1, REMAPPINGS + 1):
        step = w.step(f"mapping {number} of {REMAPPINGS}")
        with step, w.gpu.create_physical(w.gpu.granule) as memory, memory.map() as mapping:
            write_pattern(mapping, nbytes, number)
            wrong += wrong_pattern(f"mapping {number}", mapping, nbytes, number)
    w.record(wrong=wrong)


def judge_remapped(done: ProbeOutcome) -> Iterable[Finding]:
    if wrong := done.records["allocator"]["wrong"]:
        says = "memory shows wrong data if its addresses were unmapped just before"
        yield Finding.fail("wrong-after-unmap", says, *wrong[:3], times=len(wrong))
    else:
        yield Finding.ok("remaps", "memory mapped, copied and unmapped {times} times", times=REMAPPINGS)


# -- contexts that end ------------------------------------------------------------------------------------


def export_anew(w: Worker) -> None:
    context = w.gpu.create_context()
    with w.gpu.create_physical(w.gpu.granule) as memory, memory.map() as mapping:
        write_pattern(mapping, memory.nbytes)
        w.peer.send(memory.nbytes)
        for case in CASES:
            if "exporter's" in case:
                context.destroy()
                context = w.gpu.create_context()
            with w.step(f"export {case}"):
                descriptor = memory.export_descriptor()
            w.peer.send_descriptor(descriptor)
            os.close(descriptor)
        w.peer.recv()  # the importer has read it


def attach_anew(w: Worker) -> None:
    context, nbytes, wrong = w.gpu.create_context(), w.peer.recv(), []
    for case in CASES:
        if "importer's" in case:
            context.destroy()
            context = w.gpu.create_context()
        descriptor = w.peer.recv_descriptor()
        with imported(w, f"import {case}", descriptor, nbytes) as mapping:
            wrong += wrong_pattern(case, mapping, nbytes)
        os.close(descriptor)
    w.record(wrong=wrong)
    w.peer.send("looked")


def judge_contexts(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done.records["importer"]))
    says = "import works again after either end re-created its context"
    yield from bad or [Finding.ok("imports-again", says)]


# -- an exporter that is gone -----------------------------------------------------------------------------


def export_and_die(w: Worker) -> None:
    with w.gpu.create_physical(w.gpu.granule) as memory, memory.map() as mapping:
        write_pattern(mapping, memory.nbytes)
        share(w.peer, memory)
    w.peer.send("released")
    w.peer.recv()  # the importer has it mapped
    w.die()


def share(importer: Peer, memory: PhysicalMemory) -> None:
    """Send an importer the size of the memory and a descriptor, then close the descriptor here."""
    importer.send(memory.nbytes)
    descriptor = memory.export_descriptor()
    importer.send_descriptor(descriptor)
    os.close(descriptor)


def outlive(w: Worker) -> None:
    nbytes, descriptor, wrong = w.peer.recv(), w.peer.recv_descriptor(), []
    w.peer.recv()  # the exporter has released everything
    with w.step("import what the exporter released"):
        memory = w.gpu.import_descriptor(descriptor, nbytes)
        mapping = memory.map()
    wrong += wrong_pattern("memory released by the exporter", mapping, nbytes)
    w.peer.send("mapped")
    w.peer.wait_gone()
    wrong += wrong_pattern("memory mapped when the exporter was killed", mapping, nbytes)
    mapping.unmap()
    memory.release()
    with imported(w, "import after the exporter was killed", descriptor, nbytes) as mapping:
        wrong += wrong_pattern("memory imported afterwards", mapping, nbytes)
    os.close(descriptor)
    w.record(wrong=wrong)


def judge_gone(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done.records["importer"]))
    says = "memory outlived its exporter while a descriptor was open"
    yield from bad or [Finding.ok("outlives", says)]


# -- an importer that is gone -----------------------------------------------------------------------------


def share_and_watch(w: Worker) -> None:
    ledger, (importer, spare) = Ledger(w), w.peers
    nbytes, lost = round_up(ODD_BYTES, w.gpu.granule), list[str]()

    def lose(importer: Peer) -> None:
        with w.gpu.create_physical(nbytes) as memory, memory.map() as mapping:
            share(importer, memory)
            importer.wait_gone()
            lost.extend(wrong_pattern("data written by the killed importer", mapping, nbytes))

    before = ledger.mark()
    lose(importer)
    if not ledger.enter("the importer was killed with it mapped", before, lambda: lose(spare)):
        spare.send(None)
    w.record(wrong=lost, nbytes=nbytes)


def write_and_die(w: Worker) -> None:
    if nbytes := w.peer.recv():
        gpu = w.gpus[-1]  # before the descriptor: the driver may start a child, which would inherit it
        descriptor = w.peer.recv_descriptor()
        with w.step("import and write"):
            write_pattern(gpu.import_descriptor(descriptor, nbytes).map(), nbytes)
        w.die()


def judge_killed(done: ProbeOutcome) -> Iterable[Finding]:
    exporter = done.records["exporter"]
    bad, watched = list(judge_wrong(exporter)), account(exporter)
    bad += watched.judge(exporter["nbytes"])
    says = "memory was released after its importer was killed"
    yield from bad or [Finding.ok("returned", says, *watched.evidence())]


PROCEDURES = {
    "data": ({"exporter": export, "importer": attach}, judge_data),
    "mapped many times": ({"allocator": remap}, judge_remapped),
    "contexts": ({"exporter": export_anew, "importer": attach_anew}, judge_contexts),
    "exporter gone": ({"exporter": export_and_die, "importer": outlive}, judge_gone),
    "importer gone": (
        {"exporter": share_and_watch, "importer": write_and_die, "spare importer": write_and_die},
        judge_killed,
    ),
}

CHECK = IpcVmm()
