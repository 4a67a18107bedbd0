"""Read reports and inventories from files named by the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.yamlfile import BadFile, Mistake
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report.json_documents import BadDocument, ForeignDocument
from gpuipc_doctor.report_types import Report

if TYPE_CHECKING:
    from gpuipc_doctor.job.document import JobReport

MAX_BYTES = 64 << 20
"""Maximum bytes of a file. The report of a thousand repetitions on eight GPUs is smaller."""

_WRITES = "`gpuipc-doctor check --output FILE` writes a report"


def report(path: Path) -> Report:
    """The node report in a file. Raises `BadFile`."""
    try:
        return report_json.loads(_text(path))
    except BadDocument as bad:
        raise _mistake(path, f"{bad}; {_WRITES}") from None


def job(path: Path) -> JobReport:
    """The report of a job in a file. Raises `BadFile`."""
    from gpuipc_doctor.job import document

    try:
        return document.loads(_text(path))
    except BadDocument as bad:
        raise _mistake(path, f"{bad}; write one with `gpuipc-doctor job --save FILE`") from None


def report_or_job(path: Path) -> Report | JobReport:
    """The node or job report in a file. Raises `BadFile`."""
    from gpuipc_doctor.job import document

    text = _text(path)
    try:
        return report_json.loads(text)
    except ForeignDocument as foreign:
        if document.is_of_job(text):
            return job(path)
        raise _mistake(
            path, f"{foreign}; give a report of `check --output FILE` or of `job --save FILE`"
        ) from None
    except BadDocument as bad:
        raise _mistake(path, f"{bad}; {_WRITES}") from None


def _text(path: Path) -> str:
    try:
        content = reading.read(path, MAX_BYTES).decode()
    except reading.Unreadable as reason:
        of_fleet = str(reason) == reading.DIRECTORY
        meant = "of a fleet: `gpuipc-doctor fleet report DIR` or `fleet compare`" if of_fleet else _WRITES
        raise _mistake(path, f"{reason}; {meant}") from None
    except UnicodeDecodeError:
        raise _mistake(path, f"this is not a report: it is not text; {_WRITES}") from None
    if not content.strip():
        raise _mistake(path, f"the file is empty; {_WRITES}")
    return content


def _mistake(path: Path, text: str) -> BadFile:
    return BadFile([Mistake(path, 0, text)])


def _json(path: Path) -> Any:
    try:
        return reading.read_json(path, MAX_BYTES)
    except reading.Unreadable as reason:
        raise _mistake(path, f"{reason}; write one with `gpuipc-doctor inventory --json`") from None


def is_inventory(path: Path) -> bool:
    """Whether the file is an inventory (``inventory --json``). Raises `BadFile`."""
    document = _json(path)
    return isinstance(document, dict) and "facts" in document


def inventory(path: Path) -> tuple[Fact, ...]:
    """The facts in a file from ``inventory --json`` or ``check --output``. Raises `BadFile`."""
    document = _json(path)
    try:
        facts = document["inventory" if "inventory" in document else "facts"]
        return tuple(_fact(fact["name"], fact["value"], fact["source"]) for fact in facts)
    except (LookupError, TypeError):
        text = "has no inventory; write one with `gpuipc-doctor inventory --json`"
        raise _mistake(path, text) from None


def _fact(name: object, value: object, source: object) -> Fact:
    if not (isinstance(name, str) and isinstance(value, str | None) and isinstance(source, str)):
        raise TypeError("a fact must consist of strings")
    return Fact(name, value, source)
