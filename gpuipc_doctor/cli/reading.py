"""Reports and inventories that a user names."""

from __future__ import annotations

import json
from pathlib import Path

from gpuipc_doctor.model import Fact, Report
from gpuipc_doctor.report import document
from gpuipc_doctor.yamlfile import BadFile, Mistake


def report(path: Path) -> Report:
    """The report in a file. Raises `BadFile`."""
    try:
        return document.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile([Mistake(path, 0, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise BadFile([Mistake(path, 0, "this is not a report: it is no text")]) from None
    except document.BadDocument as bad:
        text = f"{bad}; write one with `gpuipc-doctor check --output FILE`"
        raise BadFile([Mistake(path, 0, text)]) from None


def inventory(path: Path) -> tuple[Fact, ...]:
    """The facts in a file that ``gpuipc-doctor inventory --json`` wrote. Raises `BadFile`."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))["facts"]
        return tuple(Fact(str(one["name"]), one["value"], str(one["source"])) for one in facts)
    except OSError as error:
        raise BadFile([Mistake(path, 0, f"cannot be read: {error.strerror}")]) from None
    except (ValueError, LookupError, TypeError):
        text = "is no inventory; write one with `gpuipc-doctor inventory --json`"
        raise BadFile([Mistake(path, 0, text)]) from None
