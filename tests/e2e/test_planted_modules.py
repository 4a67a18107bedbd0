"""What this tool starts imports nothing from the working directory, and as root only what is root's."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.files import python
from gpuipc_doctor.fleet import ask
from ship import packages
from tests.other_user import NOBODY
from tests.waiting import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
DOCTOR = str(Path(sys.executable).with_name("gpuipc-doctor"))
MODULES = ("click", "ctypes", "json", "msgspec", "runpy", "tempfile", "yaml")

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to another user: needs root")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory of modules that record their import in the file ``sprung``."""
    directory = tmp_path / "trap"
    directory.mkdir()
    for name in MODULES:
        text = (
            f"open({str(directory / 'sprung')!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        )
        (directory / f"{name}.py").write_text(text)
    return directory


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what Python is told by the tests' own environment."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)


def sprung(trap: Path) -> list[str]:
    mark = trap / "sprung"
    return mark.read_text().split() if mark.exists() else []


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize("command", ["fleet", "job"])
def test_nodes_import_nothing_from_the_working_directory(trap: Path, tmp_path: Path, command: str) -> None:
    """Slurm starts a job's processes in the directory in which it was submitted. An empty entry of PYTHONPATH
    stands for the working directory."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (programs / "ssh").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    checks = ("driver-init", "--simulate", "healthy-single", "--backend", "cuda")
    words = {
        "fleet": ("fleet", "check", "--via", "ssh", "-w", "n1", "--into", tmp_path / "into", "--", *checks),
        "job": ("job", "--via", "ssh", "-w", "n1", "--user", "nobody"),
    }[command]
    ended = run(DOCTOR, *words, cwd=trap, PATH=path, PYTHONPATH=":")
    assert sprung(trap) == []
    assert ended.returncode == {"fleet": 0, "job": 3}[command], ended


OWN_CHECK = '''"""A site's own check."""

from gpuipc_doctor.api import Check, Finding, Probe


class OwnInit(Check):
    id = "own-init"
    title = "a site's own"

    def probes(self, ctx):
        yield Probe("own", {"worker": act}, ctx.devices)

    def judge(self, done):
        yield Finding.ok("done", "done")


def act(w):
    w.record(done=1)


CHECK = OwnInit()
'''


@pytest.mark.cuda
def test_workers_and_sites_checks_import_nothing_from_the_working_directory(
    trap: Path, tmp_path: Path
) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/own_init.py").write_text(OWN_CHECK)
    site = tmp_path / "site.yaml"
    site.write_text(f"checks_dirs: [{tmp_path / 'checks'}]\n")
    checks = ("driver-init", "own-init", "--simulate", "healthy-single", "--backend", "cuda")
    ended = run(DOCTOR, "check", *checks, "--config", site, cwd=trap)
    assert (ended.returncode, sprung(trap)) == (0, []), ended


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("has_safe_path", [False, python._HAS_SAFE_PATH])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside other packages"])
def test_every_start_of_python_leaves_the_working_directory_out(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_safe_path: bool, others: bool
) -> None:
    """Python 3.10 has no -P, and a package of PYTHONPATH goes on being found."""
    monkeypatch.setattr(python, "_HAS_SAFE_PATH", has_safe_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "bindings.py").write_text("print('of the site')\n")
    if others:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    variables = {"PYTHONPATH": str(tmp_path / "more")} if others else {}
    text = (
        "import click, sys\nprint(sys.argv[1:])\ntry: import bindings\nexcept ImportError: print('isolated')"
    )
    program = run(*python.program(text, "a b"), cwd=trap, **variables)
    module = run(*python.module("gpuipc_doctor", "--version"), cwd=trap, **variables)
    assert sprung(trap) == []
    assert program.stdout == f"['a b']\n{'of the site' if others else 'isolated'}\n", program
    assert module.stdout.startswith("gpuipc-doctor, version "), module
    assert ("-I" in python.module("gpuipc_doctor")) is (not others or os.geteuid() == 0)


@AS_ROOT
def test_root_imports_nothing_that_others_can_write(trap: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (trap / "runpy.py").unlink()
    (trap / "tempfile.py").unlink()  # before our first line, Python itself imports from PYTHONPATH
    os.chown(trap, NOBODY, NOBODY)
    program = "import os, sys; from gpuipc_doctor.files import python; python.restrict_environment(); "
    program += "import click; print([path for path in sys.path if 'trap' in path], os.environ['PYTHONPATH'])"
    ended = run(sys.executable, "-c", program, cwd=Path("/"), PYTHONPATH=f"{trap}:{own}")
    assert (ended.stdout, sprung(trap)) == (f"[] {own}\n", []), ended
    assert ended.stderr.startswith(
        f"gpuipc-doctor: not imported from: {trap} is not trusted: {trap} belongs to"
    )
    assert ended.stderr.count("\n") == 1
    assert run(DOCTOR, "list", cwd=Path("/"), PYTHONPATH=str(trap)).returncode == 0
    assert sprung(trap) == []


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The single file's start and package; what it needs beside comes from this Python."""
    path = tmp_path_factory.mktemp("packed") / "gpuipc-doctor.pyz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(REPOSITORY / "ship/__main__.py", "__main__.py")
        for module in (REPOSITORY / "gpuipc_doctor").rglob("*.py"):
            packed.write(module, module.relative_to(REPOSITORY))
        for name in ("rpds.py", "msgspec.py"):
            packed.writestr(name, "")
    return path


@pytest.fixture
def archive(packed_once: Path, tmp_path: Path) -> Path:
    """The single file's archive, in the test's own directory."""
    return Path(shutil.copy(packed_once, tmp_path))


@pytest.fixture(params=["theirs", "link to theirs", "vanished", "full", "relative"])
def tmpdir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A TMPDIR that cannot be used, and that of a hostile user beside it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    before = theirs.stat().st_mtime_ns
    if request.param == "link to theirs":
        (tmp_path / "link").symlink_to(theirs)
    if request.param == "full":
        (tmp_path / "full").mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", tmp_path / "full"], check=True
        )
    names = {"theirs": theirs, "link to theirs": tmp_path / "link", "vanished": tmp_path / "none"}
    try:
        yield str(names.get(request.param, tmp_path / "full" if request.param == "full" else "theirs"))
    finally:
        if request.param == "full":
            subprocess.run(["umount", tmp_path / "full"], check=True)
    assert (list(theirs.iterdir()), theirs.stat().st_mtime_ns) == ([], before)  # nothing came and went


@AS_ROOT
def test_single_file_unpacks_where_no_other_user_can_replace_it(
    archive: Path, tmp_path: Path, tmpdir: str
) -> None:
    ended = run(sys.executable, archive, "--version", cwd=tmp_path, TMPDIR=tmpdir)
    assert ended.stdout.startswith("gpuipc-doctor, version "), ended


@AS_ROOT
@pytest.mark.parametrize("user", ["0", "1000"])
def test_packages_command_imports_nothing_planted(trap: Path, tmp_path: Path, user: str) -> None:
    """As root, nothing of PYTHONPATH either; for others it goes on working."""
    text = packages.COMMAND.replace(str(packages.PREFIX), sys.prefix).replace(
        "/usr/bin/id -u", f"echo {user}"
    )
    command = tmp_path / "command"
    command.write_text(text)
    command.chmod(0o755)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; print('of the site', file=sys.stderr)")
    ended = run(
        command, "--version", cwd=trap, PYTHONPATH=str(trap) if user == "0" else str(tmp_path / "site")
    )
    assert (ended.stdout[:24], sprung(trap)) == ("gpuipc-doctor, version 0", []), ended
    assert ("of the site" in ended.stderr) is (user != "0")


STANDARD = sorted(sys.stdlib_module_names - set(sys.builtin_module_names))
SITE_PACKAGES = f"lib/python3.{sys.version_info[1]}/site-packages"


@pytest.fixture(scope="module")
def ambush(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of another user with all modules of Python's library, and what its variables may name."""
    directory = tmp_path_factory.mktemp("ambush") / "trap"
    (directory / SITE_PACKAGES).mkdir(parents=True)
    said = f"open({str(directory / 'sprung')!r}, 'a').write({{!r}} + '\\n')\n"
    for place in (directory, directory / SITE_PACKAGES, directory / SITE_PACKAGES / ".."):
        for name in (*STANDARD, "sitecustomize", "usercustomize", "click", "yaml", "planted"):
            (place / f"{name}.py").write_text(said.format(name))
    (directory / SITE_PACKAGES / "planted.pth").write_text("import planted\n")
    cached = directory / "cache" / Path(os.__file__).parent.relative_to("/")
    cached.mkdir(parents=True)
    py_compile.compile(
        str(directory / "planted.py"), str(cached / f"os.{sys.implementation.cache_tag}.pyc"),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    for path in (directory, *directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return directory


def variables(trap: Path) -> dict[str, str]:
    """Each variable with which Python's start can be made to import or run something, or to fail."""
    return {
        "PYTHONPATH": str(trap),
        "PYTHONHOME": str(trap),
        "PYTHONUSERBASE": str(trap),
        "PYTHONPYCACHEPREFIX": str(trap / "cache"),
        "PYTHONSTARTUP": str(trap / "planted.py"),
        "PYTHONWARNINGS": "error::planted.Warning",
        "PYTHONBREAKPOINT": "planted.stop",
        "PYTHONPLATLIBDIR": str(trap),
        "PYTHONEXECUTABLE": str(trap / "python3"),
        "__PYVENV_LAUNCHER__": str(trap / "python3"),
        "PYTHONINSPECT": "1",
        "PYTHONOPTIMIZE": "2",
        "PYTHONNOUSERSITE": "",
        "PYTHONPROFILEIMPORTTIME": "1",
        "PYTHONDUMPREFSFILE": str(trap / "refs"),
    }


def single_file(archive: Path, *, by: str) -> list[str]:
    """The single file, as a user and as srun start it."""
    file = archive.with_name("gpuipc-doctor")
    file.write_bytes((REPOSITORY / "ship/header.sh").read_bytes() + archive.read_bytes())
    file.chmod(0o755)
    if by == "--ship":
        return [*("sh", "-c", ask._CARRY, "sh", str(archive.parent), "60", sys.executable), "--version"]
    return ["sh", str(file), "--version"]


STARTED_UNPACKED = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gpuipc_doctor.files import python
from gpuipc_doctor.fleet import ask
python.unpack_into({str(REPOSITORY)!r})
python.restrict_environment()
import subprocess
for command in (
    python.module("gpuipc_doctor", "--version"), python.program("import click, json, gpuipc_doctor"),
    python.script("-c", "import json"),
):
    subprocess.run(command, check=True)
"""
"""What the single file does once it is unpacked: it starts its workers, of any kind."""

STARTS = (
    "single file",
    "single file by --ship",
    "its workers",
    "packages' command",
    "python -I -m",
    "prolog",
)


def start(way: str, archive: Path) -> list[str]:
    if way == "packages' command":
        command = archive.with_name("command")
        command.write_text(packages.COMMAND.replace(str(packages.PREFIX), sys.prefix))
        return ["sh", str(command), "--version"]
    return {
        "single file": single_file(archive, by="hand"),
        "single file by --ship": single_file(archive, by="--ship"),
        "its workers": [sys.executable, "-I", "-c", STARTED_UNPACKED],
        "python -I -m": [sys.executable, "-I", "-m", "gpuipc_doctor", "--version"],
        "prolog": [sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--help"],
    }[way]


@AS_ROOT
@pytest.mark.parametrize("way", STARTS)
def test_root_runs_nothing_that_a_user_has_planted(
    archive: Path, ambush: Path, tmp_path: Path, way: str
) -> None:
    """In the working directory alone, and also by all variables: none of them may be obeyed."""
    every, command = variables(ambush), start(way, archive)
    (tmp_path / "gpuipc-doctor").touch()
    if way in ("its workers", "python -I -m", "prolog"):  # with -I Python obeys these two
        for variable in ("PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"):
            every.pop(variable)
    usual = {"PATH": os.environ["PATH"], "HOME": "/root", "GPUIPC_DOCTOR_PYTHON": sys.executable}
    for environment in (usual, usual | every):
        with (tmp_path / "gpuipc-doctor").open("rb") as sent:
            ended = subprocess.run(
                command, cwd=ambush, stdin=sent, capture_output=True, text=True, timeout=LIMIT_S,
                env=environment,
            )  # fmt: skip
        assert (sprung(ambush), ended.returncode) == ([], 0), ended
        assert "gpuipc-doctor" in ended.stdout


def test_single_file_of_a_user_keeps_pythonpath_but_no_empty_entry(
    archive: Path, trap: Path, tmp_path: Path
) -> None:
    """Its probe of each Python imports nothing of the working directory, nor of PYTHONPATH."""
    file = single_file(archive, by="hand")[1]
    (trap / "sysconfig.py").write_text((trap / "click.py").read_text())
    header = Path(file).read_bytes().replace(b'"$(id -u)" = 0', b"1000 = 0", 1)
    Path(file).write_bytes(header)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; print('of the site', file=sys.stderr)")
    path = f":{tmp_path / 'site'}::"
    ended = run("sh", file, "--version", cwd=trap, PYTHONPATH=path, GPUIPC_DOCTOR_PYTHON=sys.executable)
    assert (ended.stdout[:24], sprung(trap)) == ("gpuipc-doctor, version 0", []), ended
    assert ended.stderr.startswith("of the site\n")


PYTHONS = {
    "theirs": (NOBODY, 0o755, 0, 0o755, "belongs to user 65534"),
    "in theirs": (0, 0o755, NOBODY, 0o755, "belongs to user 65534"),
    "in a directory for all": (0, 0o755, 0, 0o777, "others can write"),
    "in a directory for a group": (0, 0o755, 0, 0o775, "others can write"),
    "for all": (0, 0o757, 0, 0o755, "others can write"),
    "for a group": (0, 0o775, 0, 0o755, "others can write"),
    "in a sticky directory": (0, 0o755, 0, 0o1777, ""),
    "root's": (0, 0o755, 0, 0o755, ""),
}
"""Owner and mode of a file and of its directory, and why root does not run it."""


@AS_ROOT
@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "file") for name in PYTHONS),
        *((name, how) for name in ("in theirs", "root's") for how in ("link", "link above")),
    ],
)
def test_root_runs_only_a_python_that_it_trusts(archive: Path, tmp_path: Path, name: str, how: str) -> None:
    """One of PATH that is not trusted is skipped for the next; a named one is refused."""
    file = single_file(archive, by="hand")[1]
    owner, mode, above, way, why = PYTHONS[name]
    place, own = tmp_path / "place", tmp_path / "own"
    place.mkdir()
    python3 = place / "python3"
    python3.write_text(f'#!/bin/sh\necho ran >> {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    python3.chmod(mode)
    os.chown(python3, owner, owner)
    os.chown(place, above, above)
    place.chmod(way)
    own.mkdir()
    (own / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (own / "python3").chmod(0o755)
    if how == "link":
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "python3").symlink_to("../place/python3")
        place = tmp_path / "links"
    elif how == "link above":
        (tmp_path / "above").symlink_to(place)
        place = tmp_path / "above"
    ended = run("sh", file, "--version", cwd=Path("/"), PATH=f"{place}:{own}:/usr/bin:/bin")
    assert ended.stdout.startswith("gpuipc-doctor, version "), ended
    assert (tmp_path / "ran").exists() is (not why)
    (tmp_path / "ran").unlink(missing_ok=True)
    named = run("sh", file, "--version", cwd=Path("/"), GPUIPC_DOCTOR_PYTHON=str(place / "python3"))
    assert (named.returncode, (tmp_path / "ran").exists()) == ((127, False) if why else (0, True)), named
    if why:
        assert f"{place / 'python3'} is not trusted: " in named.stderr
        assert why in named.stderr
        assert named.stderr.count("\n") == 1
