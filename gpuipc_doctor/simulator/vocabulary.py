"""Names shared by profiles and simulated drivers, from the tables used to build the drivers.

A call has one name for all vendors: ``ipc-open`` is ``cuIpcOpenMemHandle`` and ``hipIpcOpenMemHandle``. An
error also has one name: ``INVALID_HANDLE`` is ``CUDA_ERROR_INVALID_HANDLE`` and ``hipErrorInvalidHandle``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_SOURCES = Path(__file__).with_name("src")
PREFIXES = {"cuda": "cu", "hip": "hip", "ze": "ze"}
"""Backend → prefix of its symbols in ``calls.table``, in the order of the columns of ``errors.def``."""


@cache
def calls() -> Mapping[str, Mapping[str, str]]:
    """Call → backend → name known to users, without a version suffix (``_v2``)."""
    names: dict[str, dict[str, str]] = {}
    call = ""
    for line in (_SOURCES / "calls.table").read_text().splitlines():
        if row := re.match(r"([a-z0-9-]+):", line):
            call = row[1]
            names.setdefault(call, {})
        elif line.startswith(" "):
            for symbol in line.split():
                name = re.sub(r"(_v\d+)?(@.*)?$", "", symbol)
                for backend, prefix in PREFIXES.items():
                    if name.startswith(prefix):
                        names[call].setdefault(backend, name)
    return names


@cache
def described_errors() -> tuple[tuple[int, str, Mapping[str, str]], ...]:
    """(code, text, backend → the driver's name) of each error. All vendors use CUDA's codes, HIP not all."""
    text = (_SOURCES / "errors.def").read_text()
    rows = re.findall(r'^ERROR\(\w+, (\d+), "([^"]*)",\s+(.*)\)$', text, re.M)
    columns = ((int(code), says, re.findall(r'"(\w+)"|NULL', names)) for code, says, names in rows)
    return tuple(
        (code, says, {backend: name for backend, name in zip(PREFIXES, names, strict=False) if name})
        for code, says, names in columns
    )


@cache
def errors() -> Mapping[str, tuple[int, Mapping[str, str]]]:
    """Error → (code, backend → the driver's name). The key is CUDA's name without its common prefix:
    ``INVALID_HANDLE``."""
    return {
        names["cuda"].removeprefix("CUDA_ERROR_"): (code, names)
        for code, _, names in described_errors()
        if "cuda" in names
    }


def of_vendor(backend: str) -> Mapping[str, str]:
    """Names of all calls and errors for one vendor."""
    words = {call: names[backend] for call, names in calls().items() if backend in names}
    return words | {error: names[backend] for error, (_, names) in errors().items() if backend in names}
