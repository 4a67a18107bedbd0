"""Reports that a user names."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor.model import Report
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
