"""``config``: shows the values in force, writes a first file, and reports all mistakes at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.site import config, hosts, layers

BASE = """\
cluster: lake
gpus: {model: A100, count: 4}
environment:
  MPICH_GPU_SUPPORT_ENABLED: {value: "1", why: device pointers are for MPI}
  OURS: "no: yes"
mpi:
  launcher: srun -N{nodes} -n{ranks}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(layers, "SITE_FILE", tmp_path / "site.yaml")
    monkeypatch.setattr(hosts, "SLURM_CONF", ())
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "base.yaml", BASE)
    write(
        tmp_path / "top.yaml",
        "extends: ./base.yaml\nenvironment: {OURS: '2'}\nchecks_dirs: [.]\ntier: soak\n",
    )
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments])


def test_each_value_is_shown_with_its_file_and_line(directory: Path) -> None:
    shown = run("show", "--origin", "--config", "top.yaml")
    assert shown.stdout == (
        "# layers, topmost first: top.yaml, base.yaml\n"
        "cluster: lake  # base.yaml:1\n"
        "gpus:\n"
        "  model: A100  # base.yaml:2\n"
        "  count: 4  # base.yaml:2\n"
        "environment:\n"
        "  MPICH_GPU_SUPPORT_ENABLED:  # base.yaml:4\n"
        "    value: '1'\n"
        "    why: device pointers are for MPI\n"
        "  OURS: '2'  # top.yaml:2\n"
        "mpi:\n"
        "  launcher: srun -N{nodes} -n{ranks}  # base.yaml:7\n"
        f"checks_dirs: [{directory}]  # top.yaml:3\n"
        "tier: soak  # top.yaml:4\n"
    )


def test_fabric_of_all_nodes_and_of_a_node_type(directory: Path) -> None:
    text = "fabric: tcp\nnode_types:\n  login: {hosts: login01, fabric: none}\n"
    write(directory / "fabrics.yaml", text)
    assert run("show", "--origin", "--config", "fabrics.yaml").stdout == (
        "# layers, topmost first: fabrics.yaml\n"
        "fabric: tcp  # fabrics.yaml:1\n"
        "node_types:\n"
        "  login:  # fabrics.yaml:3\n"
        "    hosts: login01\n"
        "    fabric: none\n"
    )
    site = config.load(Path("fabrics.yaml"))
    said = [site.of_node(host, config.NodeGpus()).node.fabric for host in ("login01", "gpu01")]
    assert [(value.value, value.where) for value in said if value] == [
        ("none", "fabrics.yaml:3"),
        ("tcp", "fabrics.yaml:1"),
    ]


def test_shown_config_is_valid(directory: Path) -> None:
    write(directory / "shown.yaml", run("show", "--config", "top.yaml").stdout)
    one, other = (config.load(Path(name)) for name in ("top.yaml", "shown.yaml"))
    assert {name: said.value for name, said in one.node.environment.items()} == {
        name: said.value for name, said in other.node.environment.items()
    }
    assert (one.tier, one.checks_dirs, one.mpi.launcher) == (
        other.tier,
        other.checks_dirs,
        other.mpi.launcher,
    )


def test_defaults_are_shown_on_request(directory: Path) -> None:
    assert run("show").stdout == "# no file sets anything: the defaults apply; --all shows them\n"
    shown = run("show", "--all", "--origin", "--config", "top.yaml").stdout
    assert "tier: soak  # top.yaml:4\n" in shown
    assert "\n  fraction: 0.05  # site-configs/generic.yaml:" in shown


def test_sites_own_file_is_found(directory: Path) -> None:
    write(directory / "site.yaml", "tier: prolog\n")
    assert "tier: prolog" in run("show").stdout
    assert "site.yaml" in run("show").stdout


def test_loop_is_one_line_and_a_usage_error(directory: Path) -> None:
    write(directory / "top.yaml", "extends: ./top.yaml\n")
    ended = run("show", "--config", "top.yaml")
    assert ended.exit_code != 0
    assert "top.yaml:1: extends: './top.yaml' is a cycle" in str(ended.exception) + ended.output


# -- validate -------------------------------------------------------------------------------------------

WRONG = """\
hosts: "n[1-"
modules: [cray-mpich]
environment: {PLAIN: 1}
preload:
  hip: {library: /none/libmpi_gtl_hsa.so, why: Cray MPICH wants it}
mpi: {launcher: "srun -n{tasks}"}
node_types:
  gpu: {mpi: {launcher: mpirun}, hosts: "@nosuchgroup"}
"""


def test_all_mistakes_are_reported_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LMOD_CMD", "MODULES_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(hosts, "is_of", lambda *_: True)  # otherwise a missing library is no mistake
    write(directory / "wrong.yaml", WRONG.replace('hosts: "n[1-"\n', "", 1) + "cluster: lake\n")
    ended = run("validate", "wrong.yaml")
    assert ended.exit_code == 2
    said = [line.removeprefix("gpuipc-doctor: wrong.yaml:") for line in ended.stderr.splitlines()]
    assert [line for line in said if "nosuchgroup" not in line] == [
        "2: environment.PLAIN must be text; quote it: '1'",
        "5: mpi.launcher: braces can only hold one of ranks, nodes, ranks_per_node, env, not 'tasks'",
        "7: node_types.gpu.mpi.launcher: {ranks} is missing: it stands for the number of ranks to start",
        "1: modules: no module system found: no LMOD_CMD, no MODULES_CMD, no modulecmd on PATH; "
        "run where `module` works (a login shell), or set the variables with `environment`",
        "4: preload: file not found: /none/libmpi_gtl_hsa.so; "
        "correct the path, or remove the entry (why: Cray MPICH wants it)",
    ]
    assert any(line.startswith("7: node_types.gpu.hosts: '@nosuchgroup' names no nodes") for line in said)


def test_missing_path_is_a_note_if_the_file_names_no_nodes(directory: Path) -> None:
    preload = "preload: {hip: {library: /none/libmpi_gtl_hsa.so, why: Cray MPICH needs it}}\n"
    write(directory / "elsewhere.yaml", preload)
    ended = run("validate", "elsewhere.yaml")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "elsewhere.yaml: fine\n"
        "  a mistake if the config is for this node: elsewhere.yaml:1: preload: file not found: "
        "/none/libmpi_gtl_hsa.so; correct the path, or remove the entry (why: "
        "Cray MPICH needs it)\n"
    )


def test_missing_mpi_is_a_note(directory: Path) -> None:
    write(directory / "elsewhere.yaml", "mpi: {library: /none/libmpi.so, launcher: 'nosuchrun -n {ranks}'}\n")
    ended = run("validate", "elsewhere.yaml")
    assert (ended.exit_code, ended.stderr) == (0, "")
    note = "  a mistake if the config is for this node: elsewhere.yaml:1: mpi"
    assert ended.stdout.splitlines() == [
        "elsewhere.yaml: fine",
        f"{note}.library: file not found: /none/libmpi.so; correct the path",
        f"{note}.launcher: program not found: nosuchrun; add its directory to PATH, or write its path",
    ]


TWICE_WRONG = """\
disabled: {ipc-reopn: "", Bad_Name: x}
suppressed:
  ipc-reopen.hagn: ""
  ipc-stal.overlap: 3
options: {ipc-handls: 4, ipc-handles: {siezs: 3}}
prolog: {checks: [ipc-reopn, 5, ipc-stal]}
"""


def test_mistake_in_an_entry_hides_no_other(directory: Path) -> None:
    write(directory / "wrong.yaml", TWICE_WRONG)
    ended = run("validate", "wrong.yaml")
    assert ended.exit_code == 2
    said = [line.removeprefix("gpuipc-doctor: wrong.yaml:") for line in ended.stderr.splitlines()]
    for mistake in (
        "1: disabled.ipc-reopn must not be empty",
        "1: disabled: no check 'ipc-reopn'; did you mean 'ipc-reopen'?",
        "1: disabled: key 'Bad_Name' is not the id of a check",
        "3: suppressed.ipc-reopen.hagn must not be empty",
        "4: suppressed.ipc-stal.overlap must be text; quote it: '3'",
        "4: suppressed: no check 'ipc-stal'; did you mean 'ipc-stale'?",
        "5: options.ipc-handls must be a mapping (key: value), not 4",
        "5: options: no check 'ipc-handls'; did you mean 'ipc-handles'?",
        "5: options.ipc-handles: unknown key 'siezs'",
        "6: prolog.checks[1] must be text; quote it: '5'",
        "6: prolog.checks: no check 'ipc-reopn'; did you mean 'ipc-reopen'?",
        "6: prolog.checks: no check 'ipc-stal'; did you mean 'ipc-stale'?",
    ):
        assert mistake in said
    assert any(line.startswith("3: suppressed: ipc-reopen has no finding 'hagn'") for line in said)


LISTS_TWICE_WRONG = """\
hosts:
- 5
- n[1-
- ''
- n[3-
checks_dirs:
- 1
- /none/one
- 2
- /none/two
"""


def test_bad_item_of_a_list_hides_no_other(directory: Path) -> None:
    write(directory / "wrong.yaml", LISTS_TWICE_WRONG)
    ended = run("validate", "wrong.yaml")
    assert ended.exit_code == 2
    said = [line.removeprefix("gpuipc-doctor: wrong.yaml:") for line in ended.stderr.splitlines()]
    for mistake in (
        "2: hosts[0] must be text; quote it: '5'",
        "3: hosts: 'n[1-' names no nodes",
        "4: hosts[2] must not be empty",
        "5: hosts: 'n[3-' names no nodes",
        "7: checks_dirs[0] must be text; quote it: '1'",
        "8: checks_dirs: /none/one: No such file or directory",
        "9: checks_dirs[2] must be text; quote it: '2'",
        "10: checks_dirs: /none/two: No such file or directory",
    ):
        assert any(line.startswith(mistake) for line in said), (mistake, said)
    assert len(said) == 8


@pytest.mark.parametrize("name", layers.names())
def test_shipped_site_is_valid_on_any_machine(name: str) -> None:
    ended = run("validate", name)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{name}: fine")


# -- new ------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_first_file_is_written_once_and_is_valid(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "lake")
    monkeypatch.setenv("SLURMD_NODENAME", "nid0001")
    ended = run("new", "--simulate", "healthy-cuda", "--to", "new.yaml")
    assert ended.stdout == ("new.yaml: written; read it, then: gpuipc-doctor config validate new.yaml\n")
    text = (directory / "new.yaml").read_text()
    assert "# SIMULATED (profile healthy-cuda): not a real node.\n" in text
    assert "\ncluster: lake\n# hosts: nid0001\n" in text
    assert "\ngpus: {model: NVIDIA H200, count: 2, peers: all}\n" in text
    assert "\n  nvidia-driver: {from: 580.159.04, else: warn}\n" in text
    assert run("validate", "new.yaml").stdout == "new.yaml: fine\n"
    assert "new.yaml exists" in run("new", "--simulate", "healthy-cuda", "--to", "new.yaml").output
    assert config.load(Path("new.yaml")).node.gpus.count == 2


@pytest.mark.cuda
def test_first_file_of_a_node_without_gpus_is_valid(directory: Path) -> None:
    run("new", "--simulate", "no-devices", "--to", "new.yaml")
    assert run("validate", "new.yaml").stdout == "new.yaml: fine\n"
