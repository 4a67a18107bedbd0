"""Share many small pools, one after the other, while a pointer of another pool stays open."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import (
    Finding,
    Meter,
    ProbeOutcome,
    Reading,
    Worker,
    leak_report,
    reader_of,
    watched,
    write_glances,
    wrong_glances,
)
from gpuipc_doctor.api.offered_memory import pass_pool, receive_pool

SMALL, ROUNDS = 2 << 20, range(1, 65)
"""Bytes allocated from each small pool, and the numbers of these pools."""

LOOKS = 4
"""The memory that stays is read after every fourth pool."""

POINTER_STAYS = "the pointer that stays"


def share_many(w: Worker) -> None:
    """Share small pools one after the other. Controls: pools that are not shared, and no pools."""
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.recv()  # the importer has created its context
    meter, stream, wrong = Meter(w), w.gpu.create_stream(), list[str]()
    lasting = w.gpu.create_shared_pool()
    stays = lasting.alloc(SMALL, stream)
    stream.synchronize()
    write_glances(stays, SMALL)
    pass_pool(w.peer, lasting, [stays])
    read_stays = reader_of(w, POINTER_STAYS, stays, SMALL)

    def use_pool(number: int, *, shared: bool) -> None:
        pool = w.gpu.create_shared_pool()
        memory = pool.alloc(SMALL, stream)
        stream.synchronize()
        if shared:
            write_glances(memory, SMALL, turn=number)
            pass_pool(w.peer, pool, [memory])
            w.peer.recv()  # the importer has destroyed its pool
            wrong.extend(wrong_glances("after the importer freed the memory", memory, SMALL, turn=number))
        memory.free(stream)
        stream.synchronize()
        pool.destroy()
        if number % LOOKS == 0:
            wrong.extend(read_stays("another pool of the exporter was destroyed"))

    use_pool(0, shared=True)  # for what the first one costs
    sampled = meter.sampled(ROUNDS)

    def use_pools(what: str, *, shared: bool) -> list[Reading]:
        return meter.used_after(
            sampled, watched(w, what, ROUNDS), lambda number: use_pool(number, shared=shared), what
        )

    shared = use_pools("shared pool", shared=True)
    w.peer.send(None)
    alone = use_pools("pool", shared=False)
    meter.enter_loop("shared pool", sampled, shared, alone)
    meter.enter_loop("pool", sampled, alone, [meter.used() for _ in sampled])
    w.peer.send("watched")
    w.record(wrong=wrong)


def attach_many(w: Worker) -> None:
    stream, wrong = w.gpu.create_stream(), list[str]()
    w.peer.send("ready")
    (pointer,), lasting = w.peer.recv(), receive_pool(w)
    stays = lasting.import_pointer(pointer, SMALL)
    read_stays = reader_of(w, POINTER_STAYS, stays, SMALL)
    for number, (pointer,) in enumerate(watched(w, "imported pool", iter(w.peer.recv, None))):
        pool = receive_pool(w)
        pool.import_pointer(pointer, SMALL).free(stream)
        stream.synchronize()
        pool.destroy()
        if number % LOOKS == 0:
            wrong += read_stays("another pool of the importer was destroyed")
        w.peer.send("destroyed")
    w.peer.recv()  # the exporter has watched used memory, which the end of this process may change
    w.record(wrong=wrong)


def judge_many(done: ProbeOutcome) -> Iterable[Finding]:
    """Judge used memory, and the data of the pool that stays open."""
    meter = leak_report(done.roles["exporter"])
    bad = list(meter.judge(SMALL, len(ROUNDS)))
    if wrong := [line for record in done.records.values() for line in record["wrong"]]:
        says = "memory of a pool shows wrong data after an imported pointer was freed"
        bad.append(Finding.fail("wrong-data", says, *wrong[:3], times=len(wrong)))
    says = "{rounds} pools shared and destroyed, no memory lost"
    yield from bad or [Finding.ok("returned", says, *meter.evidence(), rounds=len(ROUNDS))]
