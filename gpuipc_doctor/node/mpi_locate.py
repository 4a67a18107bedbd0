"""Choose the MPI library and the launcher, without loading the library.

This runs in the supervising process, which loads no MPI. Only a worker identifies the library
(`mpi_survey.survey`); the launcher for it is chosen afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuipc_doctor.node import elf, mpi_flux, mpi_slurm, mpi_verbosity
from gpuipc_doctor.node.mpi_identity import Identity
from gpuipc_doctor.probe_types import Launch
from gpuipc_doctor.site.launcher import literal, words

_OPEN_MPI_SONAMES = ("libmpi.so.40", "libmpi.so.20")
_MPICH_SONAMES = ("libmpi.so.12", "libmpich.so.12")
_MPICH_LAUNCHERS = ("hydra", "mpich", "gforker")
"""Parts of file names by which MPICH's launcher is recognised in a directory with two launchers."""


class NotFound(Exception):
    """A missing library or launcher. ``reason`` names it, ``remedy`` is the instruction."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Library:
    """The chosen MPI library, and how it was chosen. ``path`` is None if mpi4py searches for the library."""

    path: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Launcher:
    """The chosen launcher. If ``srun`` was not chosen because it cannot load a rank interface, ``refused`` is
    this interface."""

    launch: Launch
    source: str
    refused: str = ""


def find_library(asked: str | None, configured: str | None, environment: Mapping[str, str]) -> Library:
    """The MPI library, and how it was chosen. The first of these is used: ``--mpi-lib``, the site config,
    MPI4PY_LIBMPI, the library next to the ``mpiexec`` on PATH, the library that mpi4py finds. An mpi4py that
    was built for one MPI always uses that MPI. Raises `NotFound`."""
    linked = _linked_mpi4py()
    for path, source in ((asked, "--mpi-lib"), (configured, "mpi.library of the site config")):
        if not path:
            continue
        if linked:
            raise NotFound(
                f"{source} has no effect: this mpi4py was built for one MPI and loads no other",
                "install mpi4py from PyPI (4.1 or later), whose wheels load any MPI",
            )
        if not Path(path).is_file():
            raise NotFound(f"{source}: file not found: {path}", "name the library itself: …/lib/libmpi.so.…")
        if not elf.is_elf(Path(path)):
            others = _libraries_in(Path(path).absolute().parent)
            raise NotFound(
                f"{source}: {path} is a text file, not a library (wheels have such files instead of links)",
                f"name the library itself: {others[0] if others else '…/libmpi.so.…'}",
            )
        if elf.is_foreign(Path(path)):
            machine = elf.machine(Path(path))
            raise NotFound(
                f"{source}: {path} is a library for {machine}, and this node is {platform.machine()}",
                "name the library for this machine",
            )
        return Library(str(Path(path).absolute()), source)
    if linked:
        return Library(None, f"the MPI that {linked} was built for")
    if environment.get("MPI4PY_LIBMPI"):
        return Library(None, "MPI4PY_LIBMPI")
    if (mpiexec := shutil.which("mpiexec", path=environment.get("PATH"))) and (
        beside := _library_beside(Path(mpiexec))
    ):
        return Library(str(beside), f"the library beside {mpiexec}")
    return Library(None, "mpi4py's own search")


def _libraries_in(directory: Path) -> list[Path]:
    """The MPI libraries in a directory, usual names first."""
    usual = [directory / name for name in (*_OPEN_MPI_SONAMES, *_MPICH_SONAMES)]
    others = sorted(directory.glob("libmpi*.so.*"))
    return [
        path
        for path in dict.fromkeys((*usual, *others))
        if path.is_file() and elf.is_elf(path) and not elf.is_foreign(path)
    ]


def _linked_mpi4py() -> Path | None:
    """mpi4py's extension module; None if mpi4py is from a wheel, which has several."""
    spec = importlib.util.find_spec("mpi4py")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("MPI.cpython*.so", "MPI.abi3*.so", "MPI.so"):
            for module in Path(directory).glob(pattern):
                return module
    return None


def _library_beside(mpiexec: Path) -> Path | None:
    real = mpiexec.resolve()  # in distributions a link: mpiexec, /etc/alternatives/mpirun, orterun
    names = [*_OPEN_MPI_SONAMES, *_MPICH_SONAMES]
    if any(part in real.name for part in _MPICH_LAUNCHERS):
        names = [*_MPICH_SONAMES, *_OPEN_MPI_SONAMES]
    prefix = real.parent.parent
    directories = [
        prefix / "lib",
        prefix / "lib/release",
        prefix / "lib64",
        *(prefix / "lib").glob("*-linux-gnu"),
    ]
    paths = (directory / name for name in names for directory in directories)
    return next((path for path in paths if path.exists() and not elf.is_foreign(path)), None)


def find_launcher(
    identity: Identity,
    library: str,
    template: str,
    environment: Mapping[str, str],
    *,
    nodes: int = 1,
    hosts: Sequence[str] = (),
    added: Mapping[str, str] | None = None,
) -> Launcher:
    """How to start ranks of ``library``, on the nodes ``hosts`` if given.

    The first possible of these is used: the site's template; ``flux run`` in a Flux instance; ``srun`` in a
    Slurm allocation, if srun can start the ranks; the library's ``mpiexec``; the one on PATH. ``added``:
    variables for launcher and ranks that are not in the tool's environment; ``environment`` includes them.
    The command keeps the placeholder ``{ranks}``. On several nodes each node gets one rank. Raises
    `NotFound`, also if the allocation is known to have too few nodes.
    """
    env = {**(added or {}), **_environment(identity, library, environment)}
    if template:
        if nodes > 1 and "{nodes}" not in template:
            raise NotFound(
                f"mpi.launcher of the site config cannot start ranks on {nodes} nodes: {{nodes}} is missing",
                "use {nodes} as the number of nodes, as in srun -N{nodes}",
            )
        launch = _from_template(template, env, nodes)
        if hosts:
            launch = replace(launch, command=_on_hosts(launch.command, hosts))
        return Launcher(launch, "mpi.launcher of the site config")
    if program := mpi_flux.program(environment):
        command = (*mpi_flux.command(program, nodes, hosts, identity), "-n{ranks}")
        return Launcher(Launch(command, env, nodes), mpi_flux.SOURCE)
    if nodes > (has := int(environment.get("SLURM_JOB_NUM_NODES", nodes))):
        raise NotFound(
            f"ranks on {nodes} nodes requested, but this Slurm allocation has {has}",
            f"run in a larger allocation: salloc -N{nodes}",
        )
    srun = shutil.which("srun", path=environment.get("PATH"))
    refused = ""
    if srun and "SLURM_JOB_ID" in environment and mpi_slurm.starts(identity.family, environment):
        command = (srun, *_SRUN, *mpi_slurm.pmi(identity.family, environment), f"-N{nodes}")
        command += ("-w", ",".join(hosts)) if hosts else ()
        if not (refused := mpi_slurm.refused(command, environment)):
            launch = Launch((*command, "-n{ranks}"), env, nodes)
            return Launcher(launch, "srun, because this is a Slurm allocation")
    if mpiexec := _mpiexec_of(identity, Path(library)):
        source = f"the mpiexec of {identity.title}"
    elif on_path := shutil.which("mpiexec", path=environment.get("PATH")):
        mpiexec, source = Path(on_path), "the mpiexec on PATH, because none was found next to the library"
    elif refused:
        raise NotFound(
            f"srun cannot start ranks of {library} (it cannot load --mpi={refused}), and no mpiexec was "
            "found next to the library or on PATH",
            mpi_slurm.remedy(refused),
        )
    else:
        raise NotFound(
            f"no launcher for {library}: no mpiexec next to the library or on PATH",
            "load your MPI's module, or set mpi.launcher in the site config",
        )
    command = (literal(str(mpiexec)), "-n", "{ranks}", *_placement(identity.family, nodes, hosts))
    return Launcher(Launch(command, env, nodes), source, refused)


def find_plain_launcher(
    template: str, environment: Mapping[str, str], nodes: int, hosts: Sequence[str] = ()
) -> Launch:
    """How to start one process on each node without MPI. Raises `NotFound`."""
    if template and "{nodes}" in template and not hosts:
        return _from_template(template, {}, nodes)
    if program := mpi_flux.program(environment):
        return Launch((*mpi_flux.command(program, nodes, hosts), "-n{ranks}"), {}, nodes)
    srun = shutil.which("srun", path=environment.get("PATH"))
    if srun and int(environment.get("SLURM_JOB_NUM_NODES", 0)) >= nodes:
        command = (srun, *_SRUN, "--mpi=none", f"-N{nodes}", *(("-w", ",".join(hosts)) if hosts else ()))
        return Launch((*command, "-n{ranks}"), {}, nodes)
    raise NotFound(
        f"no launcher for {nodes} nodes: not in a Slurm allocation of {nodes} nodes, nor in a Flux instance",
        f"run in an allocation of {nodes} nodes (salloc -N{nodes}), or set mpi.launcher in the site config",
    )


def _on_hosts(command: tuple[str, ...], hosts: Sequence[str]) -> tuple[str, ...]:
    """A site's launcher, restricted to these nodes. Raises `NotFound` if it cannot be restricted."""
    first, *others = command
    if Path(first).name == "srun":
        return (first, "-w", ",".join(hosts), *others)
    if Path(first).name == "flux" and "run" in others:
        return mpi_flux.on_hosts(command, hosts)
    raise NotFound(
        f"mpi.launcher of the site config, {first}, has no option that selects nodes",
        "use a launcher with such an option: srun, flux run, or the library's mpiexec",
    )


def _placement(family: str, nodes: int, hosts: Sequence[str]) -> tuple[str, ...]:
    """Arguments of ``mpiexec`` that put all ranks on one node, or one rank on each node (Hydra, Open MPI)."""
    if family != "openmpi":
        named = ("-hosts", ",".join(hosts)) if hosts else ()
        # Without -ppn, Intel's would spread them over the allocation.
        return "-ppn", "{ranks}" if nodes == 1 else "1", *named
    named = ("--host", ",".join(hosts)) if hosts else ()
    return named if nodes == 1 else ("--map-by", "ppr:1:node", *named)


_SRUN = ("--overlap", "--overcommit", "--export=ALL", "-K1")
"""Options of srun: overlap other job steps, use all processors, and pass this environment despite
SLURM_EXPORT_ENV. Without ``-K1``, srun waits for ever for the other ranks when a rank has died."""


def _mpiexec_of(identity: Identity, library: Path) -> Path | None:
    """The launcher in the ``bin`` directory of the library's prefix."""
    names = ["mpiexec.openmpi"] if identity.family == "openmpi" else ["mpiexec.mpich", "mpiexec.hydra"]
    for parent in (*library.absolute().parents, *library.resolve().parents):
        for name in (*names, "mpiexec"):
            if os.access(candidate := parent / "bin" / name, os.X_OK):
                return candidate
    return None


def opal_prefix(library: str) -> dict[str, str]:
    """OPAL_PREFIX for an Open MPI that may have been moved, so that it finds its components."""
    for parent in Path(library).parents:
        if (parent / "share/openmpi").is_dir():
            return {} if parent == Path("/usr") else {"OPAL_PREFIX": str(parent)}
    return {}


def _environment(identity: Identity, library: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for launcher and ranks; the user's own always take precedence."""
    env = {"MPI4PY_LIBMPI": library, **mpi_verbosity.ERRORS_ONLY}
    prefix = Path(library).parent.parent
    if identity.family == "openmpi":
        if os.geteuid() == 0:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if identity.major < 5:
            env["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        else:
            env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        env |= opal_prefix(library)
    if identity.family == "intel-mpi":
        env["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] = "off"  # Slurm's variables override our -ppn
        env["I_MPI_ROOT"] = str(prefix.parent if prefix.name == "lib" else prefix)  # lib/release/libmpi.so.12
    return {name: value for name, value in env.items() if name == "MPI4PY_LIBMPI" or name not in environment}


def _from_template(template: str, env: Mapping[str, str], nodes: int) -> Launch:
    return Launch(tuple(words(template, env, nodes)), env, nodes)
