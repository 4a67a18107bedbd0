"""Which MPI library to use and how to start ranks under it: looked up, never loaded.

Runs in the supervising process, which loads no MPI. What the library is, only a worker can say
(`survey.survey`); the launcher that suits it is found after that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuipc_doctor.model import Launch
from gpuipc_doctor.mpi import elf, flux, slurm, verbosity
from gpuipc_doctor.mpi.identity import Identity
from gpuipc_doctor.site.launcher import literal, words

_OPEN_MPI_SONAMES = ("libmpi.so.40", "libmpi.so.20")
_MPICH_SONAMES = ("libmpi.so.12", "libmpich.so.12")
_MPICH_LAUNCHERS = ("hydra", "mpich", "gforker")
"""Parts of file names by which a launcher is known to be MPICH's where both stand in one directory."""


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
    """``refused``: the interface to ranks that ``srun`` cannot load; that is why the launcher is another."""

    launch: Launch
    source: str
    refused: str = ""


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
        if not elf.is_elf(Path(path)):
            others = _libraries_in(Path(path).absolute().parent)
            raise NotFound(
                f"{source}: {path} is no library; wheels have a few bytes of text where links are lost",
                f"name the library beside it: {others[0]}" if others else "name the library: …/libmpi.so.…",
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
    """The MPI libraries in a directory, those that are loaded by their usual names first."""
    usual = [directory / name for name in (*_OPEN_MPI_SONAMES, *_MPICH_SONAMES)]
    others = sorted(directory.glob("libmpi*.so.*"))
    return [path for path in dict.fromkeys((*usual, *others)) if path.is_file() and elf.is_elf(path)]


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
    hosts: Sequence[str] = (),
    added: Mapping[str, str] | None = None,
) -> Launcher:
    """How to start ranks under ``library``, on the nodes named ``hosts`` where that matters.

    The site's template, else ``flux run`` within a Flux instance, else ``srun`` within a Slurm allocation if
    it can, else the ``mpiexec`` of the library, else the one on PATH.

    ``added``: what launcher and ranks have beside the tool's environment; ``environment`` holds it, too. The
    command keeps ``{ranks}`` open. On several nodes each gets one rank. Raises `NotFound`, also where
    it can be seen that there are not so many nodes.
    """
    env = {**(added or {}), **_environment(identity, library, environment)}
    if template:
        if nodes > 1 and "{nodes}" not in template:
            raise NotFound(
                f"mpi.launcher of the site config cannot start ranks on {nodes} nodes: it has no {{nodes}}",
                "put {nodes} where the command says on how many nodes ranks start, as in srun -N{nodes}",
            )
        launch = _from_template(template, env, nodes)
        if hosts:
            launch = replace(launch, command=_on_hosts(launch.command, hosts))
        return Launcher(launch, "mpi.launcher of the site config")
    if program := flux.program(environment):
        command = (*flux.command(program, nodes, hosts, identity), "-n{ranks}")
        return Launcher(Launch(command, env, nodes), flux.SOURCE)
    if nodes > (has := int(environment.get("SLURM_JOB_NUM_NODES", nodes))):
        raise NotFound(
            f"ranks on {nodes} nodes were asked for, but this Slurm allocation has {has}",
            f"run it in a larger one: salloc -N{nodes}",
        )
    srun = shutil.which("srun", path=environment.get("PATH"))
    refused = ""
    if srun and "SLURM_JOB_ID" in environment and slurm.starts(identity.family, environment):
        command = (srun, *_SRUN, *slurm.pmi(identity.family, environment), f"-N{nodes}")
        command += ("-w", ",".join(hosts)) if hosts else ()
        if not (refused := slurm.refused(command, environment)):
            launch = Launch((*command, "-n{ranks}"), env, nodes)
            return Launcher(launch, "srun, for this is within a Slurm allocation")
    if mpiexec := _mpiexec_of(identity, Path(library)):
        source = f"the mpiexec of {identity.title}"
    elif on_path := shutil.which("mpiexec", path=environment.get("PATH")):
        mpiexec, source = Path(on_path), "the mpiexec on PATH, for none was found beside the library"
    elif refused:
        raise NotFound(
            f"srun cannot start ranks of {library}, for it cannot load its --mpi={refused}, "
            "and there is no mpiexec beside it or on PATH",
            slurm.remedy(refused),
        )
    else:
        raise NotFound(
            f"there is no launcher for {library}: no mpiexec beside it or on PATH",
            "load your MPI's module, or give the command as mpi.launcher in the site config",
        )
    command = (literal(str(mpiexec)), "-n", "{ranks}", *_placement(identity.family, nodes, hosts))
    return Launcher(Launch(command, env, nodes), source, refused)


def find_plain_launcher(
    template: str, environment: Mapping[str, str], nodes: int, hosts: Sequence[str] = ()
) -> Launch:
    """How to start one process on each node that knows of no MPI. Raises `NotFound`."""
    if template and "{nodes}" in template and not hosts:
        return _from_template(template, {}, nodes)
    if program := flux.program(environment):
        return Launch((*flux.command(program, nodes, hosts), "-n{ranks}"), {}, nodes)
    srun = shutil.which("srun", path=environment.get("PATH"))
    if srun and int(environment.get("SLURM_JOB_NUM_NODES", 0)) >= nodes:
        command = (srun, *_SRUN, "--mpi=none", f"-N{nodes}", *(("-w", ",".join(hosts)) if hosts else ()))
        return Launch((*command, "-n{ranks}"), {}, nodes)
    raise NotFound(
        f"nothing starts processes on {nodes} nodes: no MPI's launcher, no Slurm allocation of so many",
        f"run it in one: salloc -N{nodes}, or give the command as mpi.launcher in the site config",
    )


def _on_hosts(command: tuple[str, ...], hosts: Sequence[str]) -> tuple[str, ...]:
    """A site's launcher on these nodes alone. Raises `NotFound` for one that cannot be told nodes."""
    first, *others = command
    if Path(first).name == "srun":
        return (first, "-w", ",".join(hosts), *others)
    if Path(first).name == "flux" and "run" in others:
        return flux.on_hosts(command, hosts)
    raise NotFound(
        f"mpi.launcher of the site config, {first}, cannot be told on which nodes to start ranks",
        "run it where no template is needed: with srun, flux run, or the mpiexec of the library",
    )


def _placement(family: str, nodes: int, hosts: Sequence[str]) -> tuple[str, ...]:
    """Words of an ``mpiexec`` that put all ranks on one node, or one on each; Hydra's and Open MPI's own."""
    if family != "openmpi":
        named = ("-hosts", ",".join(hosts)) if hosts else ()
        # Without -ppn Intel's would spread them over an allocation.
        return "-ppn", "{ranks}" if nodes == 1 else "1", *named
    named = ("--host", ",".join(hosts)) if hosts else ()
    return named if nodes == 1 else ("--map-by", "ppr:1:node", *named)


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
    env = {"MPI4PY_LIBMPI": library, **verbosity.ERRORS_ONLY}
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


def _from_template(template: str, env: Mapping[str, str], nodes: int) -> Launch:
    return Launch(tuple(words(template, env, nodes)), env, nodes)
