"""Results that HPE's ``cxi_healthcheck`` has left in its ``--status_dir``, read and never repeated.

It takes root and up to a minute, and sites run it from Slurm already. The lines are those of its summary,
``Check: link_flap_check  Result: Pass`` (shs-docs, troubleshoot/cxi/CXI_Healthcheck.md); that the files in
that directory hold the same lines is a guess, so files without any are passed over.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

_LINE = re.compile(r"^\s*Check: +(\S+) +Result: +(\w+)", re.MULTILINE)

_MAX_BYTES = 1 << 16
_MAX_FILES = 64


def results(directory: Path) -> list[dict[str, str]]:
    """A result for each line of each file: its ``check``, ``result``, ``file`` and when that was written."""
    found = []
    for file in sorted(path for path in directory.glob("*") if path.is_file())[:_MAX_FILES]:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES).decode(errors="replace")
        when = datetime.fromtimestamp(file.stat().st_mtime).astimezone().isoformat(" ", "minutes")
        found += [
            {"check": check, "result": result, "file": str(file), "when": when}
            for check, result in _LINE.findall(text)
        ]
    return found
