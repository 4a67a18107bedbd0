"""Find the test programs of libfabric and UCX, without running them.

The programs come with the library that they test, so they are searched next to it: on ``PATH``, next to the
MPI in use, in the Python package with UCX, and in vendors' directories, which HPE's packages do not add to
``PATH`` on some systems (shs-docs, release notes, known issue 2874751).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gpuipc_doctor.probe_types import Program

NAMES = ("fi_info", "fi_pingpong", "ucx_info", "ucx_perftest")

_VENDORS = ("opt/cray/libfabric/*/bin", "opt/amazon/efa/bin")
"""Directories of libfabric, below a node's root, that may not be on ``PATH``."""

_LIBRARIES = {"fi": "libfabric.so*", "ucx": "libucp.so*"}
"""First part of a program's name → its library."""


def find(root: str, path: str, mpi_library: str | None, *, others: bool) -> dict[str, Program]:
    """Name → program found.

    ``path``: the ``PATH`` to search. ``mpi_library``: the MPI in use. ``others``: whether to search this
    Python's packages too.
    """
    places = [(Path(part), "PATH") for part in path.split(os.pathsep) if part.startswith("/")]
    if mpi_library:
        places += [
            (parent / "bin", f"beside {mpi_library}")
            for parent in list(Path(mpi_library).absolute().parents)[:3]
        ]
    if others and (package := find_spec("libucx")) and package.submodule_search_locations:
        places.append((Path(package.submodule_search_locations[0]) / "bin", "the Python package libucx"))
    for pattern in _VENDORS:
        found = sorted(Path(root).glob(pattern), key=_release, reverse=True)
        places += [(directory, "not on PATH") for directory in found]
    programs: dict[str, Program] = {}
    for name in NAMES:
        for directory, via in places:
            if file := _program(directory, name):
                programs[name] = Program(str(file), via)
                break
    return programs


def _program(directory: Path, name: str) -> Path | None:
    """The program's file. Intel MPI's ``bin/fi_info`` is a script that needs its own set-up; the program
    itself is one level below."""
    for file in (directory / "libfabric" / name, directory / name):
        if file.is_file() and os.access(file, os.X_OK):
            return file
    return None


def _release(directory: Path) -> tuple[int, ...]:
    """The version in a path such as ``/opt/cray/libfabric/2.3.1/bin``, as a sort key."""
    return tuple(int(part) if part.isdigit() else 0 for part in directory.parent.name.split("."))


def environment(file: str, environ: Mapping[str, str]) -> dict[str, str]:
    """A program's environment, in which its own library is found first if it has one."""
    pattern = _LIBRARIES[Path(file).name.partition("_")[0]]
    found = next((lib for lib in _beside(Path(file)) if next(lib.glob(pattern), None)), None)
    if found is None:
        return dict(environ)
    present = environ.get("LD_LIBRARY_PATH")
    return {**environ, "LD_LIBRARY_PATH": f"{found}:{present}" if present else str(found)}


def _beside(file: Path) -> Iterator[Path]:
    for prefix in list(file.resolve().parents)[1:3]:
        if prefix not in (Path("/"), Path("/usr")):  # its libraries are found anyway
            yield from (prefix / "lib64", prefix / "lib")
