"""The shared libraries that a process has loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from gpuipc_doctor.model import Fact

LIBRARIES = {
    "libfabric": "libfabric.so",
    "libfabric-providers": "libfabric.so",
    "shs-libfabric": "libfabric.so",
    "ucx": "libucp.so",
    "ucx-modules": "libucp.so",
    "psm2": "libpsm2.so",
}
"""Inventory fact → prefix of its library's file name."""


def mapped_files() -> set[str]:
    """Paths of the shared libraries in this process. Raises `OSError`."""
    with Path("/proc/self/maps").open(errors="replace") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    return {path for path in paths if ".so" in Path(path).name}


def fabric() -> list[str] | None:
    """Paths of those `LIBRARIES` that are loaded in this process; None if unknown."""
    names = tuple(LIBRARIES.values())
    try:
        return sorted(path for path in mapped_files() if Path(path).name.startswith(names))
    except OSError:
        return None


def facts_of_loaded(facts: Iterable[Fact], paths: Collection[str]) -> tuple[Fact, ...]:
    """The facts, except those on fabric libraries that are not in ``paths``."""
    return tuple(fact for fact in facts if fact.name not in LIBRARIES or _is_at_any(fact, paths))


def _is_at_any(fact: Fact, paths: Collection[str]) -> bool:
    """Whether the library of a fact is among ``paths``.

    If the fact's source names a file, only that file counts; otherwise any file of the library.
    """
    library = f"/{LIBRARIES[fact.name]}"
    read_in = {os.path.realpath(word.rstrip(";,)")) for word in fact.source.split() if library in word}
    found = {os.path.realpath(path) for path in paths if library in path}
    return bool(read_in & found) if read_in else bool(found)
