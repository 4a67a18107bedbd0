"""Where the test programs of libfabric and UCX are: looked up, never run.

They come with the library that they test, so they are looked for where its users find it: on ``PATH``,
beside the MPI in use, in the Python package that brings UCX, and in the directories of vendors, which HPE's
own packages leave outside ``PATH`` on some systems (shs-docs, release notes, known issue 2874751).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gpuipc_doctor.model import Program

NAMES = ("fi_info", "fi_pingpong", "ucx_info", "ucx_perftest")

_VENDORS = ("opt/cray/libfabric/*/bin", "opt/amazon/efa/bin")
"""Below a node's root: directories of libfabric that may not be on ``PATH``."""

_LIBRARIES = {"fi": "libfabric.so*", "ucx": "libucp.so*"}
"""By the first part of a program's name, the library that it is to be run with."""


def find(root: str, path: str, mpi_library: str | None, *, others: bool) -> dict[str, Program]:
    """The programs that are there, by name.

    ``path``: the ``PATH`` to search. ``mpi_library``: the MPI in use. ``others``: whether what is installed
    in this Python counts, too.
    """
    places = [(Path(one), "PATH") for one in path.split(os.pathsep) if one.startswith("/")]
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
    """Intel MPI's ``bin/fi_info`` is a script that wants its own set-up; the program is one level below."""
    for file in (directory / "libfabric" / name, directory / name):
        if file.is_file() and os.access(file, os.X_OK):
            return file
    return None


def _release(directory: Path) -> tuple[int, ...]:
    """``/opt/cray/libfabric/2.3.1/bin``: by which of several the newest is found."""
    return tuple(int(part) if part.isdigit() else 0 for part in directory.parent.name.split("."))


def environment(file: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a program is to be started with: the library that came with it first, where one did."""
    pattern = _LIBRARIES[Path(file).name.partition("_")[0]]
    found = next((lib for lib in _beside(Path(file)) if next(lib.glob(pattern), None)), None)
    if found is None:
        return dict(environ)
    present = environ.get("LD_LIBRARY_PATH")
    return {**environ, "LD_LIBRARY_PATH": f"{found}:{present}" if present else str(found)}


def _beside(file: Path) -> Iterator[Path]:
    for prefix in list(file.resolve().parents)[1:3]:
        if prefix not in (Path("/"), Path("/usr")):  # whose libraries are found anyway
            yield from (prefix / "lib64", prefix / "lib")
