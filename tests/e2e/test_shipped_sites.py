"""Every shipped site config is valid, names its sources, and gives the expected plan on a simulated node."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuipc_doctor import node_name
from gpuipc_doctor.site import config
from tests import golden
from tests.e2e.conftest import Command, full
from tests.unit.cli.test_pages import own_check

NODES = Path(__file__).parent.parent / "sites"
SHIPPED = {path.stem: path for path in Path(__file__).parent.parent.parent.glob("site-configs/*.yaml")}
SYSTEMS = sorted(path.stem for path in NODES.glob("*.yaml") if path.stem in SHIPPED)
GENERIC = ["generic", "generic-openmpi-ucx", "generic-pbs"] + [
    f"generic-slurm-{vendor}" for vendor in ("amd", "intel", "nvidia")
]


def on_systems(*always: str) -> pytest.MarkDecorator:
    """Run a test for these systems, with `full` for all."""
    marked = [pytest.param(name, marks=[] if name in always else pytest.mark.full) for name in SYSTEMS]
    return pytest.mark.parametrize("name", marked)


PROGRAMS = {
    "modulecmd": """#!/bin/sh
echo "import os"
echo "os.environ['CRAY_MPICH_ROOTDIR'] = '$ROOTDIR'"
echo "_mlstatus = True"
""",
    "srun": "#!/bin/sh\n",
    "scontrol": "#!/bin/sh\necho MpiDefault = cray_shasta\n",
}
"""A module system in which every module sets that variable, and a Slurm without additional output."""


def test_every_system_has_a_node_and_every_file_is_known() -> None:
    assert sorted({*SYSTEMS, *GENERIC, "workstation", "example-eight-h200"}) == sorted(SHIPPED)
    assert len(SYSTEMS) >= 8


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_file_is_valid_and_states_missing_tests(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.yaml"
    copy.write_text(SHIPPED[name].read_text())  # the source may not be owned by root
    copy.chmod(0o644)
    config.load(copy)
    if name in SYSTEMS:
        text = re.sub(r"\n# ", " ", SHIPPED[name].read_text())
        assert "Not tried there" in text
        assert "read 2026-" in text


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_section_of_a_system_has_its_source(name: str) -> None:
    """The source is in the comment above the section, or within the section."""
    sections: list[str] = []
    above = ""
    for line in SHIPPED[name].read_text().splitlines():
        if re.match(r"[a-z_]+:", line):
            sections.append(above + line)
        elif line.startswith(" "):
            sections[-1] += line
        above = above + line if line.startswith("#") else ""
    assert len(sections) >= 3
    assert [section for section in sections if "https://" not in section] == []


@pytest.fixture
def programs() -> Iterator[Path]:
    """A directory of these programs with a short path: long ones would be wrapped on the screen."""
    with TemporaryDirectory(dir="/tmp") as directory:
        for program, text in PROGRAMS.items():
            (Path(directory) / program).write_text(text)
            (Path(directory) / program).chmod(0o755)
        yield Path(directory)


@pytest.mark.mpi
@pytest.mark.cuda
@pytest.mark.hip
@on_systems("cscs-alps-gh200")
def test_dry_run_on_the_systems_node(doctor: Command, programs: Path, name: str) -> None:
    """The node, its modules and its scheduler are simulated; the MPI library is MPICH, and is surveyed."""
    library = str(Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/lib/libmpi.so.12"))
    profile = NODES / f"{name}.yaml"
    found = re.search(r"/opt/cray/pe/mpich/[0-9.]+", profile.read_text())
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LMOD_CMD": str(programs / "modulecmd"),
        "ROOTDIR": found[0] if found else "/none",
        "SLURM_JOB_ID": "1",
    }
    command = ["check", "--all", "--dry-run", "--config", name, "--simulate", str(profile)]
    ended = doctor(*command, "--mpi-lib", library, env=environment)
    assert ended.stderr == ""
    golden.check(f"sites/{name}.txt", of_the_site(ended.stdout).replace(f"{programs}/", ""))


def of_the_site(screen: str) -> str:
    """The parts of a dry run's screen on starting ranks and on the site's expectations, unwrapped."""
    _, _, below = screen.partition("for ranks")
    ranks, _, said = below.partition("\n\n")
    rows: list[list[str]] = []
    for line in ranks.splitlines()[2:]:
        cells = re.split(r"  +", line.strip())
        if not line.startswith(" "):
            rows.append(cells)
        else:
            rows[-1][1] += ("" if rows[-1][1].endswith("/") else " ") + cells[0]
    entries = re.findall(r"^\S.*(?:\n  .*)*", said, re.MULTILINE)
    kept = [entry for entry in entries if entry.startswith("driver-init") or " expects " in entry]
    told = [f"{kind:11}  {value}  ({where})" for kind, value, where in rows if kind != "library"]
    return "\n".join([*told, "", *kept, ""])


@pytest.mark.cuda
@pytest.mark.hip
@on_systems("olcf-frontier")
def test_prolog_checks_pass_on_the_systems_node(doctor: Command, name: str) -> None:
    command = ["check", "ipc-reopen", "driver-init", "environment", "--config", name, "--device", "0"]
    ended = doctor(*command, "--simulate", str(NODES / f"{name}.yaml"))
    assert ended.returncode == 0, ended.stdout


DELTA = """
extends: healthy-single
description: A node of Delta's that lists so many A100.
devices:
  - {{backend: cuda, name: NVIDIA A100-SXM4-40GB, memory: 40 GiB, arch: "8.0", count: {listed}}}
files: {files}
"""


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("listed", "gres", "on_bus", "says"),
    [
        (4, 0, 0, ["WARN node-type-unclear", "PASS initialised"]),
        (4, 8, 0, ["FAIL fewer-than-expected", "PASS initialised"]),
        full(4, 0, 8, ["FAIL fewer-than-expected", "PASS initialised", "WARN not-listed"]),
    ],
)
def test_node_of_several_types_that_has_lost_gpus(
    doctor: Command, tmp_path: Path, listed: int, gres: int, on_bus: int, says: list[str]
) -> None:
    lost = {f"/sys/bus/pci/devices/0000:f{n:x}:00.0": n for n in range(on_bus - listed)}
    files = {f"{place}/vendor": "0x10de\n" for place in lost}
    files |= {f"{place}/class": "0x030200\n" for place in lost}
    if gres:
        files["/etc/slurm/slurm.conf"] = f"NodeName={node_name.short()} Gres=gpu:a100:{gres}\n"
    profile = tmp_path / "node.yaml"
    profile.write_text(DELTA.format(listed=listed, files=json.dumps(files)))
    ended = doctor("check", "driver-init", "--config", "ncsa-delta", "--simulate", str(profile), "--json")
    found = [result["finding"] for result in json.loads(ended.stdout)["results"]]
    assert [f"{finding['status']} {finding['key']}" for finding in found] == says
    assert ended.returncode == (12 if "FAIL" in says[0] else 0)


@pytest.mark.cuda
def test_file_of_a_cluster_is_found_by_its_name(doctor: Command) -> None:
    shown = doctor("config", "show", env={**os.environ, "SLURM_CLUSTER_NAME": "frontier"})
    head = "# layers, topmost first: site-configs/olcf-frontier.yaml\ncluster: frontier\n"
    assert shown.stdout.startswith(head)


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.cuda
def test_ranks_start_under_the_launcher_of_a_generic_site(doctor: Command) -> None:
    prefix = Path(os.environ["GPUIPC_TEST_MPI"]).resolve() / "openmpi"
    command = ["check", "mpi-start", "--device", "cuda:0", "--no-workarounds"]
    environment = {**os.environ, "PATH": f"{prefix}/bin:{os.environ['PATH']}", "OPAL_PREFIX": str(prefix)}
    command += ["--config", "generic-openmpi-ucx", "--mpi-lib", f"{prefix}/lib/libmpi.so.40"]
    ended = doctor(*command, "--simulate", "healthy-single", env=environment)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.full
@pytest.mark.cuda
def test_eight_h200_pass_the_example_that_asks_for_their_nvlinks(doctor: Command) -> None:
    asked = ("check", "driver-init", "known-versions", "--config", "example-eight-h200")
    ran = doctor(*asked, "--simulate", "eight-gpus")
    assert ran.returncode == 0, ran.stdout
    assert "2 PASS" in ran.stdout


@pytest.mark.full
@pytest.mark.cuda
def test_own_check_on_the_page_of_site_configs_runs(doctor: Command, tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/copy_back.py").write_text(own_check())
    (tmp_path / "site.yaml").write_text("checks_dirs: [checks]\n")
    (tmp_path / "site.yaml").chmod(0o644)
    asked = ("check", "copy-back", "--config", str(tmp_path / "site.yaml"))
    ran = doctor(*asked, "--simulate", "healthy-single")
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^copy-back +PASS", ran.stdout, re.MULTILINE), ran.stdout
