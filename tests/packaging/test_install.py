"""The wheel (built from the sdist) and the editable install contain every file, seen from ``/``.

pyproject.toml maps the check files and site configs, which live outside gpuipc_doctor/, into the package.
Other build backends, or one wrong line, leave them out of one of the three without a warning.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

# Every file of `make test` itself is found in an editable installation.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.xdist_group("packaging")]

REPOSITORY = Path(__file__).parents[2]

PACKAGES = {
    "gpuipc_doctor": "gpuipc_doctor",
    "checks": "gpuipc_doctor.checks",
    "site-configs": "gpuipc_doctor.site_configs",
}
"""Directories of the repository → packages that they are installed as."""

IGNORED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def run(*command: str | Path, stdin: str = "") -> str:
    """The output of a command that must succeed, without PYTHONPATH, which would lead to the repository."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, input=stdin, cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def package_files(source: Path) -> list[tuple[str, str]]:
    """(package, path in it) of every file below the three directories."""
    return sorted(
        (package, path.relative_to(source / directory).as_posix())
        for directory, package in PACKAGES.items()
        for path in (source / directory).rglob("*")
        if path.is_file()
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository like a fresh clone: without build/, which could contain forgotten files."""
    copy = tmp_path_factory.mktemp("source") / "repository"
    shutil.copytree(REPOSITORY, copy, ignore=IGNORED)
    return copy


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist. The wheel built from it, as a packager does, is in the same directory."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, source)
    (path,) = out.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    (path,) = sdist.parent.glob("*.whl")
    return path


def test_an_index_would_take_sdist_and_wheel(sdist: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)


@pytest.fixture(
    scope="module",
    params=["wheel", "editable"],
)
def environment(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The ``bin`` of a virtual environment with the package, installed this way, and its dependencies.

    The wheel's dependencies are installed with it; the editable package uses this environment's.
    """
    root = tmp_path_factory.mktemp(request.param)
    venv.create(root, with_pip=False, symlinks=True)
    is_lent = request.param == "editable"
    what = ["--no-deps", "--editable", source] if is_lent else [request.getfixturevalue("wheel")]
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        root / "bin/python",
        "install",
        "--quiet",
        "--no-compile",
        *what,
    )
    if is_lent:
        (packages,) = root.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return root / "bin"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path, source: Path) -> None:
    expected = {f"{package.replace('.', '/')}/{path}" for package, path in package_files(source)}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_wheel_holds_the_licence(wheel: Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_sdist_holds_what_a_packager_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py"} <= names


def test_every_file_is_found_from_another_directory(environment: Path, source: Path) -> None:
    script = (
        "import importlib.resources, json, sys\n"
        "files = json.load(sys.stdin)\n"
        "missing = [f for f in files if not importlib.resources.files(f[0]).joinpath(f[1]).is_file()]\n"
        "print(json.dumps(missing))"
    )
    files = package_files(source)
    assert ("gpuipc_doctor.checks", "__init__.py") in files
    assert json.loads(run(environment / "python", "-I", "-c", script, stdin=json.dumps(files))) == []


def test_version(environment: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert version in run(environment / "gpuipc-doctor", "--version")


def test_list_names_every_check(environment: Path, source: Path) -> None:
    ids = {path.stem.replace("_", "-") for path in (source / "checks").glob("[!_]*.py")}
    assert ids
    listed = run(environment / "gpuipc-doctor", "list")
    assert not {check for check in ids if check not in listed}
