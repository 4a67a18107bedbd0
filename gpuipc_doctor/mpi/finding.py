"""Which MPI library to use and how to start ranks under it: looked up, never loaded.

Runs in the supervising process, which loads no MPI. What the library is, only a worker can say
(`awareness.survey`); the launcher that suits it is found after that.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.model import Launch
from gpuipc_doctor.mpi import logs, slurm
from gpuipc_doctor.mpi.identity import Identity

_OPEN_MPI_SONAMES = ("libmpi.so.40", "libmpi.so.20")
_MPICH_SONAMES = ("libmpi.so.12", "libmpich.so.12")
_MPICH_LAUNCHERS = ("hydra", "mpich", "gforker")
"""Parts of file names by which a launcher is known to be MPICH's where both stand in one directory."""

_KEYS = ("ranks", "nodes", "ranks_per_node", "env")
"""What stands in braces in a site's launcher template."""


class NotFound(Exception):
    """There is no such library or launcher. ``reason`` says which, ``remedy`` what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Library:
    """``path`` is None when mpi4py is to find it. ``source`` says who chose it."""

    path: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Launcher:
    launch: Launch
    source: str


def find_library(asked: str | None, configured: str | None, environment: Mapping[str, str]) -> Library:
    """``--mpi-lib``, then the site config, then MPI4PY_LIBMPI, the ``mpiexec`` on PATH, mpi4py's own search.

    An mpi4py that was built for one MPI uses that one, whatever else is said. Raises `NotFound`.
    """
    linked = _linked_mpi4py()
    for path, source in ((asked, "--mpi-lib"), (configured, "mpi.library of the site config")):
        if not path:
            continue
        if linked:
            raise NotFound(
                f"{source} cannot be followed: this mpi4py is linked with the MPI that it was built for",
                "install mpi4py from PyPI (4.1 or later), whose wheels load any MPI",
            )
        if not Path(path).is_file():
            raise NotFound(f"{source}: there is no file {path}", "name the library itself: …/lib/libmpi.so.…")
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


def _linked_mpi4py() -> Path | None:
    """mpi4py's extension module when it was built from source; wheels have one for each ABI instead."""
    spec = importlib.util.find_spec("mpi4py")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("MPI.cpython*.so", "MPI.abi3*.so", "MPI.so"):
            for module in Path(directory).glob(pattern):
                return module
    return None


def _library_beside(mpiexec: Path) -> Path | None:
    real = mpiexec.resolve()  # a distribution's is a link: mpiexec, /etc/alternatives/mpirun, orterun
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
    return next(
        (path for name in names for directory in directories if (path := directory / name).exists()), None
    )


def find_launcher(
    identity: Identity,
    library: str,
    template: str,
    environment: Mapping[str, str],
    *,
    nodes: int = 1,
) -> Launcher:
    """How to start ranks under ``library``.

    The site's template, else ``srun`` within a Slurm allocation, else the ``mpiexec`` that belongs to the
    library, else the one on PATH.

    The command keeps ``{ranks}`` open. On several nodes each gets one rank. Raises `NotFound`, also where
    it can be seen that there are not so many nodes.
    """
    env = _environment(identity, library, environment)
    if template:
        if nodes > 1 and "{nodes}" not in template:
            raise NotFound(
                f"mpi.launcher of the site config cannot start ranks on {nodes} nodes: it has no {{nodes}}",
                "put {nodes} where the command says on how many nodes ranks start, as in srun -N{nodes}",
            )
        return Launcher(_from_template(template, env, nodes), "mpi.launcher of the site config")
    if nodes > (has := int(environment.get("SLURM_JOB_NUM_NODES", nodes))):
        raise NotFound(
            f"ranks on {nodes} nodes were asked for, but this Slurm allocation has {has}",
            f"run it in a larger one: salloc -N{nodes}",
        )
    srun = shutil.which("srun", path=environment.get("PATH"))
    if srun and "SLURM_JOB_ID" in environment and slurm.starts(identity.family, environment):
        command = (srun, *_SRUN, *slurm.pmi(identity.family, environment), f"-N{nodes}", "-n{ranks}")
        return Launcher(Launch(command, env, nodes), "srun, for this is within a Slurm allocation")
    if mpiexec := _mpiexec_of(identity, Path(library)):
        source = f"the mpiexec of {identity.title}"
    elif on_path := shutil.which("mpiexec", path=environment.get("PATH")):
        mpiexec, source = Path(on_path), "the mpiexec on PATH, for none was found beside the library"
    else:
        raise NotFound(
            f"there is no launcher for {library}: no mpiexec beside it or on PATH",
            "load your MPI's module, or give the command as mpi.launcher in the site config",
        )
    command = (_literal(str(mpiexec)), "-n", "{ranks}", *_placement(identity.family, nodes))
    return Launcher(Launch(command, env, nodes), source)


def _placement(family: str, nodes: int) -> tuple[str, ...]:
    """Words of an ``mpiexec`` that put all ranks on one node, or one on each; Hydra's and Open MPI's own."""
    if family != "openmpi":
        return "-ppn", "{ranks}" if nodes == 1 else "1"  # Intel's would spread them over an allocation
    return () if nodes == 1 else ("--map-by", "ppr:1:node")


_SRUN = ("--overlap", "--overcommit", "--export=ALL", "-K1")
"""Options of srun: to run beside a job step of the allocation, on as many processors as it has, with this
environment whatever SLURM_EXPORT_ENV says. Without ``-K1`` it waits for ever for the ranks that are left when
one has died."""


def _mpiexec_of(identity: Identity, library: Path) -> Path | None:
    """The launcher in the ``bin`` of the prefix that the library lies in."""
    names = ["mpiexec.openmpi"] if identity.family == "openmpi" else ["mpiexec.mpich", "mpiexec.hydra"]
    for parent in (*library.absolute().parents, *library.resolve().parents):
        for name in (*names, "mpiexec"):
            if os.access(candidate := parent / "bin" / name, os.X_OK):
                return candidate
    return None


def opal_prefix(library: str) -> dict[str, str]:
    """OPAL_PREFIX for an Open MPI that may not lie where it was built for, lest it miss its components."""
    for parent in Path(library).parents:
        if (parent / "share/openmpi").is_dir():
            return {} if parent == Path("/usr") else {"OPAL_PREFIX": str(parent)}
    return {}


def _environment(identity: Identity, library: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What launcher and ranks need beside what the user has set, which always stands."""
    env = {"MPI4PY_LIBMPI": library, **logs.ERRORS_ONLY}
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
        env["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] = "off"  # Slurm's, in place of our -ppn
        env["I_MPI_ROOT"] = str(prefix.parent if prefix.name == "lib" else prefix)  # lib/release/libmpi.so.12
    return {name: value for name, value in env.items() if name == "MPI4PY_LIBMPI" or name not in environment}


def check_template(template: str) -> str:
    """What is wrong with a site's launcher template, in words; empty when nothing is."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        return f"not a command line: {error}"
    if not words:
        return "an empty command"
    try:
        template.format(**dict.fromkeys(_KEYS, "1"))
    except (KeyError, ValueError, IndexError) as error:
        return f"braces can only hold one of {', '.join(_KEYS)}, not {error}"
    if "{ranks}" not in template:
        return "{ranks} is missing, the number of ranks to start"
    if "{env}" in template and "{env}" not in words:
        return "{env} must be a word of its own: it becomes several, env NAME=VALUE …"
    return ""


def _from_template(template: str, env: Mapping[str, str], nodes: int) -> Launch:
    return Launch(tuple(_words(template, env, nodes)), env, nodes)


def _words(template: str, env: Mapping[str, str], nodes: int) -> Iterator[str]:
    for word in shlex.split(template):
        if word == "{env}":
            yield from ("env", *(_literal(f"{name}={value}") for name, value in env.items()))
        else:
            yield word.format(ranks="{ranks}", nodes=nodes, ranks_per_node="{ranks}" if nodes == 1 else 1)


def _literal(text: str) -> str:
    """``text`` where whoever fills in ``{ranks}`` must leave it as it is."""
    return text.replace("{", "{{").replace("}", "}}")
