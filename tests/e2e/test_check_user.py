"""`check --user NAME`: every process of the run is the user's; root is warned of others' programs."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
PYTHON = Path(f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}")
USER, GROUP = f"gpuipc-{os.getpid()}", f"gpuipcs-{os.getpid()}"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user can read; pytest closes its own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def command(place: Path) -> str:
    """The command by a Python that each user can read."""
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON}, which every user can run")
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(place / "venv/bin/python")


@pytest.fixture(scope="module")
def user() -> Iterator[pwd.struct_passwd]:
    """An account with a supplementary group."""
    subprocess.run(["groupadd", GROUP], check=True)
    subprocess.run(["useradd", "-m", "-G", GROUP, USER], check=True)
    yield pwd.getpwnam(USER)
    subprocess.run(["userdel", "-r", USER], check=True, capture_output=True)
    subprocess.run(["groupdel", GROUP], check=True)


WHO = '''\
"""Who the worker is."""

import os

from gpuipc_doctor.api import Check, Finding, Probe


class Who(Check):
    id = "who"
    title = "who runs this"

    def probes(self, ctx):
        yield Probe("who", {"worker": look})

    def judge(self, done):
        yield Finding.ok("who", "{who}", who=done.records["worker"]["who"])


def look(w):
    place = os.environ.get("TMPDIR") or os.getcwd()
    w.record(who={"ids": [*os.getresuid(), *os.getresgid()], "groups": sorted(os.getgroups()),
                  "home": os.environ["HOME"], "parent": os.stat(f"/proc/{os.getppid()}").st_uid,
                  "writes": os.access(place, os.W_OK), "reads": os.access("/etc/shadow", os.R_OK)})


CHECK = Who()
'''


def run(command: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, "-m", "gpuipc_doctor", *words],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip


@AS_ROOT
def test_workers_are_the_users(command: str, user: pwd.struct_passwd, place: Path) -> None:
    checks, results = place / "checks", place / "results"
    for directory in (checks, results):
        directory.mkdir()
    os.chown(results, user.pw_uid, user.pw_gid)
    (checks / "who.py").write_text(WHO)
    config = place / "site.yaml"
    config.write_text(f"checks_dirs: [{checks}]\n")
    ended = run(
        command, "check", "who", "driver-init", "--user", USER, "--simulate", "healthy-single",
        "--config", str(config), "--output", str(results / "report.json"), TMPDIR="/root",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((results / "report.json").read_text())
    (who,) = (each["finding"]["values"]["who"] for each in report["results"] if each["check"] == "who")
    assert who == {
        "ids": [user.pw_uid] * 3 + [user.pw_gid] * 3,
        "groups": sorted(os.getgrouplist(USER, user.pw_gid)),
        "home": user.pw_dir,
        "parent": user.pw_uid,
        "writes": True,
        "reads": False,
    }
    assert (results / "report.json").stat().st_uid == user.pw_uid


@AS_ROOT
@pytest.mark.parametrize("name", ["no-such-user", "", "a\x1bb", "0"])
def test_unknown_user_is_refused(command: str, name: str) -> None:
    ended = run(command, "check", "driver-init", "--user", name)
    assert ended.returncode == 2
    assert "gpuipc-doctor check: --user: unknown user" in ended.stderr


@AS_ROOT
def test_only_root_becomes_another_user(command: str, user: pwd.struct_passwd) -> None:
    ended = subprocess.run(
        [command, "-m", "gpuipc_doctor", "check", "driver-init", "--user", "root"],
        user=USER, group=user.pw_gid, extra_groups=[], cwd="/", capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "gpuipc-doctor check: --user: only root can run checks as another user" in ended.stderr


@AS_ROOT
def test_user_who_cannot_read_the_tool_is_told(user: pwd.struct_passwd, command: str, place: Path) -> None:
    roots_only = place / "roots-only"
    roots_only.mkdir(mode=0o700)
    (roots_only / "venv").symlink_to(place / "venv")
    ended = run(str(roots_only / "venv/bin/python"), "check", "driver-init", "--user", USER)
    assert ended.returncode == 2
    assert f"{USER} cannot read this Python or its packages" in ended.stderr
