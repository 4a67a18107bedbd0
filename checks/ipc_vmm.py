"""Share physical memory by descriptor, as NCCL, UCX and PyTorch do: `cuMemCreate`, export, import, map.

A descriptor goes to the other process in a message (``SCM_RIGHTS``) or is fetched by it (``pidfd_getfd``),
which an environment may refuse where a driver would not mind. Two segments of one size are exported before
the first is imported, so that a wrong one shows. Then the ends of things: a context that is made anew,
which legacy handles did not survive on some drivers, with the control of contexts that are kept; an
exporter that gave everything back, and one that was killed. What a loop leaves behind is
`ipc-vmm-release`'s question.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    Probe,
    ProbeOutcome,
    VmmMapping,
    Worker,
    differences,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    pattern,
)

NBYTES = 4 << 20
"""A multiple of every known device's granule."""

GLANCE = 64 << 10
"""Bytes that are written and read again where only which memory it is matters."""

HARMS = frozenset({"kills an importer"})
"""Or an exporter: where the memory of killed processes does not come back, it is the same."""

ROUTES = ("SCM_RIGHTS", "pidfd_getfd")
CASES = ("with both contexts kept", "in the importer's new context", "from the exporter's new context")


class IpcVmm(Check):
    id = "ipc-vmm"
    title = "memory shared by descriptor is right and outlives its owner"
    requires = frozenset({"vmm-ipc", "multi-process", "contexts"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            for name, (export, attach) in PROCEDURES.items():
                harms = HARMS if name == "exporter gone" else frozenset()
                yield Probe(name, {"exporter": export, "importer": attach}, devices, harms=harms)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield from JUDGES[done.probe](done)


# -- data, by each route ----------------------------------------------------------------------------------


def export(w: Worker) -> None:
    memories = [w.gpu.create_physical(NBYTES) for _ in ROUTES]
    mappings = [memory.map() for memory in memories]
    exchanged = []
    for n, mapping in enumerate(mappings):
        mapping.write(pattern(NBYTES, n))
    for memory, mapping, route in zip(memories, mappings, ROUTES, strict=True):
        descriptor = memory.export_descriptor()
        if w.peer.send_descriptor(descriptor):
            exchanged += exchange_as_exporter(w, mapping, NBYTES, route)
        os.close(descriptor)
    w.record(exchanged=exchanged)
    w.peer.recv()  # the importer has unmapped
    for mapping, memory in zip(mappings, memories, strict=True):
        mapping.unmap()
        memory.release()


def attach(w: Worker) -> None:
    wrong, exchanged, refused = [], [], ""
    for n, route in enumerate(ROUTES):
        try:
            descriptor = w.peer.fetch_descriptor() if route == "pidfd_getfd" else w.peer.recv_descriptor()
        except OSError as error:
            refused = error.strerror or str(error)
            continue
        with imported(w, f"import what came by {route}", descriptor) as mapping:
            wrong += differences(route, mapping.read(), pattern(NBYTES, n))
            exchanged += exchange_as_importer(w, mapping, NBYTES, route)
        os.close(descriptor)
    w.record(wrong=wrong, exchanged=exchanged, refused=refused)
    w.peer.send("unmapped")


@contextmanager
def imported(w: Worker, step: str, descriptor: int) -> Iterator[VmmMapping]:
    with w.step(step), w.gpu.import_descriptor(descriptor, NBYTES) as memory, memory.map() as mapping:
        yield mapping


def judge_data(done: ProbeOutcome) -> Iterable[Finding]:
    importer = done.records["importer"]
    bad = [*judge_wrong(done), *judge_exchange(done)]
    yield from bad
    if importer["refused"]:
        yield Finding.warn(
            "pidfd-refused",
            "this environment refuses pidfd_getfd ({reason}); by SCM_RIGHTS memory is shared all the same",
            remedy="UCX and PyTorch's expandable segments need it: allow it in the container's seccomp "
            "profile, or set kernel.yama.ptrace_scope to 0",
            reason=importer["refused"],
        )
    elif not bad:
        yield Finding.ok("right", "{nbytes:mib} right both ways, and again, by each route", nbytes=NBYTES)


def judge_wrong(done: ProbeOutcome) -> Iterable[Finding]:
    if wrong := done.records["importer"]["wrong"]:
        yield Finding.fail("wrong-data", "an imported descriptor shows wrong data", *wrong)


# -- contexts that end ------------------------------------------------------------------------------------


def export_anew(w: Worker) -> None:
    context = w.gpu.create_context()
    with w.gpu.create_physical(NBYTES) as memory, memory.map() as mapping:
        mapping.write(pattern(GLANCE))
        for case in CASES:
            if "exporter's" in case:
                context.destroy()
                context = w.gpu.create_context()
            with w.step(f"export {case}"):
                descriptor = memory.export_descriptor()
            w.peer.send_descriptor(descriptor)
            os.close(descriptor)
        w.peer.recv()  # the importer has looked


def attach_anew(w: Worker) -> None:
    context, wrong = w.gpu.create_context(), []
    for case in CASES:
        if "importer's" in case:
            context.destroy()
            context = w.gpu.create_context()
        descriptor = w.peer.recv_descriptor()
        with imported(w, f"import {case}", descriptor) as mapping:
            wrong += differences(case, mapping.read(GLANCE), pattern(GLANCE))
        os.close(descriptor)
    w.record(wrong=wrong)
    w.peer.send("looked")


def judge_contexts(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done))
    says = "imported again after the context of either end was made anew"
    yield from bad or [Finding.ok("imports-again", says)]


# -- an exporter that is gone -----------------------------------------------------------------------------


def export_and_die(w: Worker) -> None:
    with w.gpu.create_physical(NBYTES) as memory, memory.map() as mapping:
        mapping.write(pattern(GLANCE))
        descriptor = memory.export_descriptor()
        w.peer.send_descriptor(descriptor)
        os.close(descriptor)
    w.peer.send("given back")
    w.peer.recv()  # the importer has it mapped
    w.die()


def outlive(w: Worker) -> None:
    descriptor, wrong = w.peer.recv_descriptor(), []
    w.peer.recv()  # the exporter has given everything back
    with w.step("import what the exporter gave back"):
        memory = w.gpu.import_descriptor(descriptor, NBYTES)
        mapping = memory.map()
    wrong += differences("given back by the exporter", mapping.read(GLANCE), pattern(GLANCE))
    w.peer.send("mapped")
    w.peer.wait_gone()
    wrong += differences("open when the exporter was killed", mapping.read(GLANCE), pattern(GLANCE))
    mapping.unmap()
    memory.release()
    with imported(w, "import after the exporter was killed", descriptor) as mapping:
        wrong += differences("imported afterwards", mapping.read(GLANCE), pattern(GLANCE))
    os.close(descriptor)
    w.record(wrong=wrong)


def judge_gone(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done))
    says = "memory outlived its exporter while a descriptor was open"
    yield from bad or [Finding.ok("outlives", says)]


PROCEDURES = {
    "data": (export, attach),
    "contexts": (export_anew, attach_anew),
    "exporter gone": (export_and_die, outlive),
}
JUDGES = {"data": judge_data, "contexts": judge_contexts, "exporter gone": judge_gone}

CHECK = IpcVmm()
