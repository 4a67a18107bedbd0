"""Share physical memory by descriptor, as NCCL, UCX and PyTorch do: `cuMemCreate`, export, import, map.

A descriptor is sent to the other process in a message (``SCM_RIGHTS``) or fetched by that process
(``pidfd_getfd``). A container may refuse one of these, although the driver supports sharing. All segments of
one size are imported before the first is read, so that swapped descriptors are noticed. They are unmapped one
by one while data is exchanged through the others.

One segment is also copied as PyTorch, CuPy and UCX copy it (`gpuipc_doctor.api.memory_uses`).

In further cases, either process re-creates its context, after which IPC handles fail on some drivers; the
exporter releases everything; the exporter is killed; the importer is killed. If memory is missing after the
last case, a spare importer is also killed. Leaks over many imports are tested by `ipc-vmm-release`.

A further case has 65 imports at a time. Some lie side by side, and access is granted to them together, and
again, as PyTorch's expandable segments do.

One process also maps, copies and unmaps memory many times without a pause: addresses are then reserved again
while the driver's own thread is still busy with the last copy.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    PhysicalMemory,
    Probe,
    ProbeOutcome,
    Worker,
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    write_pattern,
    wrong_pattern,
)
from gpuipc_doctor.api.gpu import VmmMapping
from gpuipc_doctor.api.memory_uses import use_as_exporter, use_as_importer
from gpuipc_doctor.api.offered_memory import round_up

from ._ipc_vmm_contexts import attach_anew, export_anew, judge_contexts
from ._ipc_vmm_killed import (
    export_and_die,
    judge_gone,
    judge_killed,
    outlive,
    share_and_watch,
    write_and_die,
)
from ._ipc_vmm_many import attach_many, export_many, judge_many
from ._ipc_vmm_remapping import judge_remapped, remap
from ._ipc_vmm_sharing import judge_wrong

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
                params = {"room": ctx.room(devices)}
                yield Probe(
                    name, roles, devices, params, harms=harms, exclusive=exclusive, fresh=fresh, ends=ends
                )

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        _, judge = PROCEDURES[done.probe]
        yield from judge(done)


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
    if all(arrived[::2]):
        w.record(uses=use_as_exporter(w, mappings[0], mappings[2]))
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
    if {0, 2} <= imports.keys():
        w.record(uses=use_as_importer(w, imports[0][1], imports[2][1]))
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


PROCEDURES = {
    "data": ({"exporter": export, "importer": attach}, judge_data),
    "many": ({"exporter": export_many, "importer": attach_many}, judge_many),
    "mapped many times": ({"allocator": remap}, judge_remapped),
    "contexts": ({"exporter": export_anew, "importer": attach_anew}, judge_contexts),
    "exporter gone": ({"exporter": export_and_die, "importer": outlive}, judge_gone),
    "importer gone": (
        {"exporter": share_and_watch, "importer": write_and_die, "spare importer": write_and_die},
        judge_killed,
    ),
}

CHECK = IpcVmm()
