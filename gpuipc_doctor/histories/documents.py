"""History files: the input of `gpuipc-doctor replay`, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuipc_doctor.histories import (
    c_program,
    memory_model,
    memory_operations,
    message_model,
    message_operations,
    message_steps,
    mpi_program,
    procedures,
    steps,
)
from gpuipc_doctor.histories.operations import IPC, MPI, VERSION, History
from gpuipc_doctor.model import Status
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.vendors import SUPPORTED

MOST_BYTES = 64 << 20
"""Maximum size of a history file."""


class BadHistory(Exception):
    """A file without a history that can be replayed; the message says why and where."""


def parse(data: bytes) -> History:
    """The history in a history file, or in the first finding of a JSON report that has a history."""
    import msgspec

    if len(data) > MOST_BYTES:
        raise BadHistory(f"larger than {MOST_BYTES >> 20} MiB")
    try:
        document = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise BadHistory(f"no history: {error}") from error
    return read(_in_report(document))


def read(document: Any) -> History:
    """Validate a history that was parsed from JSON. Raises `BadHistory`."""
    import msgspec

    try:
        history = msgspec.convert(document, History, strict=False)
    except msgspec.MsgspecError as error:
        raise BadHistory(f"no history: {error}") from error
    if history.version != VERSION:
        raise BadHistory(f"version {history.version} of the format; this gpuipc-doctor reads {VERSION}")
    if history.check not in (IPC, MPI):
        raise BadHistory(f"check {history.check!r} performs no histories; use {IPC} or {MPI}")
    if history.backend not in SUPPORTED:
        raise BadHistory(f"unknown backend {history.backend!r}; use {' or '.join(SUPPORTED)}")
    _verify(history)
    return history


def reproducer(report: Report) -> History:
    """The history of a finding, or the procedure of a failed hand-written check. Raises `BadHistory`."""
    bad = [result for result in report.results if result.finding.status in (Status.FAIL, Status.WARN)]
    for result in bad:
        if history := result.finding.values.get("history"):
            return read(history)
    for result in bad:
        if result.finding.status is Status.FAIL and (
            known := procedures.of_check(result.check, result.devices)
        ):
            return known
    raise BadHistory(f"only failures of {', '.join((IPC, MPI, *procedures.CHECKS))} can be written in C")


def sentences(history: History) -> Sequence[str]:
    """The history as numbered steps."""
    return message_steps.steps(history) if history.check == MPI else steps.steps(history)


def program(history: History) -> str:
    """The history as a C program. Raises `c_program.NotInC`."""
    return mpi_program.source(history) if history.check == MPI else c_program.source(history)


def schema() -> dict[str, Any]:
    """The JSON Schema of a history file."""
    import msgspec

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(History)}


def _in_report(document: Any) -> Any:
    if not isinstance(document, dict) or "results" not in document:
        return document
    for result in document["results"]:
        if history := result.get("finding", {}).get("values", {}).get("history"):
            return history
    raise BadHistory(f"the report has no history: {IPC} and {MPI} found nothing or did not run")


def _verify(history: History) -> None:
    known: memory_model.Model | message_model.Model
    if history.check == MPI:
        known, names = message_model.Model(history), message_operations.TYPES.keys()
    else:
        known, names = memory_model.Model(history), memory_operations.TYPES.keys()
    for number, operation in enumerate(history.operations, 1):
        if operation.do not in names:
            raise BadHistory(f"step {number}: unknown operation {operation.do!r}")
        if why := known.illegal(operation):
            raise BadHistory(f"step {number} ({operation.do}) is not valid on {history.backend}: {why}")
        known.apply(operation)
    if isinstance(known, message_model.Model) and (unmatched := known.unmatched()):
        raise BadHistory(f"step {min(unmatched) + 1}: no send or receive matches this operation")
