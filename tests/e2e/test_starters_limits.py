"""Limits and signals of whoever starts the tool: no FAIL on a healthy node, and never a traceback."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.e2e.test_prolog import AMPLE, POLICY
from tests.other_user import NOBODY
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cuda

AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip
"""Another user, who may read this repository and its Python wherever they are."""

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: needs root")
USERS = [
    pytest.param((), id="this user"),
    pytest.param(AS_NOBODY, id="nobody", marks=[NEEDS_ROOT, pytest.mark.full]),
]
"""`full`: nobody has no simulated drivers yet, and they take five seconds to build."""

MIB = 1 << 20
NO_LIMIT = resource.RLIM_INFINITY
CHECK = ("check", "ipc-reopen", "--simulate", "healthy-single", "--backend", "cuda")


def limited(which: int, soft: int, hard: int | None = None) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (soft, soft if hard is None else hard))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty home directory of nobody's."""
    directory = tmp_path_factory.mktemp("home")
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    return directory


def run(
    user: tuple[str, ...], home: Path, before: Callable[[], object], *command: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as this user, with its own home, or as another, whose home gets the simulated drivers."""
    if user and not any(home.iterdir()):
        (home / "built").touch()
        assert run(user, home, lambda: None, *CHECK).returncode == 0
    return subprocess.run(
        [*user, sys.executable, "-I", "-m", "gpuipc_doctor", *command],
        preexec_fn=before, cwd="/", env={**os.environ, **({"HOME": str(home)} if user else {})},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def prolog(
    directory: Path, before: Callable[[], object], profile: str = "healthy-single"
) -> tuple[int, str, str]:
    site = directory / "site.yaml"
    site.write_text(json.dumps({"prolog": {**POLICY, "simulate": profile}}))
    ended = run((), directory, before, "prolog", "--config", str(site), *AMPLE)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("which", "limit", "names"),
    [
        full(resource.RLIMIT_AS, 17 * MIB, "cannot start"),
        (resource.RLIMIT_AS, 50 * MIB, "ulimit -v"),
        (resource.RLIMIT_AS, 150 * MIB, "ulimit -v"),
        full(resource.RLIMIT_AS, 700 * MIB, "ulimit -v"),
        full(resource.RLIMIT_AS, 2000 * MIB, "ulimit -v"),
        full(resource.RLIMIT_FSIZE, 100 << 10, "ulimit -f"),
        (resource.RLIMIT_FSIZE, 1000 << 10, "ulimit -f"),
        (resource.RLIMIT_NOFILE, 16, "ulimit -n"),
        full(resource.RLIMIT_NOFILE, 20, "ulimit -n"),
        (resource.RLIMIT_DATA, 20 * MIB, "ulimit -d"),
    ],
)
def test_limit_of_the_starter_drains_no_healthy_node(
    tmp_path: Path, which: int, limit: int, names: str
) -> None:
    code, said, errors = prolog(tmp_path, limited(which, limit))
    assert (code, said.count("\n")) == (0, 1), (said, errors)
    assert " ERROR " in said
    assert names in said
    assert "Traceback" not in errors


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    ("which", "limit", "names"),
    [
        (resource.RLIMIT_AS, 250 * MIB, "ulimit -v"),
        full(resource.RLIMIT_AS, 2000 * MIB, "ulimit -v"),
        full(resource.RLIMIT_FSIZE, 1000 << 10, "ulimit -f"),
    ],
)
def test_check_names_the_limit_and_who_sets_it(
    home: Path, user: tuple[str, ...], which: int, limit: int, names: str
) -> None:
    ended = run(user, home, limited(which, limit), *CHECK)
    assert ended.returncode == 11, ended
    assert names in ended.stdout
    assert "slurmd's unit" in ended.stdout


@pytest.mark.parametrize(
    ("which", "soft"), [(resource.RLIMIT_AS, 700 * MIB), full(resource.RLIMIT_FSIZE, 1000)]
)
def test_soft_limit_is_raised(tmp_path: Path, which: int, soft: int) -> None:
    code, said, _ = prolog(tmp_path, limited(which, soft, NO_LIMIT))
    assert (code, " PASS " in said) == (0, True), said


def test_fault_of_a_driver_drains_also_under_a_limit(tmp_path: Path) -> None:
    code, said, _ = prolog(tmp_path, limited(resource.RLIMIT_DATA, 500 * MIB), "nvidia-460.32.03")
    assert (code, " FAIL " in said) == (12, True), said


@pytest.mark.parametrize("user", USERS)
def test_ignored_sigchld_changes_nothing(home: Path, user: tuple[str, ...]) -> None:
    ended = run(user, home, lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), *CHECK)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def test_ignored_sigchld_changes_no_prolog(tmp_path: Path) -> None:
    code, said, _ = prolog(tmp_path, lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert (code, " PASS " in said) == (0, True), said


@pytest.mark.parametrize("command", [("list",), CHECK], ids=["list", "check"])
@pytest.mark.parametrize("mib", [full(18), 22, full(26), full(30), 36, full(80)])
def test_start_without_memory_is_one_line(home: Path, mib: int, command: tuple[str, ...]) -> None:
    ended = run((), home, limited(resource.RLIMIT_AS, mib * MIB), *command)
    wanted = {36: (0, 1), 80: (0,)} if command == ("list",) else {}  # 36 MiB suffice for Debian's Python
    assert ended.returncode in wanted.get(mib, (1,)), ended
    assert ended.stderr.startswith("gpuipc-doctor: ") or ended.returncode == 0
    assert ended.stderr.count("\n") == ended.returncode, ended
