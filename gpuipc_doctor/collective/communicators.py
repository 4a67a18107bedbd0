"""Communicators made and destroyed, and what a process has lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gpuipc_doctor.api import Collectives, Communicator, GpuStream, Json, Worker, watched
from gpuipc_doctor.api.process_leaks import figures_of_process
from gpuipc_doctor.collective.all_ranks import AllRanks

REGISTERED = 1 << 20
"""Bytes of the registered buffers."""

CYCLE = "start and end of a communicator"

LEAST_DEVICE = 1 << 20
"""Bytes of device memory per communicator below which growth is ignored."""


def cycles(w: Worker, ranks: AllRanks, library: Collectives, times: int) -> dict[str, Json]:
    """Start a communicator, use it and end it, ``times`` times; returns seconds and what is left behind.

    An earlier communicator has just ended: the first figures are those after it. If every second communicator
    is aborted, later ones are those after each two, so that what one kind of end leaves is in every figure.
    """
    stream = w.gpu.create_stream()
    seconds: list[float] = []
    usage = {name: [figure] for name, figure in figures(w).items()}
    wrong = 0
    per_figure = 2 if w.params["soak"] else 1
    ranks.all_say(None)
    for number in watched(w, CYCLE, range(times)):
        with w.step(f"communicator {number + 1} of {times}"):
            began = w.clock()
            comm = ranks.begin(library)
            wrong += not first_sum_is_right(w, comm, stream)
            seconds.append(w.clock() - began)
            if number % 2 and w.params["soak"]:
                _abort_in_the_middle(w, comm, stream)
            else:
                comm.destroy()
        ranks.all_say(None)  # every rank has released its part
        if (number + 1) % per_figure == 0:
            for name, figure in figures(w).items():
                usage[name].append(figure)
        ranks.all_say(None)
    return {"cycles": seconds, "usage": usage, "wrong_starts": wrong}


def first_sum_is_right(w: Worker, comm: Communicator, stream: GpuStream) -> bool:
    """Whether the sum of one element of each rank is right."""
    with w.gpu.alloc(4) as buffer:
        buffer.write((comm.rank + 1).to_bytes(4, "little"))
        comm.all_reduce(buffer.address, buffer.address, 1, "int32", stream)
        stream.synchronize()
        return int.from_bytes(buffer.read(), "little") == comm.size * (comm.size + 1) // 2


def _abort_in_the_middle(w: Worker, comm: Communicator, stream: GpuStream) -> None:
    """Abort a communicator while an operation of all its ranks is queued or runs."""
    with w.gpu.alloc(REGISTERED) as buffer:
        comm.all_reduce(buffer.address, buffer.address, REGISTERED // 4, "int32", stream)
        comm.abort()
        stream.synchronize()


def figures(w: Worker) -> dict[str, int]:
    """What this process and its device hold: ``descriptors``, ``threads``, bytes of memory on the ``device``;
    and the node's ``shared`` files."""
    device = w.gpu.memory_used()  # first: it may open files
    own = figures_of_process()
    found = {name: figure for name, figure in own.items() if name in ("descriptors", "threads")}
    return {**found, "device": device, "shared": sum(1 for _ in w.shared_memory.glob("*ccl-*"))}


def growing(samples: Sequence[int], least: int = 1) -> int:
    """The smallest growth from one sample to the next, if every one is at least this large; else 0. What a
    library takes once and keeps for later, it takes at fewer than three communicators in a row."""
    steps = [later - earlier for earlier, later in pairwise(samples)]
    return min(steps) if len(steps) > 2 and min(steps) >= least else 0


def registered(w: Worker, library: Collectives, comm: Communicator) -> str:
    """Use a registered buffer of the library; returns what was wrong, or why it could not be tested."""
    calls = ("ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister")
    if missing := library.lacks(*calls):
        return f"not registered: this version has no {', '.join(missing)}"
    stream = w.gpu.create_stream()
    with w.step("registered buffers"), library.alloc(REGISTERED) as buffer:
        deregister = comm.register(buffer)
        buffer.write((comm.rank + 1).to_bytes(4, "little") * (REGISTERED // 4))
        comm.all_reduce(buffer.address, buffer.address, REGISTERED // 4, "int32", stream)
        stream.synchronize()
        total = comm.size * (comm.size + 1) // 2
        is_right = buffer.read() == total.to_bytes(4, "little") * (REGISTERED // 4)
        deregister()
    return "" if is_right else "wrong sum in a registered buffer"
