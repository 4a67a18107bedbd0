"""Reports and inventories that a user names."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor.model import Fact, Report
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report.documents import BadDocument
from gpuipc_doctor.site import bounded
from gpuipc_doctor.site.yamlfile import BadFile, Mistake

MAX_BYTES = 64 << 20
"""A thousand repetitions on eight GPUs are less."""


def report(path: Path) -> Report:
    """The report in a file. Raises `BadFile`."""
    try:
        text = bounded.read(path, MAX_BYTES).decode()
        return report_json.loads(text)
    except bounded.Unreadable as reason:
        raise BadFile([Mistake(path, 0, str(reason))]) from None
    except UnicodeDecodeError:
        raise BadFile([Mistake(path, 0, "this is not a report: it is no text")]) from None
    except BadDocument as bad:
        text = f"{bad}; write one with `gpuipc-doctor check --output FILE`"
        raise BadFile([Mistake(path, 0, text)]) from None


def inventory(path: Path) -> tuple[Fact, ...]:
    """The facts in a file that ``inventory --json`` wrote, or ``check --output``. Raises `BadFile`."""
    try:
        document = bounded.read_json(path, MAX_BYTES)
        facts = document["inventory" if "inventory" in document else "facts"]
        return tuple(_fact(one["name"], one["value"], one["source"]) for one in facts)
    except bounded.Unreadable as reason:
        raise BadFile([Mistake(path, 0, str(reason))]) from None
    except (LookupError, TypeError):
        text = "has no inventory; write one with `gpuipc-doctor inventory --json`"
        raise BadFile([Mistake(path, 0, text)]) from None


def _fact(name: object, value: object, source: object) -> Fact:
    if not (isinstance(name, str) and isinstance(value, str | None) and isinstance(source, str)):
        raise TypeError("a fact is made of texts")
    return Fact(name, value, source)
