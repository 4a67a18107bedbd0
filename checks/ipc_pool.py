"""Share a stream-ordered pool by descriptor, and its memory by exported pointers.

The importer frees before the exporter does, as both vendors require. Memory whose pointer was exported may
stay in use until both ends have destroyed the pool and all its descriptors are closed (measured on an H200,
driver 580.159.04), so memory is compared only then. All pointers are imported before the first is read, so
that swapped pointers are noticed. They are freed one by one while data is exchanged through the others. At
the end the exporter is killed while a pointer is open.

A further probe shares many small pools, one after the other. They must leave nothing behind in either process
or on the device, and must not change the memory of another pool that stays open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuipc_doctor.api import (
    ODD_BYTES,
    Check,
    Context,
    Finding,
    Ledger,
    Pool,
    Probe,
    ProbeOutcome,
    Reading,
    Worker,
    account,
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
    reader_of,
    watched,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.gpu import ImportedPool, PoolMemory

NBYTES = ODD_BYTES
POINTERS = 2

MANY = "many pools"

SMALL, ROUNDS = 2 << 20, range(1, 65)
"""Bytes allocated from each small pool, and the numbers of these pools."""

POINTER_STAYS = "the pointer that stays"

HARMS = frozenset({"kills an importer"})
"""`Probe.harms` of the probes that kill an importer or exporter, after which device memory may be lost."""


class IpcPool(Check):
    id = "ipc-pool"
    title = "a pool shared by descriptor has correct data and is released"
    requires = frozenset({"pool-ipc", "memory-pools", "multi-process"})

    def probes(self, ctx: Context) -> Iterable[Probe]:
        for devices in ctx.subjects:
            roles = {"exporter": share, "importer": attach}
            yield Probe("data", roles, devices, exclusive=True)
            roles = {"exporter": share_many, "importer": attach_many}
            yield Probe(MANY, roles, devices, exclusive=True)
        for devices in ctx.exporters:
            roles, ends = {"exporter": share_and_die, "importer": outlive}, frozenset({"exporter"})
            yield Probe("exporter gone", roles, devices, harms=HARMS, ends=ends)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        if done.probe == MANY:
            yield from judge_many(done)
            return
        bad, wrong = [], done.records["importer"]["wrong"]
        if wrong:
            bad.append(Finding.fail("wrong-data", "a pointer imported from a pool shows wrong data", *wrong))
        if done.probe == "exporter gone":
            yield from bad or [Finding.ok("outlives", "a pool's shared memory outlived its exporter")]
            return
        watched = account(done.records["exporter"])
        bad += [*judge_exchange(done), *watched.judge(NBYTES, POINTERS)]
        says = "{nbytes:mib} verified in both directions; memory released"
        yield from bad or [Finding.ok("right", says, *watched.evidence(), nbytes=POINTERS * NBYTES)]


def judge_many(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge used memory, and the data of a pool that stays open while other pools are shared and
    destroyed."""
    ledger = account(done.records["exporter"])
    bad = list(ledger.judge(SMALL, len(ROUNDS)))
    if wrong := [line for record in done.records.values() for line in record["wrong"]]:
        says = "memory of a pool shows wrong data after an imported pointer was freed"
        bad.append(Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong)))
    says = "{rounds} pools shared and destroyed, no memory lost"
    yield from bad or [Finding.ok("returned", says, *ledger.evidence(), rounds=len(ROUNDS))]


def share(w: Worker) -> None:
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.recv()  # the importer has made its context
    exchanged: list[str] = []
    share_once(w, exchanged, SMALL)  # for what the first one costs
    ledger = Ledger(w)
    ledger.watch("both ends destroyed the pool", lambda: share_once(w, exchanged))
    w.peer.send(None)
    w.record(exchanged=exchanged)


def share_once(w: Worker, exchanged: list[str], nbytes: int = NBYTES) -> None:
    pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
    memories = [pool.alloc(nbytes, stream) for _ in range(POINTERS)]
    stream.synchronize()
    for n, memory in enumerate(memories):
        write_pattern(memory, nbytes, n)
    w.peer.send(nbytes)
    offer(w, pool, memories)
    for n in closing_order(POINTERS):
        exchanged += exchange_as_exporter(w, memories[n], nbytes, f"pointer {n + 1}")
    w.peer.recv()  # the importer has freed the pointers and destroyed its pool
    for memory in memories:
        memory.free(stream)
    stream.synchronize()
    pool.destroy()


def offer(w: Worker, pool: Pool, memories: list[PoolMemory]) -> None:
    descriptor = pool.export_descriptor()  # must come first, or no pointer of it can be exported
    w.peer.send([memory.export_pointer() for memory in memories])
    w.peer.send_descriptor(descriptor)
    os.close(descriptor)


def attach(w: Worker) -> None:
    stream, wrong, exchanged = w.gpu.create_stream(), [], []
    w.peer.send("ready")
    while nbytes := w.peer.recv():
        pointers, pool = w.peer.recv(), import_pool(w)
        memories = [pool.import_pointer(pointer, nbytes) for pointer in pointers]
        for n, memory in enumerate(memories):
            wrong += wrong_pattern(f"pointer {n + 1}", memory, nbytes, n)
        for n in closing_order(POINTERS):
            with w.step(f"exchange data by pointer {n + 1}, with some of the others freed"):
                exchanged += exchange_as_importer(w, memories[n], nbytes, f"pointer {n + 1}")
                memories[n].free(stream)
                stream.synchronize()
        pool.destroy()
        w.peer.send("destroyed")
    w.record(wrong=wrong, exchanged=exchanged)


def import_pool(w: Worker) -> ImportedPool:
    descriptor = w.peer.recv_descriptor()
    pool = w.gpu.import_pool(descriptor)
    os.close(descriptor)
    if len(w.gpus) > 1:
        pool.give_access()
    return pool


def share_and_die(w: Worker) -> None:
    pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
    memory = pool.alloc(NBYTES, stream)
    stream.synchronize()
    write_pattern(memory, NBYTES)
    offer(w, pool, [memory])
    w.peer.recv()  # the importer has the pointer open
    w.die()


def outlive(w: Worker) -> None:
    (pointer,), stream = w.peer.recv(), w.gpu.create_stream()
    pool = import_pool(w)
    memory = pool.import_pointer(pointer, NBYTES)
    w.peer.send("open")
    w.peer.wait_gone()
    with w.step("read memory that the killed exporter shared"):
        wrong = wrong_pattern("after the exporter was killed", memory, NBYTES)
    memory.free(stream)
    stream.synchronize()
    pool.destroy()
    w.record(wrong=wrong)


def share_many(w: Worker) -> None:
    """Share small pools one after the other. Controls: pools that are not shared, and no pools."""
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.recv()  # the importer has created its context
    ledger, stream, wrong = Ledger(w), w.gpu.create_stream(), list[str]()
    lasting = w.gpu.create_shared_pool()
    stays = lasting.alloc(SMALL, stream)
    stream.synchronize()
    write_glances(stays, SMALL)
    offer(w, lasting, [stays])
    read_stays = reader_of(w, POINTER_STAYS, stays, SMALL)

    def use_pool(*, shared: bool) -> None:
        pool = w.gpu.create_shared_pool()
        memory = pool.alloc(SMALL, stream)
        stream.synchronize()
        if shared:
            write_glances(memory, SMALL)
            offer(w, pool, [memory])
            w.peer.recv()  # the importer has destroyed its pool
            wrong.extend(wrong_glances("after the importer freed the memory", memory, SMALL))
        memory.free(stream)
        stream.synchronize()
        pool.destroy()
        wrong.extend(read_stays("another pool of the exporter was destroyed"))

    use_pool(shared=True)  # for what the first one costs
    sampled = ledger.sampled(ROUNDS)

    def used_by(what: str, *, shared: bool) -> list[Reading]:
        return ledger.used_after(sampled, watched(w, what, ROUNDS), lambda _: use_pool(shared=shared), what)

    shared = used_by("shared pool", shared=True)
    w.peer.send(None)
    alone = used_by("pool", shared=False)
    ledger.enter_loop("shared pool", sampled, shared, alone)
    ledger.enter_loop("pool", sampled, alone, [ledger.used() for _ in sampled])
    w.record(wrong=wrong)


def attach_many(w: Worker) -> None:
    stream, wrong = w.gpu.create_stream(), list[str]()
    w.peer.send("ready")
    (pointer,), lasting = w.peer.recv(), import_pool(w)
    stays = lasting.import_pointer(pointer, SMALL)
    read_stays = reader_of(w, POINTER_STAYS, stays, SMALL)
    for (pointer,) in watched(w, "imported pool", iter(w.peer.recv, None)):
        pool = import_pool(w)
        pool.import_pointer(pointer, SMALL).free(stream)
        stream.synchronize()
        pool.destroy()
        wrong += read_stays("another pool of the importer was destroyed")
        w.peer.send("destroyed")
    w.record(wrong=wrong)


CHECK = IpcPool()
