"""Device memory that one role of a check shares with the other, by each way that drivers have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gpuipc_doctor.api.gpu import ImportedPool, Memory, PhysicalMemory, Pool, PoolMemory
from gpuipc_doctor.api.worker import Peer, Worker

BY_HANDLE, BY_DESCRIPTOR, BY_POINTER = "handle", "descriptor", "pointer"

SHARED_BY = {
    BY_HANDLE: frozenset({"legacy-ipc"}),
    BY_DESCRIPTOR: frozenset({"vmm-ipc"}),
    BY_POINTER: frozenset({"pool-ipc", "memory-pools"}),
}
"""Way of sharing memory (an IPC handle, a descriptor of VMM memory, a pointer of a pool) → the capabilities
that both devices need."""


@contextmanager
def offer_memory(
    w: Worker,
    way: str,
    nbytes: int,
    prepare: Callable[[Memory], object] = lambda memory: None,
    *,
    coherent: bool = False,
) -> Iterator[Memory]:
    """Allocate memory, prepare it and pass it to the other role, which opens it by `open_offered`.

    It is freed at the end; the other role must have closed it before. VMM memory has ``nbytes`` rounded up to
    the device's granularity. ``coherent``: whether memory shared by handle is `Gpu.alloc_coherent`.
    """
    if way == BY_HANDLE:
        with w.gpu.alloc_coherent(nbytes) if coherent else w.gpu.alloc(nbytes) as buffer:
            prepare(buffer)
            w.peer.send(buffer.ipc_handle())
            yield buffer
    elif way == BY_DESCRIPTOR:
        whole = round_up(nbytes, w.gpu.granule)
        with w.gpu.create_physical(whole) as physical, physical.map() as view:
            prepare(view)
            pass_physical(w.peer, physical)
            yield view
    else:
        pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
        memory = pool.alloc(nbytes, stream)
        stream.synchronize()
        prepare(memory)
        pass_pool(w.peer, pool, [memory])
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()


def round_up(nbytes: int, granule: int) -> int:
    return -(-nbytes // granule) * granule


def pass_physical(peer: Peer, memory: PhysicalMemory) -> None:
    """Send the size of the memory and a descriptor of it, and close the descriptor here."""
    peer.send(memory.nbytes)
    _pass(peer, memory.export_descriptor())


def pass_pool(peer: Peer, pool: Pool, memories: Sequence[PoolMemory]) -> None:
    """Send pointers of a pool and its descriptor, for `receive_pool`."""
    descriptor = pool.export_descriptor()  # must come first, or no pointer of it can be exported
    peer.send([memory.export_pointer() for memory in memories])
    _pass(peer, descriptor)


def receive_pool(w: Worker) -> ImportedPool:
    """Import the pool whose pointers have arrived; on another device, with access to it."""
    descriptor = w.peer.recv_descriptor()
    pool = w.gpu.import_pool(descriptor)
    os.close(descriptor)
    if len(w.gpus) > 1:
        pool.give_access()
    return pool


def _pass(peer: Peer, descriptor: int) -> None:
    peer.send_descriptor(descriptor)
    os.close(descriptor)


@contextmanager
def open_offered(w: Worker, way: str, nbytes: int) -> Iterator[Memory]:
    """Map the memory that the other role passes by `offer_memory`; it is closed at the end."""
    offer = w.peer.recv()
    if way == BY_HANDLE:
        with w.gpu.open_ipc(offer) as mapping:
            yield mapping
        return
    if way == BY_DESCRIPTOR:
        descriptor = w.peer.recv_descriptor()
        with w.gpu.import_descriptor(descriptor, offer) as physical, physical.map() as view:
            os.close(descriptor)
            yield view
    else:
        pool, stream = receive_pool(w), w.gpu.create_stream()
        memory = pool.import_pointer(offer[0], nbytes)
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()
