"""Device memory that one role of a check shares with the other, by each way that drivers have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.worker import Worker

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
        whole = -(-nbytes // w.gpu.granule) * w.gpu.granule
        with w.gpu.create_physical(whole) as physical, physical.map() as view:
            prepare(view)
            w.peer.send(whole)
            _pass(w, physical.export_descriptor())
            yield view
    else:
        pool, stream = w.gpu.create_shared_pool(), w.gpu.create_stream()
        memory = pool.alloc(nbytes, stream)
        stream.synchronize()
        prepare(memory)
        descriptor = pool.export_descriptor()  # must come first, or no pointer of it can be exported
        w.peer.send(memory.export_pointer())
        _pass(w, descriptor)
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()


def _pass(w: Worker, descriptor: int) -> None:
    w.peer.send_descriptor(descriptor)
    os.close(descriptor)


@contextmanager
def open_offered(w: Worker, way: str, nbytes: int) -> Iterator[Memory]:
    """Map the memory that the other role passes by `offer_memory`; it is closed at the end."""
    offer = w.peer.recv()
    if way == BY_HANDLE:
        with w.gpu.open_ipc(offer) as mapping:
            yield mapping
        return
    descriptor = w.peer.recv_descriptor()
    if way == BY_DESCRIPTOR:
        with w.gpu.import_descriptor(descriptor, offer) as physical, physical.map() as view:
            os.close(descriptor)
            yield view
    else:
        pool, stream = w.gpu.import_pool(descriptor), w.gpu.create_stream()
        os.close(descriptor)
        if len(w.gpus) > 1:
            pool.give_access()
        memory = pool.import_pointer(offer, nbytes)
        yield memory
        memory.free(stream)
        stream.synchronize()
        pool.destroy()
