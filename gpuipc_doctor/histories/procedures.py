"""The procedures of hand-written checks as histories, for reproducers of their findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuipc_doctor.histories.memory_model import legal
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan

EXPORTER, IMPORTER = 1, 2
KIB, MIB = 1 << 10, 1 << 20

SIZES = (146064, 226656)
"""Bytes of the reopened segments, from a bug report of 2021."""


def _shared(number: int, nbytes: int) -> tuple[Operation, ...]:
    return (
        Operation("allocate", EXPORTER, makes=number, nbytes=nbytes),
        Operation("write", EXPORTER, on=number, stamp=number),
        Operation("open", IMPORTER, on=number, makes=number + 1),
        Operation("read", IMPORTER, on=number + 1),
    )


def _reopened() -> Iterable[Operation]:
    buffers = range(1, 2 * len(SIZES), 2)
    for number, nbytes in zip(buffers, SIZES, strict=True):
        yield from _shared(number, nbytes)
        yield Operation("close", IMPORTER, on=number + 1)
    yield Operation("end-context", IMPORTER)
    for number in buffers:
        yield Operation("open", IMPORTER, on=number, makes=number + 100)
        yield Operation("read", IMPORTER, on=number + 100)


_WRITTEN_BACK = (
    *_shared(1, 4 * MIB),
    Operation("write", IMPORTER, on=2, stamp=7),
    Operation("read", EXPORTER, on=1),
    Operation("write", EXPORTER, on=1, stamp=8),
    Operation("read", IMPORTER, on=2),
)

_OPENED_TWICE = (
    *_shared(1, 64 * KIB),
    Operation("open", IMPORTER, on=1, makes=3),
    Operation("close", IMPORTER, on=2),
    Operation("read", IMPORTER, on=3),
    *_shared(5, 64 * KIB),
    Operation("close", IMPORTER, on=3),
    Operation("read", IMPORTER, on=6),
)

_STALE = (
    *_shared(1, 2 * MIB),
    Operation("free-open", EXPORTER, on=1),
    *_shared(3, 2 * MIB),
    Operation("close", IMPORTER, on=2),
    Operation("read", IMPORTER, on=4),
)

_VMM = (
    Operation("create", EXPORTER, makes=1, nbytes=4 * MIB),
    Operation("map", EXPORTER, on=1, makes=2),
    Operation("write", EXPORTER, on=2, stamp=1),
    Operation("import", IMPORTER, on=1, makes=3),
    Operation("map", IMPORTER, on=3, makes=4),
    Operation("read", IMPORTER, on=4),
    Operation("write", IMPORTER, on=4, stamp=2),
    Operation("read", EXPORTER, on=2),
    Operation("unmap", IMPORTER, on=4),
    Operation("release", IMPORTER, on=3),
    Operation("read", EXPORTER, on=2),
)

_POOL = (
    Operation("create-pool", EXPORTER, makes=1),
    Operation("import-pool", IMPORTER, on=1, makes=2),
    Operation("allocate-from-pool", EXPORTER, on=1, makes=3, nbytes=4 * MIB),
    Operation("write", EXPORTER, on=3, stamp=1),
    Operation("import-pointer", IMPORTER, on=3, of=2, makes=4),
    Operation("read", IMPORTER, on=4),
    Operation("write", IMPORTER, on=4, stamp=2),
    Operation("read", EXPORTER, on=3),
    Operation("free-to-pool", IMPORTER, on=4),
    Operation("free-to-pool", EXPORTER, on=3),
)

_PROCEDURES: Mapping[str, tuple[Operation, ...]] = {
    "ipc-reopen": tuple(_reopened()),
    "ipc-peer": _WRITTEN_BACK,
    "ipc-handles": _OPENED_TWICE,
    "ipc-stale": _STALE,
    "ipc-vmm": _VMM,
    "ipc-pool": _POOL,
}
"""Check → one round of the check's procedure."""

CHECKS = tuple(_PROCEDURES)


def of_check(check: str, devices: Sequence[str]) -> History | None:
    """The check's procedure as a history on these devices; None if it cannot be written as one.

    The exporter uses the first device, the importer the last.
    """
    operations = _PROCEDURES.get(check)
    if not operations or not devices:
        return None
    last = len(devices) - 1
    plans = {EXPORTER: ProcessPlan(0), IMPORTER: ProcessPlan(last, primary=False)}
    backend = devices[0].partition(":")[0]
    whole = History(backend, plans, operations, peers=((0, last), (last, 0)), labels=tuple(devices))
    return whole.of(legal(whole))
