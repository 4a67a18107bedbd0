"""Read results of HPE's ``cxi_healthcheck`` from its ``--status_dir``; it is never run.

A run needs root and up to a minute, and sites already run it from Slurm. The format is that of its summary,
``Check: link_flap_check Result: Pass`` (shs-docs, troubleshoot/cxi/CXI_Healthcheck.md); that the files in
this directory use the same format is a guess, so files without such lines are ignored.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from gpuipc_doctor.files import reading

_LINE = re.compile(r"^\s*Check: +(\S+) +Result: +(\w+)", re.MULTILINE)

_MAX_BYTES = 1 << 16
_MAX_FILES = 64


def results(directory: Path) -> list[dict[str, str]]:
    """The results in each file: ``check``, ``result``, ``file`` and modification time."""
    found = []
    for file in sorted(path for path in directory.glob("*") if path.is_file())[:_MAX_FILES]:
        try:
            text = reading.sample(file, _MAX_BYTES).decode(errors="replace")
        except reading.Unreadable:
            continue
        when = datetime.fromtimestamp(file.stat().st_mtime).astimezone().isoformat(" ", "minutes")
        found += [
            {"check": check, "result": result, "file": str(file), "when": when}
            for check, result in _LINE.findall(text)
        ]
    return found
