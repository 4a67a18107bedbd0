"""NVIDIA's ``dcgmi diag -r 1 -j``: its level 1, which tests the installation and stresses nothing.

Versions 3 and 4 differ in the JSON document's first key and in what names a GPU and a warning (NVIDIA/DCGM,
nvvs/include/NvvsCommon.h; dcgmi's tests; documents of 3.x and of 4.2.3 on others' nodes). No dcgmi was run
for this.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuipc_doctor.model import Json

COMMAND = ("diag", "-r", "1", "-j")

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
"""The document's first key: of version 4, and of version 3."""

_MAX_BYTES = 1 << 20

CONFIGURATION = 5
"""``DCGM_ERROR_CONFIG``: the least severe kind of error, a setting of the node."""


def run(wait_until: Callable[[Callable[[], bool], float], bool], limit_s: float) -> dict[str, Json]:
    """``program``: path, or empty if it is not found. ``exit``: code, None if it was killed after
    ``limit_s``. ``said``: the output's end, unless it is a document. Otherwise see `read`."""
    program = shutil.which("dcgmi")
    if not program:
        return {"program": ""}
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [program, *COMMAND],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return {"program": program, "exit": 127, "said": error.strerror or str(error)}
        if ended := wait_until(lambda: process.poll() is not None, limit_s):
            code = process.returncode
        else:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read(_MAX_BYTES).decode(errors="replace")
    told = read(text)
    return {"program": program, "exit": code if ended else None, **(told or {"said": _last(text)})}


def read(text: str) -> dict[str, Json] | None:
    """``version``, ``error`` (why DCGM could not test) and ``tests``: name, status, GPU, the warnings and
    whether all are of configuration. None if the text has no such document."""
    try:
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
        root = next(document[name] for name in _ROOTS if name in document)
        tests = [list(each) for each in _tests(root)]
    except (ValueError, StopIteration, TypeError, KeyError, AttributeError, RecursionError):
        return None
    version = document.get("metadata", {}).get("version") or root.get("version")
    return {"version": str(version or ""), "error": str(root.get("runtime_error") or ""), "tests": tests}


def _tests(root: dict[str, Any]) -> Iterator[tuple[str, str, str, list[str], bool]]:
    for category in _present(root.get("test_categories") or ()):
        for test in _present(category["tests"]):
            for result in _present(test["results"]):
                warnings = [_warning(each) for each in result.get("warnings") or ()]
                gpu = str(result.get("entity_id", result.get("gpu_ids", result.get("gpu_id", ""))))
                mild = bool(warnings) and all(severity == CONFIGURATION for _, severity in warnings)
                status = result["status"].upper()
                yield str(test["name"]), status, gpu, [text for text, _ in warnings], mild


def _present(entries: Iterable[Any]) -> Iterator[Any]:
    """Without the nulls that version 3 prints between entries."""
    return (entry for entry in entries if entry is not None)


def _warning(each: Any) -> tuple[str, int]:
    """The text, and its severity, which only version 4 has."""
    if isinstance(each, dict):
        return str(each["warning"]), int(each.get("error_severity", 0))
    return str(each), 0


def _last(text: str) -> str:
    """The last lines of a text."""
    return " ".join(line.strip() for line in text.splitlines()[-3:])[-300:]
