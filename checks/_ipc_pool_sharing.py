"""What the procedures of `ipc-pool` share: passing a pool and its pointers, and importing the pool."""

from __future__ import annotations

import os

from gpuipc_doctor.api import Pool, Worker
from gpuipc_doctor.api.gpu import ImportedPool, PoolMemory


def offer(w: Worker, pool: Pool, memories: list[PoolMemory]) -> None:
    descriptor = pool.export_descriptor()  # must come first, or no pointer of it can be exported
    w.peer.send([memory.export_pointer() for memory in memories])
    w.peer.send_descriptor(descriptor)
    os.close(descriptor)


def import_pool(w: Worker) -> ImportedPool:
    descriptor = w.peer.recv_descriptor()
    pool = w.gpu.import_pool(descriptor)
    os.close(descriptor)
    if len(w.gpus) > 1:
        pool.give_access()
    return pool
