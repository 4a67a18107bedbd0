"""The segments of `ipc-concurrent`: shared by IPC handle or descriptor, written and read whole or in part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpuipc_doctor.api import (
    Memory,
    Peer,
    Worker,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.data_patterns import glanced_at
from gpuipc_doctor.api.offered_memory import round_up

WHOLE = (0, 1)
"""Numbers of the writes that cover the whole segment: the exporter's first (0) and the importer's (1)."""

Exported = bytes | int
"""An IPC handle, or a descriptor."""


@dataclass(frozen=True)
class Segment:
    """Memory of the exporter. ``export`` exports it; several exports may be open at a time."""

    memory: Memory
    export: Callable[[], Exported]

    def export_to(self, importer: Peer | None) -> None:
        """Export the memory and pass the export to ``importer``, unless that is None; a descriptor is closed
        in this process."""
        exported = self.export()
        if isinstance(exported, int):
            if importer:
                importer.send_descriptor(exported)
            os.close(exported)
        elif importer:
            importer.send(exported)


@contextmanager
def allocate(w: Worker, nbytes: int) -> Iterator[Segment]:
    """Allocate memory that is freed at the end of the block; after a failed call it is not freed, so that
    importers do not fail before this role does."""
    if w.params["how"] == "handles":
        with w.gpu.alloc(nbytes) as buffer:
            yield Segment(buffer, buffer.ipc_handle)
    else:
        whole = round_up(nbytes, w.gpu.granule)
        with w.gpu.create_physical(whole) as memory, memory.map() as mapping:
            yield Segment(mapping, memory.export_descriptor)


@contextmanager
def open_given(w: Worker, nbytes: int) -> Iterator[Memory]:
    """Open the memory that the exporter passes; it and a descriptor of it are closed when the block ends."""
    if w.params["how"] == "handles":
        with w.gpu.open_ipc(w.peer.recv()) as mapped:
            yield mapped
    else:
        descriptor = w.peer.recv_descriptor()
        with w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
            yield mapping
        os.close(descriptor)


def write(w: Worker, memory: Memory, nbytes: int, number: int, writing: int) -> None:
    """Write data that encodes the numbers of the round and of the write, at the places that `find_wrong`
    reads."""
    write_all = w.params["whole"] and writing in WHOLE
    (write_pattern if write_all else write_glances)(memory, nbytes, number, writing)


def find_wrong(w: Worker, memory: Memory, nbytes: int, number: int, writing: int) -> list[str]:
    """Differences between the memory and the data written by `write`."""
    read_all = w.params["whole"] and writing in WHOLE
    compare = wrong_pattern if read_all else wrong_glances
    return compare(f"round {number + 1}, {nbytes} B", memory, nbytes, number, writing)


def count_written(w: Worker, nbytes: int) -> int:
    """Bytes that the exporter's first `write` covers."""
    return nbytes if w.params["whole"] else glanced_at(nbytes)
