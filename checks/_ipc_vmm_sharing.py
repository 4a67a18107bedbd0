"""What the procedures of `ipc-vmm` share: importing, and judging the data that an importer read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from gpuipc_doctor.api import Finding, Json, Worker
from gpuipc_doctor.api.gpu import VmmMapping


@contextmanager
def import_and_map(w: Worker, step: str, descriptor: int, nbytes: int) -> Iterator[VmmMapping]:
    with w.step(step), w.gpu.import_descriptor(descriptor, nbytes) as memory, memory.map() as mapping:
        yield mapping


def judge_wrong(record: Mapping[str, Json]) -> Iterable[Finding]:
    if wrong := record["wrong"]:
        yield Finding.fail("wrong-data", "an imported descriptor shows wrong data", *wrong)
