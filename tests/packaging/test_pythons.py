"""The wheel and the sdist on each installed Python, with the lowest and the newest dependencies.

The ids of the tests show the Pythons: those named python3.10 to python3.14 on PATH, and those of the Debian
releases whose root file systems ``make`` fetched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor import __version__
from tests.conftest import ROOTS
from tests.kfd.emulated import namespace
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("pythons"), pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
MINORS = (10, 11, 12, 13, 14)


def run(*command: str | Path, code: int = 0) -> str:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def starts(minor: int) -> bool:
    """Whether this Python exists and starts; pyenv also has shims for versions that are not selected."""
    found = shutil.which(f"python3.{minor}")
    return bool(found) and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0


PYTHONS = [f"python3.{minor}" for minor in MINORS if starts(minor)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel built from it."""
    copy, out = tmp_path_factory.mktemp("source") / "repository", tmp_path_factory.mktemp("dist")
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
    run(sys.executable, "-m", "build", "--outdir", out, copy)
    return out


def lowest() -> list[str]:
    """Each dependency at its lower bound in pyproject.toml."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    (stated,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    return [
        requirement.replace(">=", "==") for requirement in re.findall(r'^    "(.*?)"', stated, re.MULTILINE)
    ]


def test_each_dependency_states_a_lowest_version() -> None:
    assert len(lowest()) >= 8
    assert all(re.fullmatch(r"\w+==[\d.]+", requirement) for requirement in lowest())


@pytest.mark.parametrize(("kind", "versions"), [("whl", "newest"), ("tar.gz", "lowest")])
@pytest.mark.parametrize("python", PYTHONS)
def test_installed_with_pip_it_tests_a_simulated_node(
    python: str, kind: str, versions: str, built: Path, tmp_path: Path
) -> None:
    (package,) = built.glob(f"*.{kind}")
    wanted = lowest() if versions == "lowest" else []
    run(python, "-m", "venv", tmp_path)
    run(tmp_path / "bin/python", "-m", "pip", "install", "--quiet", package, "cuda-bindings==12.9.*", *wanted)
    doctor, report = tmp_path / "bin/gpuipc-doctor", tmp_path / "report.json"
    assert __version__ in run(doctor, "--version")
    run(doctor, "known-issues", "lint")
    run(doctor, "inventory", "--json")
    run(
        doctor, "check", "ipc-reopen", "--simulate", "healthy-single", "--backend", "cuda", "--output", report
    )
    assert "ipc-reopen" in run(doctor, "report", report)
    run(doctor, "compare", report, report)


# Debian's newer Pythons

PLATFORMS = [f"--platform=manylinux{version}_x86_64" for version in ("2014", "_2_17", "_2_28")]

IN_ROOT = """
mount --bind "$1" "$3/mnt" && mount --bind "$2" "$3/srv" && mount --types proc proc "$3/proc" && cd / || exit
shift 2; root=$1; shift
export PYTHONPATH=/mnt PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
exec chroot "$root" sh -c "cd /srv && exec $*"
"""
"""Arguments: directories for /mnt and /srv, a root file system, and a command."""


def of_debian() -> dict[str, Path]:
    """Python → a root file system that has it, for those not on PATH."""
    found = {file.parent.name: file.parents[3] for file in sorted(ROOTS.glob("*/usr/lib/python3.*/os.py"))}
    return {python: root for python, root in found.items() if python not in PYTHONS}


@pytest.mark.parametrize(("python", "root"), of_debian().items(), ids=of_debian())
def test_the_wheel_runs_on_debians_python(python: str, root: Path, built: Path, tmp_path: Path) -> None:
    """Installed into a directory, as these releases have no pip; runs unit tests that need no compiler."""
    (wheel,) = built.glob("*.whl")
    wanted = (f"--python-version={python.removeprefix('python')}", "--implementation=cp", *PLATFORMS)
    site, needed = tmp_path / "site", ("jinja2", "pytest", "pytest-timeout", "hypothesis")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", site)
    run(*pip, *wanted, wheel, *needed)
    source = tmp_path / "source"  # without the package, which would shadow the installed one
    shutil.copytree(REPOSITORY / "tests", source / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", source)

    def inside(*command: str) -> str:
        return run(*namespace(), "sh", "-c", IN_ROOT, "sh", site, source, root, python, *command)

    assert __version__ in inside("-m", "gpuipc_doctor", "--version")
    inside("-m", "gpuipc_doctor", "known-issues", "lint")
    inside("-m", "gpuipc_doctor", "inventory", "--json")
    rooms = [f"tests/unit/{room}" for room in ("report", "present", "site")]
    assert " passed" in inside("-m", "pytest", "-q", "-p", "no:cacheprovider", *rooms)
