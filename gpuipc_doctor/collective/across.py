"""A rank's part in collectives over several nodes (`gpuipc-doctor fleet collectives`).

Ranks share nothing but NCCL's unique id: the first makes it and leaves it in a file, the others wait for that
file; the head of the fleet carries it from node to node.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from gpuipc_doctor.api import Collectives, Communicator, GpuStream, Json, Observed, Worker
from gpuipc_doctor.api.reduction_data import KINDS
from gpuipc_doctor.collective import data

FILE = Path(__file__)

START, FIRST = "start", "first all-reduce"

PASSES, MOST_TIMES, PASS_S = 5, 20, 0.1
"""Passes of a measurement, and the most all-reduces in each, which take this long together."""

SLOW_S = 1.0
"""An all-reduce that takes longer is measured once."""


def take_part(w: Worker) -> None:
    library = w.collectives(w.params["library"])
    w.record(version=library.version)
    w.gpu.primary_context()
    with w.step(START):
        unique_id = _unique_id(w, library)
        began = w.clock()
        comm = library.init(w.params["ranks"], unique_id, w.params["of"][w.role])
        w.record(start_s=w.clock() - began)
    results = data.Results()
    with w.step(FIRST):
        began = w.clock()
        _all_reduce_once(w, comm)
        w.record(first_s=w.clock() - began)
    stream = w.gpu.create_stream()
    for case in cases(comm.size, w.params):
        with w.step(str(case)), ExitStack() as resources:
            operation = data.Operation(w, comm, case, resources)
            operation.queue(library, stream)
            stream.synchronize()
            comm.check()
            _compare(w, operation, results)
    if w.params["speeds"]:
        w.record(speeds=list(_speeds(w, comm)))
    with w.step("end of the communicator"):
        comm.destroy()


def _unique_id(w: Worker, library: Collectives) -> bytes:
    file = Path(w.params["meeting"])
    if w.params["of"][w.role] == 0:
        draft = file.with_suffix(".draft")
        draft.write_bytes(library.unique_id())
        draft.replace(file)
    w.wait_until(file.exists, float("inf"))
    return file.read_bytes()


def cases(ranks: int, params: Json) -> Iterator[data.Case]:
    """Every operation at every size in every type, each with data of its own."""
    number = 0
    for operation in params["operations"]:
        for size in params["sizes"]:
            for kind in (KINDS[name] for name in params["kinds"]):
                number += 1
                elements = data.count(operation, size, kind, ranks)
                yield data.Case(number, operation, elements, kind, False, 0)


def _compare(w: Worker, operation: data.Operation, results: data.Results) -> None:
    before = results.failures
    results.add(operation)
    if results.failures > before and len(results.failed) < data.SHOWN + 1:
        case, says = operation.case, results.failed[-1]["says"]
        w.observe(Observed.WRONG, f"{case}: {says}")
        results.failed[-1] |= {"kind": case.kind.name, "nbytes": case.nbytes}
    w.record(cases=results.cases, wrong=results.failed, wrong_cases=results.failures)


def _all_reduce_once(w: Worker, comm: Communicator) -> None:
    stream = w.gpu.create_stream()
    with w.gpu.alloc(4) as buffer:
        buffer.write((comm.rank + 1).to_bytes(4, "little"))
        comm.all_reduce(buffer.address, buffer.address, 1, "int32", stream)
        stream.synchronize()
        comm.check()


def _speeds(w: Worker, comm: Communicator) -> Iterable[Json]:
    """Operation, bytes and seconds of the smallest and the largest all-reduce."""
    for size in dict.fromkeys((min(w.params["sizes"]), max(w.params["sizes"]))):
        with w.step(f"speed of an all-reduce of {size} B"), w.gpu.alloc(size) as buffer:
            yield ["all-reduce", size, _seconds(w, comm, buffer.address, size)]


def _seconds(w: Worker, comm: Communicator, address: int, size: int) -> float:
    stream = w.gpu.create_stream()

    def once(times: int) -> float:
        began = w.clock()
        for _ in range(times):
            comm.all_reduce(address, address, size // 4, "float32", stream)
        stream.synchronize()
        comm.check()
        return (w.clock() - began) / times

    once(1)
    slowest = _slowest(w, comm, stream, once(1))
    if slowest > SLOW_S:
        return slowest
    times = min(MOST_TIMES, max(1, int(PASS_S / slowest)))  # the same on all ranks
    return min(once(times) for _ in range(PASSES))


def _slowest(w: Worker, comm: Communicator, stream: GpuStream, seconds: float) -> float:
    """The time of the slowest rank, which all ranks then know."""
    with w.gpu.alloc(4) as buffer:
        buffer.write(struct.pack("<f", seconds))
        comm.all_reduce(buffer.address, buffer.address, 1, "float32", stream, "maximum")
        stream.synchronize()
        return float(struct.unpack("<f", buffer.read())[0])
