"""History files: what `gpuipc-doctor replay` reads, and the schema that its types make."""

from __future__ import annotations

from typing import Any

from gpuipc_doctor.histories import procedures
from gpuipc_doctor.histories.model import Model
from gpuipc_doctor.histories.operations import VERSION, History
from gpuipc_doctor.histories.steps import SENTENCES
from gpuipc_doctor.model import Report, Status

MOST_BYTES = 64 << 20
"""Of a file that is read."""


class BadHistory(Exception):
    """A file that holds no history that can be replayed; the text says what is wrong, and where."""


def parse(data: bytes) -> History:
    """The history in a history file, or in a JSON report: that of the first finding which has one."""
    import msgspec

    if len(data) > MOST_BYTES:
        raise BadHistory(f"larger than {MOST_BYTES >> 20} MiB")
    try:
        document = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise BadHistory(f"no history: {error}") from error
    return read(_in_report(document))


def read(document: Any) -> History:
    """A history that was read from JSON. Raises `BadHistory`."""
    import msgspec

    try:
        history = msgspec.convert(document, History, strict=False)
    except msgspec.MsgspecError as error:
        raise BadHistory(f"no history: {error}") from error
    if history.version != VERSION:
        raise BadHistory(f"version {history.version} of the format; this gpuipc-doctor reads {VERSION}")
    if history.backend not in ("cuda", "hip"):
        raise BadHistory(f"no backend {history.backend!r}; there are cuda and hip")
    _verify(history)
    return history


def reproducer(report: Report) -> History:
    """The history of a finding, else the procedure of a check that failed. Raises `BadHistory`."""
    bad = [one for one in report.results if one.finding.status in (Status.FAIL, Status.WARN)]
    for result in bad:
        if history := result.finding.values.get("history"):
            return read(history)
    for result in bad:
        if result.finding.status is Status.FAIL and (
            known := procedures.of_check(result.check, result.devices)
        ):
            return known
    raise BadHistory(f"nothing failed of ipc-histories, {', '.join(procedures.CHECKS)}")


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
    raise BadHistory("a report without a history: ipc-histories found nothing, or did not run")


def _verify(history: History) -> None:
    """Raise what is wrong with the first operation that must not come where it stands."""
    model = Model(history)
    for number, operation in enumerate(history.operations, 1):
        if operation.do not in SENTENCES:
            raise BadHistory(f"step {number}: no operation {operation.do!r}")
        if why := model.illegal(operation):
            raise BadHistory(f"step {number} ({operation.do}) is not legal on {history.backend}: {why}")
        model.apply(operation)
