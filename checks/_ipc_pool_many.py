"""Share many small pools, one after the other, while 65 pointers of another pool stay open."""

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
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.offered_memory import pass_pool, receive_pool

SMALL, ROUNDS = 2 << 20, range(1, 65)
"""Bytes allocated from each small pool, and the numbers of these pools."""

STAY = 65
"""Pointers of the pool that stays: more than a table of 64 holds."""

LOOKS = 4
"""The memory that stays is read after every fourth pool."""

POINTER_STAYS = "a pointer that stays"


def share_many(w: Worker) -> None:
    """Share small pools one after the other. Controls: pools that are not shared, and no pools."""
    w.gpu.primary_context()  # both create their contexts at the same time
    w.peer.recv()  # the importer has created its context
    meter, stream, wrong = Meter(w), w.gpu.create_stream(), list[str]()
    lasting = w.gpu.create_shared_pool()
    memories = [lasting.alloc(SMALL, stream) for _ in range(STAY)]
    stream.synchronize()
    for n, memory in enumerate(memories[:-1]):
        write_glances(memory, SMALL, n)
    write_pattern(memories[-1], SMALL)
    pass_pool(w.peer, lasting, memories)
    read_stays = reader_of(w, POINTER_STAYS, memories[0], SMALL, 0)

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
    pointers, lasting = w.peer.recv(), receive_pool(w)
    with w.step(f"import {STAY} pointers of a pool"):
        memories = [lasting.import_pointer(pointer, SMALL) for pointer in pointers]
    for n, memory in enumerate(memories[:-1]):
        wrong += wrong_glances(f"pointer {n + 1} of {STAY} at a time", memory, SMALL, n)
    wrong += wrong_pattern(f"pointer {STAY} of {STAY} at a time", memories[-1], SMALL)
    read_stays = reader_of(w, POINTER_STAYS, memories[0], SMALL, 0)
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
