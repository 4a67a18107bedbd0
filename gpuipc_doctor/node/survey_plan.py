"""Queries that run in workers, because a driver or a foreign library may hang or crash.

To the engine, `Surveys` is a check, and each survey is a probe with its own process and deadline. If one
hangs, only the facts that its ``params["facts"]`` names are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from gpuipc_doctor.api import Check, Context, Finding, Json, Probe, ProbeOutcome, Worker
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.node.libraries import Libraries
from gpuipc_doctor.node.survey_devices import bridges, nvidia
from gpuipc_doctor.node.survey_libraries import MPI4PY, MPI_FACTS, libfabric, mpi, mpi4py, nccl, ucx
from gpuipc_doctor.node.survey_programs import PACKAGE_MANAGERS, PACKAGES, PROGRAMS, packages, version
from gpuipc_doctor.vendors import SUPPORTED

DEADLINE_S = 5.0
"""Seconds for each call of a driver or library, and for each program."""

MOST_MPI_LIBRARIES = 3
"""Maximum MPI libraries queried, those in use first."""

_MPI_SONAMES = ("libmpi.so.12", "libmpi.so.40", "libmpi_[acgn]*.so.12")
_PREFIXED = ("lib64", "lib", "lib/*-linux-gnu", "lib/release")

_PACKAGE_SIGNS = ("/sys/class/cxi", "/sys/module/xe", "/sys/module/i915")
"""Files of drivers whose packages' versions are known only to the package manager."""


class Surveys(Check):
    """The surveys of a node. Options: ``root``; ``foreign``: whether to load and run libraries and programs
    that the environment names; ``mpi``: an MPI library that is queried even on a simulated node; ``rooms``:
    see `survey_room.rooms`, None if the run needs no device memory."""

    id = "inventory"
    title = "versions that drivers and libraries report"

    def probes(self, ctx: Context) -> Iterator[Probe]:
        tree = Tree(Path(ctx.options["root"]))
        if tree.exists("/proc/driver/nvidia"):
            facts = ("gpu-model", "mig", "compute-mode", "persistence", "gpu-serials", "nvlink-peers")
            yield _probe("nvidia", nvidia, facts, root=str(tree.root), rooms=ctx.options["rooms"])
        if next(tree.glob("/sys/bus/pci/devices/*/config"), None):
            yield _probe("pci", bridges, ("acs",), root=str(tree.root))
        if ctx.options["foreign"] and (named := ctx.options["mpi"]):
            yield _probe("mpi", mpi, MPI_FACTS, library=str(Path(named).absolute()))
        if ctx.options["foreign"] and tree.is_real:
            yield from _foreign(tree, os.environ)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        yield Finding.ok("asked", "the installed drivers and libraries were asked for their versions")


_COLLECTIVES = [vendor.collectives for vendor in SUPPORTED.values()]

LOOKED_FOR: Mapping[str, str] = {
    **dict.fromkeys(
        ("mig", "compute-mode", "persistence"), "no /proc/driver/nvidia, so NVML was not queried"
    ),
    "acs": "no /sys/bus/pci/devices/*/config",
}
"""Fact from drivers and devices → why no survey looked for it."""

LOOKED_FOR_FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(MPI_FACTS, "no MPI found by mpi4py, by the loader, next to mpiexec or in CRAY_MPICH_DIR"),
    "libfabric-providers": "no libfabric.so.1",
    **{each.fact: f"no {each.soname}" for each in _COLLECTIVES},
    **{fact: f"no {', '.join(names)} on PATH" for fact, (names, _, _) in PROGRAMS.items()},
    **dict.fromkeys(PACKAGES.values(), f"packages were not queried: no {', '.join(_PACKAGE_SIGNS)}"),
}
"""Fact that depends on the environment → why no survey looked for it."""


def _probe(name: str, role: Callable[[Worker], None], facts: Iterable[str], **params: Json) -> Probe:
    return Probe(name, {name: role}, params={"facts": list(facts), **params}, deadline_s=DEADLINE_S)


def _foreign(tree: Tree, environ: Mapping[str, str]) -> Iterator[Probe]:
    from importlib.util import find_spec

    libraries = Libraries(tree, environ)
    if find_spec("mpi4py"):
        yield _probe("mpi4py", mpi4py, (MPI4PY,))
    for number, file in enumerate(mpi_libraries(tree, libraries, environ)[:MOST_MPI_LIBRARIES]):
        yield _probe(f"mpi-{number}", mpi, MPI_FACTS, library=file)
    for name, role, soname, facts in (
        ("ucx", ucx, "libucp.so.0", ("ucx",)),
        ("libfabric", libfabric, "libfabric.so.1", ("libfabric", "shs-libfabric", "libfabric-providers")),
        *((each.fact, nccl, each.soname, (each.fact,)) for each in _COLLECTIVES),
    ):
        if library := libraries.find(soname):
            yield _probe(name, role, facts, library=library.file)
    for fact, (names, arguments, expression) in PROGRAMS.items():
        if program := _first_program(tree, environ, names):
            yield _probe(fact, version, (fact,), command=[program, *arguments], expression=expression)
    manager = _first_program(tree, environ, PACKAGE_MANAGERS)
    if manager and any(map(tree.exists, _PACKAGE_SIGNS)):
        yield _probe("packages", packages, dict.fromkeys(PACKAGES.values()), manager=manager)


def mpi_libraries(tree: Tree, libraries: Libraries, environ: Mapping[str, str]) -> list[str]:
    """MPI libraries that a process may load: those next to `mpiexec`, those of a Cray module, and those that
    the loader finds. Links to a library that is already listed are omitted."""
    prefixes = [environ.get("CRAY_MPICH_DIR", "")]
    if launcher := _first_program(tree, environ, ("mpiexec",)):
        prefixes.insert(0, str(Path(tree.real_name(launcher)).parent.parent))
    places = [f"{prefix}/{lib}" for prefix in prefixes if prefix.startswith("/") for lib in _PREFIXED]
    files = [file for place in places for soname in _MPI_SONAMES for file in tree.glob(f"{place}/{soname}")]
    files += [library.file for soname in _MPI_SONAMES for library in libraries.matching(soname)]
    found: dict[str, str] = {}
    for file in files:
        found.setdefault(tree.real_name(file), file)
    return list(found.values())


def _first_program(tree: Tree, environ: Mapping[str, str], names: Iterable[str]) -> str:
    directories = [part for part in environ.get("PATH", "").split(":") if part.startswith("/")]
    files = (f"{directory}/{name}" for name in names for directory in directories)
    return next((file for file in files if os.access(tree.path(file), os.X_OK)), "")


CHECK = Surveys()
