"""Functions that all surveys use: record facts, load a library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import shown

FactRow = tuple[str, str | None, str]
"""(name, value, source) of a fact."""


def record(w: Worker, *facts: FactRow) -> None:
    """Record each fact under its own key, so that none is lost if the worker fails later."""
    for name, value, source in facts:
        w.record(**{f"{name} {source}": [name, value, source]})


def load(w: Worker, library: str, facts: Iterable[str]) -> Any:
    """Load the library with `ctypes`. If that fails, record the reason for each fact, and return None."""
    import ctypes

    try:
        with w.armed(f"load {library}"):
            return ctypes.CDLL(library)
    except OSError as error:
        record(w, *((fact, None, shown(str(error))) for fact in facts))
        return None
