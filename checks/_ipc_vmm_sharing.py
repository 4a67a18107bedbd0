"""What the procedures of `ipc-vmm` share: sending, importing, and judging the data that an importer read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from gpuipc_doctor.api import Finding, Json, Peer, PhysicalMemory, Worker
from gpuipc_doctor.api.gpu import VmmMapping


def round_up(nbytes: int, granule: int) -> int:
    return -(-nbytes // granule) * granule


def share(importer: Peer, memory: PhysicalMemory) -> None:
    """Send an importer the size of the memory and a descriptor, then close the descriptor here."""
    importer.send(memory.nbytes)
    descriptor = memory.export_descriptor()
    importer.send_descriptor(descriptor)
    os.close(descriptor)


@contextmanager
def import_and_map(w: Worker, step: str, descriptor: int, nbytes: int) -> Iterator[VmmMapping]:
    with w.step(step), w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
        yield mapping


def judge_wrong(record: Mapping[str, Json]) -> Iterable[Finding]:
    if wrong := record["wrong"]:
        yield Finding.fail("wrong-data", "an imported descriptor shows wrong data", *wrong)
