"""What carries large messages of MPI over UCX between two GPUs: of an allocation, a pool or VMM memory."""

from __future__ import annotations

from contextlib import ExitStack

from gpuipc_doctor.api import Device, Worker, unlike_pattern, write_pattern
from gpuipc_doctor.api.carriers import record_carriers
from gpuipc_doctor.api.message_sizes import LARGE_MESSAGES
from gpuipc_doctor.histories.message_memories import DEVICE, POOL, VMM, Memories, kinds_of

NBYTES, ROUNDS = LARGE_MESSAGES[0], 5


def kinds_to_send(device: Device) -> list[str]:
    """The kinds of memory, each for a launch of its own: UCX prints a protocol once in a process."""
    return [kind for kind in (DEVICE, POOL, VMM) if kind in kinds_of(device)]


def send_one_kind(w: Worker) -> None:
    """Send memory of one kind to the other rank and back."""
    kind = w.params["kind"]
    with ExitStack() as resources, w.step(f"{NBYTES} B, {kind}"):
        memory = Memories(w.gpu).alloc(kind, NBYTES, resources)
        write_pattern(memory, NBYTES, w.mpi.rank)
        times = w.mpi.ping_pong(memory.address, NBYTES, 1 - w.mpi.rank, ROUNDS)
        w.record(node=w.mpi.node, wrong=unlike_pattern(memory, NBYTES, 0))
    record_carriers(w, w.fabric.carried(NBYTES, w.gpu.device.backend), NBYTES, min(times))
    w.mpi.finalize()
