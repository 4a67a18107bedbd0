"""Choice of the MPI library and launcher; the user's choice takes precedence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.node import mpi_locate
from gpuipc_doctor.node.mpi_identity import Identity
from gpuipc_doctor.node.mpi_locate import Library, NotFound, find_launcher, find_library
from gpuipc_doctor.site.launcher import mistakes

OPEN_MPI_5 = Identity("openmpi", "5.0.11", "Open MPI 5.0.11")
OPEN_MPI_4 = Identity("openmpi", "4.1.6", "Open MPI 4.1.6")
MPICH = Identity("mpich", "5.0.2", "MPICH 5.0.2")
INTEL = Identity("intel-mpi", "2021.17", "Intel MPI 2021.17")


linked_mpi4py = mpi_locate._linked_mpi4py


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An mpi4py like PyPI's, regardless of the installed one."""
    monkeypatch.setattr(mpi_locate, "_linked_mpi4py", lambda: None)


HEAD = Path(sys.executable).read_bytes()[:20]
"""The beginning of a program of this machine; its last two bytes say which."""


def test_library_of_another_machine_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "lib/libmpi.so.12"
    other.parent.mkdir()
    other.write_bytes(HEAD[:18] + (21).to_bytes(2, "little"))
    with pytest.raises(NotFound, match=r"libmpi\.so\.12 is a library for ppc64le, and this node is "):
        find_library(str(other), None, {})
    plant(tmp_path / "bin/mpiexec")
    assert find_library(None, None, {"PATH": str(tmp_path / "bin")}).path is None


def plant(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(HEAD if ".so" in path.name else b"#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_placeholder_of_a_wheel_is_not_a_library(tmp_path: Path) -> None:
    stub = tmp_path / "lib/libmpi.so"
    library = plant(tmp_path / "lib/libmpi.so.12")
    stub.write_text("INPUT(libmpi.so.12)\n")
    with pytest.raises(
        NotFound, match=r"--mpi-lib: .*/lib/libmpi\.so is a text file, not a library"
    ) as refused:
        find_library(str(stub), None, {})
    assert refused.value.remedy == f"name the library itself: {library}"
    library.unlink()
    with pytest.raises(NotFound) as refused:
        find_library(None, str(stub), {})
    assert refused.value.remedy == "name the library itself: …/libmpi.so.…"


def test_users_choice_takes_precedence(tmp_path: Path) -> None:
    asked, configured = plant(tmp_path / "a/lib/libmpi.so.40"), plant(tmp_path / "b/lib/libmpi.so.12")
    on_path = plant(tmp_path / "c/bin/mpiexec")
    beside = plant(tmp_path / "c/lib/libmpi.so.12")
    environment = {"PATH": str(on_path.parent), "MPI4PY_LIBMPI": "/opt/libmpi.so"}
    assert find_library(str(asked), str(configured), environment) == Library(str(asked), "--mpi-lib")
    assert find_library(None, str(configured), environment) == Library(
        str(configured), "mpi.library of the site config"
    )
    assert find_library(None, None, environment) == Library(None, "MPI4PY_LIBMPI")
    del environment["MPI4PY_LIBMPI"]
    assert find_library(None, None, environment) == Library(str(beside), f"the library beside {on_path}")
    assert find_library(None, None, {"PATH": str(tmp_path)}) == Library(None, "mpi4py's own search")


def test_missing_library_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"--mpi-lib: file not found: /nowhere/libmpi\.so"):
        find_library("/nowhere/libmpi.so", None, {})


def test_mpi4py_built_for_one_mpi_cannot_load_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_locate, "_linked_mpi4py", lambda: Path("/site/mpi4py/MPI.so"))
    assert find_library(None, None, {"MPI4PY_LIBMPI": "/opt/libmpi.so"}).path is None
    with pytest.raises(NotFound) as refused:
        find_library(str(plant(tmp_path / "libmpi.so.12")), None, {})
    assert "was built for one MPI" in refused.value.reason
    assert "mpi4py from PyPI" in refused.value.remedy


@pytest.mark.parametrize(
    ("module", "is_linked"),
    [("MPI.cpython-311-x86_64-linux-gnu.so", True), ("MPI.mpich.cpython-311-x86_64-linux-gnu.so", False)],
)
def test_build_of_mpi4py_is_detected_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, is_linked: bool
) -> None:
    plant(tmp_path / "mpi4py/__init__.py").write_text("raise SystemExit('imported')\n")
    file = plant(tmp_path / "mpi4py" / module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    assert linked_mpi4py() == (file if is_linked else None)


def test_launcher_decides_between_two_mpis_in_one_prefix(tmp_path: Path) -> None:
    """Debian has both libraries in /usr/lib/x86_64-linux-gnu; mpiexec is a link to one MPI's launcher."""
    lib = tmp_path / "lib/x86_64-linux-gnu"
    open_mpi, mpich = plant(lib / "libmpi.so.40"), plant(lib / "libmpich.so.12")
    orterun, hydra = plant(tmp_path / "bin/orterun"), plant(tmp_path / "bin/mpiexec.hydra")
    mpiexec = tmp_path / "bin/mpiexec"
    for launcher, library in ((orterun, open_mpi), (hydra, mpich)):
        mpiexec.unlink(missing_ok=True)
        mpiexec.symlink_to(launcher)
        assert find_library(None, None, {"PATH": str(mpiexec.parent)}).path == str(library)


def test_launcher_is_the_librarys_own(tmp_path: Path) -> None:
    library, own = plant(tmp_path / "mpi/lib/libmpi.so.12"), plant(tmp_path / "mpi/bin/mpiexec")
    other = plant(tmp_path / "other/bin/mpiexec")
    environment = {"PATH": str(other.parent)}
    found = find_launcher(MPICH, str(library), "", environment)
    assert found.launch.command == (str(own), "-n", "{ranks}", "-ppn", "{ranks}")
    assert found.launch.env == {"MPI4PY_LIBMPI": str(library), "FI_LOG_LEVEL": "warn"}
    assert found.source == "the mpiexec of MPICH 5.0.2"
    own.unlink()
    assert find_launcher(MPICH, str(library), "", environment).launch.command[0] == str(other)
    with pytest.raises(NotFound, match=r"no launcher for .*libmpi\.so\.12"):
        find_launcher(MPICH, str(library), "", {"PATH": ""})


def test_two_launchers_in_one_directory_are_distinguished_by_family(tmp_path: Path) -> None:
    library = plant(tmp_path / "lib/x86_64-linux-gnu/libmpi.so.40")
    for name in ("mpiexec", "mpiexec.openmpi", "mpiexec.mpich"):
        plant(tmp_path / "bin" / name)
    for identity, name in ((OPEN_MPI_4, "mpiexec.openmpi"), (MPICH, "mpiexec.mpich")):
        command = find_launcher(identity, str(library), "", {"PATH": ""}).launch.command
        assert command[0] == str(tmp_path / "bin" / name)


def test_launcher_in_a_slurm_allocation_is_srun(tmp_path: Path) -> None:
    library = plant(tmp_path / "mpi/lib/libmpi.so.12")
    plant(tmp_path / "mpi/bin/mpiexec")
    srun = plant(tmp_path / "slurm/srun")
    environment = {"PATH": str(srun.parent)}
    assert "mpiexec" in find_launcher(MPICH, str(library), "", environment).launch.command[0]
    environment["SLURM_JOB_ID"] = "17"
    launch = find_launcher(MPICH, str(library), "", environment, nodes=2).launch
    assert launch.command == (
        str(srun),
        "--overlap",
        "--overcommit",
        "--export=ALL",
        "-K1",
        "-N2",
        "-n{ranks}",
    )
    assert launch.nodes == 2
    environment["SLURM_JOB_NUM_NODES"] = "1"
    with pytest.raises(NotFound, match="this Slurm allocation has 1"):
        find_launcher(MPICH, str(library), "", environment, nodes=2)


@pytest.mark.parametrize(
    ("identity", "default", "set_by_user", "option"),
    [
        (MPICH, "none", {}, ["--mpi=pmi2"]),
        (OPEN_MPI_5, "none", {}, ["--mpi=pmix"]),
        (MPICH, "pmix", {}, []),
        (MPICH, "none", {"SLURM_MPI_TYPE": "pmix_v5"}, []),
    ],
)
def test_srun_gets_an_mpi_option_unless_the_site_sets_one(
    tmp_path: Path, identity: Identity, default: str, set_by_user: dict[str, str], option: list[str]
) -> None:
    plant(tmp_path / "srun")
    scontrol = plant(tmp_path / "scontrol")
    scontrol.write_text(f"#!/bin/sh\necho 'MpiDefault              = {default}'\n")
    environment = {"PATH": str(tmp_path), "SLURM_JOB_ID": "17", **set_by_user}
    command = find_launcher(identity, "/opt/libmpi.so", "", environment).launch.command
    assert [word for word in command if word.startswith("--mpi=")] == option


def test_own_launcher_is_used_if_srun_cannot_load_its_mpi_plugin(tmp_path: Path) -> None:
    library = plant(tmp_path / "mpi/lib/libmpi.so.40")
    own = plant(tmp_path / "mpi/bin/mpiexec")
    srun = plant(tmp_path / "slurm/srun")
    srun.write_text(
        "#!/bin/sh\n"
        "echo \"srun: error: Invalid MPI type 'pmix_v4', --mpi=list for acceptable types\" >&2\n"
        "exit 1\n"
    )
    environment = {"PATH": str(srun.parent), "SLURM_JOB_ID": "17"}
    found = find_launcher(OPEN_MPI_5, str(library), "", environment, nodes=2)
    assert found.launch.command == (str(own), "-n", "{ranks}", "--map-by", "ppr:1:node")
    assert found.refused == "pmix_v4"
    own.unlink()
    with pytest.raises(NotFound, match=r"cannot load --mpi=pmix_v4\), and no mpiexec") as none:
        find_launcher(OPEN_MPI_5, str(library), "", environment)
    assert "libpmix-dev" in none.value.remedy


def test_template_without_nodes_cannot_start_ranks_on_two_nodes() -> None:
    with pytest.raises(NotFound, match=r"nodes: \{nodes\} is missing"):
        find_launcher(MPICH, "/opt/libmpi.so", "srun -n{ranks}", {"PATH": ""}, nodes=2)


@pytest.mark.parametrize(
    ("identity", "spread"), [(OPEN_MPI_5, ("--map-by", "ppr:1:node")), (MPICH, ("-ppn", "1"))]
)
def test_on_several_nodes_each_has_one_rank(
    tmp_path: Path, identity: Identity, spread: tuple[str, ...]
) -> None:
    library, own = plant(tmp_path / "lib/libmpi.so"), plant(tmp_path / "bin/mpiexec")
    command = find_launcher(identity, str(library), "", {"PATH": ""}, nodes=2).launch.command
    assert command == (str(own), "-n", "{ranks}", *spread)


def test_environment_that_a_library_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(plant(tmp_path / "lib/libmpi.so"))
    plant(tmp_path / "bin/mpiexec")
    plant(tmp_path / "share/openmpi/help.txt")

    def env(identity: Identity, **environment: str) -> dict[str, str]:
        there = {"PATH": "", "FI_LOG_LEVEL": "debug", **environment}  # the user's setting is kept
        return dict(find_launcher(identity, library, "", there).launch.env)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert env(OPEN_MPI_5) == {
        "MPI4PY_LIBMPI": library,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPAL_PREFIX": str(tmp_path),
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert env(OPEN_MPI_4, OPAL_PREFIX="/theirs") == {
        "MPI4PY_LIBMPI": library,
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    intel = {"MPI4PY_LIBMPI": library, "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "off"}
    assert env(INTEL) == {**intel, "I_MPI_ROOT": str(tmp_path)}
    assert env(INTEL, I_MPI_ROOT="/theirs") == intel


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (1, ("mpirun", "-N", "1", "-n", "{ranks}", "--ppn={ranks}")),
        (2, ("mpirun", "-N", "2", "-n", "{ranks}", "--ppn=1")),
    ],
)
def test_sites_template_takes_precedence_and_is_not_run_by_a_shell(
    nodes: int, words: tuple[str, ...]
) -> None:
    template = "mpirun -N {nodes} -n {ranks} --ppn={ranks_per_node} 'a b; c' {env}"
    found = find_launcher(MPICH, "/opt/{odd}/libmpi.so", template, {"PATH": ""}, nodes=nodes)
    assert found.source == "mpi.launcher of the site config"
    *start, quoted, env, first, second = found.launch.command
    assert (*start, quoted, env) == (*words, "a b; c", "env")
    assert first.format(ranks=2) == "MPI4PY_LIBMPI=/opt/{odd}/libmpi.so"
    assert second == "FI_LOG_LEVEL=warn"


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("srun --overlap -N{nodes} -n{ranks}", ""),
        ("mpiexec -n {ranks} {env}", ""),
        ("mpiexec -n 2", "{ranks} is missing"),
        ("mpiexec -n {ranks} 'oops", "not a command line"),
        ("", "an empty command"),
        ("mpiexec -n {rank}", "braces can only hold one of ranks, nodes, ranks_per_node, env"),
        ("mpiexec -n {ranks} {", "braces can only hold one of"),
        ("mpiexec -n {ranks} -x={env}", "{env} must be a separate word"),
    ],
)
def test_template_is_validated_before_use(template: str, wrong: str) -> None:
    said = list(mistakes(template))
    assert len(said) == bool(wrong)
    assert all(line.startswith(wrong) for line in said)


def test_only_srun_of_a_template_gets_the_nodes() -> None:
    launch = find_launcher(
        MPICH, "/opt/libmpi.so", "srun -N{nodes} -n{ranks}", {"PATH": ""}, nodes=2, hosts=("n1", "n2")
    ).launch
    assert launch.command == ("srun", "-w", "n1,n2", "-N2", "-n{ranks}")
    with pytest.raises(NotFound, match="aprun, has no option that selects nodes"):
        find_launcher(
            MPICH, "/opt/libmpi.so", "aprun -N{nodes} -n{ranks}", {"PATH": ""}, nodes=2, hosts=("n1", "n2")
        )


def test_flux_of_a_template_gets_the_nodes() -> None:
    template = "flux run -o spindle.level=off --nodes={nodes} --ntasks={ranks}"
    launch = find_launcher(MPICH, "/opt/libmpi.so", template, {}, nodes=2, hosts=("n1", "n2")).launch
    assert launch.command[:3] == ("flux", "run", "--requires=host:n1,n2")
    assert launch.command[3:] == ("-o", "spindle.level=off", "--nodes=2", "--ntasks={ranks}")


@pytest.mark.parametrize(
    ("identity", "words"), [(MPICH, ()), (OPEN_MPI_4, ()), (OPEN_MPI_5, ("-o", "pmi=pmix")), (INTEL, ())]
)
def test_launcher_in_a_flux_instance_is_flux_run(
    tmp_path: Path, identity: Identity, words: tuple[str, ...]
) -> None:
    library = plant(tmp_path / "mpi/lib/libmpi.so.12")
    plant(tmp_path / "mpi/bin/mpiexec")
    flux = plant(tmp_path / "flux")
    plant(tmp_path / "srun")
    environment = {"PATH": str(tmp_path), "FLUX_URI": "local:///run/flux/local", "SLURM_JOB_ID": "17"}
    found = find_launcher(identity, str(library), "", environment, nodes=2, hosts=("n1", "n2"))
    assert "untested" in found.source
    start = (str(flux), "run", "--requires=host:n1,n2", "-o", "exit-on-error", "-o", "gpu-affinity=off")
    assert found.launch.command == (*start, *words, "-N2", "-n{ranks}")
    assert found.launch.nodes == 2


@pytest.mark.parametrize(
    "lacking",
    [{"PATH": ""}, {"FLUX_URI": None}, {"FLUX_JOB_ID": "fuzzybunny"}],
    ids=["program", "uri", "task"],
)
def test_flux_is_not_used_outside_an_instance_of_its_own(
    tmp_path: Path, lacking: dict[str, str | None]
) -> None:
    """A task of a Flux job would wait for resources that its own job holds."""
    library, mpiexec = plant(tmp_path / "mpi/lib/libmpi.so.12"), plant(tmp_path / "mpi/bin/mpiexec")
    plant(tmp_path / "flux")
    given = {"PATH": str(tmp_path), "FLUX_URI": "local:///run/flux/local", **lacking}
    environment = {name: value for name, value in given.items() if value is not None}
    assert find_launcher(MPICH, str(library), "", environment).launch.command[0] == str(mpiexec)


def test_sites_variables_are_in_the_ranks_environment() -> None:
    added = {"MPICH_GPU_SUPPORT_ENABLED": "1"}
    found = find_launcher(
        MPICH, "/opt/libmpi.so", "srun -n{ranks} {env}", {"PATH": "", **added}, added=added
    ).launch
    assert found.env["MPICH_GPU_SUPPORT_ENABLED"] == "1"
    assert "MPICH_GPU_SUPPORT_ENABLED=1" in found.command


def test_processes_without_mpi_start_by_the_sites_launcher_or_srun(tmp_path: Path) -> None:
    srun = plant(tmp_path / "srun")
    environment = {"PATH": str(tmp_path), "SLURM_JOB_NUM_NODES": "2"}
    by_site = mpi_locate.find_plain_launcher("go -N{nodes} -n{ranks}", {}, 2)
    assert by_site.command == ("go", "-N2", "-n{ranks}")
    launch = mpi_locate.find_plain_launcher("", environment, 2, ("n1", "n2"))
    assert (launch.command[0], launch.command[-1], launch.nodes) == (str(srun), "-n{ranks}", 2)
    assert {"--mpi=none", "-N2", "n1,n2"} <= set(launch.command)
    plant(tmp_path / "flux")
    by_flux = mpi_locate.find_plain_launcher("", {**environment, "FLUX_URI": "local:///run/flux/local"}, 2)
    assert by_flux.command[1:] == (
        *("run", "-o", "exit-on-error", "-o", "gpu-affinity=off", "-o", "pmi=off"),
        *("-N2", "-n{ranks}"),
    )
    for lacking in ({**environment, "SLURM_JOB_NUM_NODES": "1"}, {"PATH": str(tmp_path)}):
        with pytest.raises(NotFound) as absent:
            mpi_locate.find_plain_launcher("", lacking, 2)
        assert "salloc -N2" in absent.value.remedy
