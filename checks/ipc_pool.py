"""Share a stream-ordered pool by descriptor, and its memory by exported pointers.

The importer frees before the exporter does, as both vendors require. Memory whose pointer was exported may
stay in use until both ends have destroyed the pool and all its descriptors are closed (measured on an H200,
driver 580.159.04), so memory is compared only then. All pointers are imported before the first is read, so
that swapped pointers are noticed. They are freed one by one while data is exchanged through the others. At
the end the exporter is killed while a pointer is open.
The first pool is also used as PyTorch, CuPy and UCX use memory (`gpuipc_doctor.api.memory_uses`).

A further probe shares many small pools, one after the other. They must leave nothing behind in either process
or on the device, and must not change the memory of another pool, of which 65 pointers stay open.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Check,
    Context,
    Finding,
    Meter,
    Probe,
    ProbeOutcome,
    Worker,
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    leak_report,
    write_pattern,
    wrong_pattern,
)
from gpuipc_doctor.api.memory_uses import use_as_exporter, use_as_importer
from gpuipc_doctor.api.offered_memory import pass_pool, receive_pool

from ._ipc_pool_many import attach_many, judge_many, share_many

NBYTES = ODD_BYTES
POINTERS = 2

FIRST_NBYTES = 2 << 20
"""Bytes of the first allocations, which are not watched."""

HARMS = frozenset({"kills an importer"})
"""`Probe.harms` of the probes that kill an importer or exporter, after which device memory may be lost."""


class IpcPool(Check):
    id = "ipc-pool"
    title = "a pool shared by descriptor has correct data and is released"
    requires = frozenset({"pool-ipc", "memory-pools", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            yield Probe("data", {"exporter": share, "importer": attach}, devices, exclusive=True)
            roles = {"exporter": share_many, "importer": attach_many}
            yield Probe("many pools", roles, devices, exclusive=True)
        for devices in ctx.exporters:
            roles, ends = {"exporter": share_and_die, "importer": outlive}, frozenset({"exporter"})
            yield Probe("exporter gone", roles, devices, harms=HARMS, ends=ends)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        judges = {"data": judge_data, "many pools": judge_many, "exporter gone": judge_gone}
        yield from judges[done.probe](done)


def judge_data(done: ProbeOutcome) -> Iterable[Finding]:
    watched = leak_report(done.roles["exporter"])
    bad = [*judge_wrong(done), *judge_exchange(done), *watched.judge(NBYTES, POINTERS)]
    says = "{nbytes:mib} verified in both directions; memory released"
    yield from bad or [Finding.ok("right", says, *watched.evidence(), nbytes=POINTERS * NBYTES)]


def judge_gone(done: ProbeOutcome) -> Iterable[Finding]:
    bad = list(judge_wrong(done))
    yield from bad or [Finding.ok("outlives", "a pool's shared memory outlived its exporter")]


def judge_wrong(done: ProbeOutcome) -> Iterable[Finding]:
    if wrong := done.records["importer"]["wrong"]:
        yield Finding.fail("wrong-data", "a pointer imported from a pool shows wrong data", *wrong)


def share(w: Worker) -> None:
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.recv()  # the importer has made its context
    exchanged: list[str] = []
    share_once(w, exchanged, FIRST_NBYTES)  # for what the first one costs
    meter = Meter(w)
    meter.watch("exporter and importer destroyed the pool", lambda: share_once(w, exchanged))
    w.peer.send(None)
    w.record(exchanged=exchanged)


def share_once(w: Worker, exchanged: list[str], nbytes: int = NBYTES) -> None:
    pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
    memories = [pool.alloc(nbytes, stream) for _ in range(POINTERS)]
    stream.synchronize()
    for n, memory in enumerate(memories):
        write_pattern(memory, nbytes, n)
    w.peer.send(nbytes)
    pass_pool(w.peer, pool, memories)
    if nbytes == FIRST_NBYTES:
        w.record(uses=use_as_exporter(w, *memories))
    for n in closing_order(POINTERS):
        exchanged += exchange_as_exporter(w, memories[n], nbytes, f"pointer {n + 1}")
    w.peer.recv()  # the importer has freed the pointers and destroyed its pool
    for memory in memories:
        memory.free(stream)
    stream.synchronize()
    pool.destroy()


def attach(w: Worker) -> None:
    stream, wrong, exchanged = w.gpu.create_stream(), [], []
    w.peer.send("ready")
    while nbytes := w.peer.recv():
        pointers, pool = w.peer.recv(), receive_pool(w)
        memories = [pool.import_pointer(pointer, nbytes) for pointer in pointers]
        for n, memory in enumerate(memories):
            wrong += wrong_pattern(f"pointer {n + 1}", memory, nbytes, n)
        if nbytes == FIRST_NBYTES:
            w.record(uses=use_as_importer(w, *memories))
        for n in closing_order(POINTERS):
            with w.step(f"exchange data by pointer {n + 1}, with some of the others freed"):
                exchanged += exchange_as_importer(w, memories[n], nbytes, f"pointer {n + 1}")
                memories[n].free(stream)
                stream.synchronize()
        pool.destroy()
        w.peer.send("destroyed")
    w.record(wrong=wrong, exchanged=exchanged)


def share_and_die(w: Worker) -> None:
    pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
    memory = pool.alloc(NBYTES, stream)
    stream.synchronize()
    write_pattern(memory, NBYTES)
    pass_pool(w.peer, pool, [memory])
    w.peer.recv()  # the importer has the pointer open
    w.die()


def outlive(w: Worker) -> None:
    (pointer,), stream = w.peer.recv(), w.gpu.create_stream()
    pool = receive_pool(w)
    memory = pool.import_pointer(pointer, NBYTES)
    w.peer.send("open")
    w.peer.wait_gone()
    with w.step("read memory that the killed exporter shared"):
        wrong = wrong_pattern("after the exporter was killed", memory, NBYTES)
    memory.free(stream)
    stream.synchronize()
    pool.destroy()
    w.record(wrong=wrong)


CHECK = IpcPool()
