"""Map, copy and unmap memory many times: addresses are reserved again while the last copy is just over."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Finding, ProbeOutcome, Worker, write_pattern, wrong_pattern

REMAPPINGS = 640
"""Number of mappings without a pause. With 160, faulty ROCm 6.4.3 passed some runs."""

REMAPPED = 16 << 10
"""Bytes written and read in each of the `REMAPPINGS`, with one copy each way."""


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
