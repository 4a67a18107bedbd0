"""The tool as one file: on a Python without the package, sent by Slurm, and sent over ssh."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from ship import build
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_fleet import DOCTOR, told

pytestmark = [pytest.mark.cuda, pytest.mark.xdist_group("ship")]  # it is built in the repository

REPOSITORY = Path(__file__).parents[2]

CHECKS = ("--", "driver-init", "ipc-handles", "--simulate", "healthy-single", "--backend", "cuda")


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file from `make zipapp`, for this Python and machine only."""
    path = tmp_path_factory.mktemp("ship") / "gpuipc-doctor.pyz"
    python = ".".join(map(str, sys.version_info[:2]))
    only = ("--python", python, "--machine", platform.machine())
    subprocess.run([sys.executable, REPOSITORY / "ship/build.py", path, *only], check=True)
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's Python: it has the bindings, but no gpuipc-doctor."""
    root = tmp_path_factory.mktemp("node")
    venv.create(root, with_pip=False, symlinks=True)
    [packages] = root.glob("lib/python*/site-packages")
    (packages / "bindings.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    absent = subprocess.run([root / "bin/python", "-c", "import gpuipc_doctor"], cwd="/", capture_output=True)
    assert absent.returncode == 1
    return root / "bin/python"


@pytest.mark.full
def test_file_runs_without_an_installation_and_leaves_nothing(
    pyz: Path, python: Path, tmp_path: Path
) -> None:
    """The home directory is not writable, as on many compute nodes."""
    place, copy = tmp_path / "tmp", tmp_path / "copy.pyz"
    place.mkdir()
    copy.write_bytes(pyz.read_bytes())
    environment = {"PATH": os.defpath, "GPUIPC_DOCTOR_PYTHON": str(python), "TMPDIR": str(place)}
    environment |= {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": str(Path.home() / ".cache")}  # the simulator's
    command = ["sh", copy, "--once", "check", *CHECKS[1:]]
    ended = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert ended.returncode == 0, ended
    assert "SIMULATED (healthy-single) · 2 PASS" in ended.stdout
    assert (list(place.iterdir()), copy.exists()) == ([], False)


@pytest.mark.full
def test_next_run_removes_leftovers_of_a_killed_run(pyz: Path, python: Path, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir(mode=0o700)
    environment = {"PATH": os.defpath, "GPUIPC_DOCTOR_PYTHON": str(python), "TMPDIR": str(place)}
    environment |= {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": str(Path.home() / ".cache")}
    sent = place / "gpuipc-doctor.4711"
    sent.write_bytes(pyz.read_bytes())
    command = ["sh", pyz, "check", *CHECKS[1:], "--summary", "--deadline", "300"]
    with subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE) as running:
        until("it has started", lambda: len(list(place.glob("gpuipc-doctor-*"))) > 1)
        running.kill()
    until("its own directory alone is left", lambda: len(list(place.glob("gpuipc-doctor-*"))) == 1)
    for left in place.iterdir():
        os.utime(left, (0, 0))
    ended = subprocess.run(command, env=environment, cwd="/", capture_output=True)
    assert (ended.returncode, list(place.iterdir())) == (0, []), ended


def test_missing_python_is_one_line(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pyz"
    copy.write_bytes((REPOSITORY / "ship/header.sh").read_bytes())
    ended = subprocess.run(
        ["/bin/sh", copy, "--once"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, copy.exists()) == (127, "", False)
    assert ended.stderr.count("\n") == 1
    assert "no Python 3.10 to 3.14 was found here; name one: GPUIPC_DOCTOR_PYTHON=" in ended.stderr


@pytest.mark.parametrize("place", ["job", pytest.param("allocation", marks=pytest.mark.full)])
@pytest.mark.slurm
def test_slurm_sends_it(
    slurm: Callable[..., Cluster], pyz: Path, python: Path, tmp_path: Path, place: str
) -> None:
    cluster = slurm(nodes=2)
    there = cluster.directory / "sent"
    there.mkdir()
    shipping = ("--ship", str(pyz), "--ship-to", str(there), "--python", str(python))
    command = (*DOCTOR, "fleet", "check", "-w", "n[1-2]", "--into", str(tmp_path / "out"), *shipping, *CHECKS)
    around = ("salloc", "-N2") if place == "allocation" else ()
    ended = cluster.run(*around, *command, timeout_s=120)
    assert ended.returncode == 0, ended
    assert told(tmp_path / "out")["nodes"] == {"pass": "n[1-2]", "fail": "", "unknown": ""}
    assert list(there.iterdir()) == []
    until("no step is left", lambda: not cluster.left())


@pytest.mark.full
def test_ssh_sends_it(sshd: list[str], pyz: Path, python: Path, tmp_path: Path) -> None:
    there = tmp_path / "sent"
    there.mkdir()
    options = [word for option in sshd for word in ("--launch-option", option)]
    shipping = ("--ship", str(pyz), "--python", str(python))
    command = [*DOCTOR, "fleet", "check", "--via", "ssh", "-w", "n1", *shipping, *options]
    ended = subprocess.run(
        [*command, "--into", str(tmp_path / "out"), "--ship-to", str(there), *CHECKS],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended
    assert list(there.iterdir()) == []
    refused = subprocess.run(
        [*command, "--into", str(tmp_path / "none"), "--ship-to", str(tmp_path / "nowhere"), *CHECKS],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 11, refused
    [silent] = told(tmp_path / "none")["silent"]  # type: ignore[misc]
    assert (silent["state"], "No such file or directory" in silent["reason"]) == ("tool missing", True)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("/nowhere/python3", "/nowhere/python3 was not found; name a Python 3.10 to 3.14 of this node"),
        (
            "{}/python",
            "{}/python is no Python 3.10 to 3.14 with a GIL (Python 3.9.18); name another one",
        ),
    ],
)
def test_unusable_named_python_is_reported_and_no_other_is_used(
    tmp_path: Path, named: str, says: str
) -> None:
    """A script stands for Python 3.9: it prints that version and exits with an error."""
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" != -V ] || exec echo Python 3.9.18\nexit 1\n')
    old.chmod(0o755)
    file = tmp_path / "gpuipc-doctor.pyz"
    file.write_bytes((REPOSITORY / "ship/header.sh").read_bytes())
    environment = {**os.environ, "GPUIPC_DOCTOR_PYTHON": named.format(tmp_path)}
    command = ["sh", str(file), "--once", "check"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (127, f"gpuipc-doctor: {says.format(tmp_path)}\n")
    assert not file.exists()


def test_header_accepts_the_pythons_that_are_packed() -> None:
    """And no other, whose compiled modules would be missing."""
    packed = [tuple(map(int, each.split("."))) for each in build.PYTHONS]
    header = (REPOSITORY / "ship/header.sh").read_text()
    assert f"{packed[0]} <= sys.version_info < {(3, packed[-1][1] + 1)}" in header
    assert all(f"python3.{minor} " in header or f"python3.{minor};" in header for _, minor in packed)


def test_old_python_can_parse_the_file_to_say_that_it_is_too_old() -> None:
    text = (REPOSITORY / "ship/__main__.py").read_text()
    assert ast.parse(text, feature_version=(3, 6))
    assert "from __future__" not in text  # annotations: 3.7


def test_older_python_gets_a_message_with_the_needed_version() -> None:
    older = "import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path('ship', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", older], cwd=REPOSITORY, capture_output=True, text=True)
    assert (ended.returncode, "needs Python 3.10 or newer" in ended.stderr) == (1, True), ended
