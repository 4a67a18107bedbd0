"""What the surveys' role functions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuipc_doctor.api import Worker
from gpuipc_doctor.node_files import shown

FactRow = tuple[str, str | None, str]
"""Name, value and source of a fact."""


def record(w: Worker, *facts: FactRow) -> None:
    """Each fact under a key of its own, so that nothing is lost to what happens later."""
    for name, value, source in facts:
        w.record(**{f"{name} {source}": [name, value, source]})


def load(w: Worker, library: str, facts: Iterable[str]) -> Any:
    """The library as `ctypes` gives it, or None after recording of each fact why it is not known."""
    import ctypes

    try:
        with w.armed(f"load {library}"):
            return ctypes.CDLL(library)
    except OSError as error:
        record(w, *((fact, None, shown(str(error))) for fact in facts))
        return None
