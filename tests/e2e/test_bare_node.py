"""A node without things that every program expects: one line, the right exit code, and no hang."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.e2e.test_prolog import POLICY
from tests.waiting import LIMIT_S

NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
READ_ONLY_PROC = "mount --bind /proc /proc && mount -o remount,bind,ro /proc"
NO_DEV_NULL = "mount -t tmpfs none /dev && mknod /dev/urandom c 1 9"
READ_ONLY = (
    "mount -o remount,bind,ro / && for d in /tmp /var/tmp /dev/shm;"
    " do mount --bind $d $d && mount -o remount,bind,ro $d || exit 99; done"
)
"""No file is hidden: the repository and its virtual environment may be below one of these directories."""

ANOTHER_NAMESPACE = """
import subprocess, sys
program = [sys.executable, "-m", "gpuipc_doctor", *sys.argv[1:]]
sys.exit(subprocess.run(["unshare", "--pid", "--fork", *program]).returncode)
"""

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        os.geteuid() != 0
        or shutil.which("setpriv") is None
        or subprocess.run([*NAMESPACE, READ_ONLY_PROC], capture_output=True).returncode != 0,
        reason="needs root and a mount namespace (unshare and setpriv, util-linux)",
    ),
]


def run(prelude: str, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    within = [*NAMESPACE, f'{prelude} || exit 99; exec "$@"', "sh", sys.executable, *command]
    ended = subprocess.run(  # type: ignore[call-overload]
        within, **{"capture_output": True, "text": True, "timeout": LIMIT_S, **options}
    )
    assert ended.returncode != 99, ended.stderr
    return ended  # type: ignore[no-any-return]


CHECK = ("-m", "gpuipc_doctor", "check", "ipc-reopen", "--simulate", "healthy-single", "--backend", "cuda")


@pytest.mark.full
def test_read_only_proc_changes_nothing() -> None:
    ended = run(READ_ONLY_PROC, *CHECK)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("command", "code"), [("memory", 1), ("prolog", 0)])
def test_proc_of_another_pid_namespace_is_one_line(command: str, code: int) -> None:
    """The pids in such a /proc belong to other processes, which must not be read or killed."""
    ended = run("true", "-c", ANOTHER_NAMESPACE, command)
    (line,) = (ended.stdout + ended.stderr).splitlines()
    assert "mounted for another pid namespace" in line
    assert ended.returncode == code


def test_missing_dev_null_is_one_line() -> None:
    ended = run(NO_DEV_NULL, *CHECK)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gpuipc-doctor: cannot open /dev/null: No such file or directory")


def test_read_only_node_is_one_line() -> None:
    ended = run(READ_ONLY, "-m", "gpuipc_doctor", "check", "ipc-reopen")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert "no directory for the run's files" in line


@pytest.mark.parametrize("processes", [2, 5, 8])
def test_process_limit_of_the_user_is_reported(processes: int) -> None:
    """Prints one line or, if a run begins, a report that has tested nothing."""
    user = 64000 + processes  # this user has no other processes
    command = [
        *("prlimit", f"--nproc={processes}"),
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),  # Python may be in root's home
        *(sys.executable, "-m", "gpuipc_doctor", "check", "ipc-reopen"),
    ]
    environment = {**os.environ, "HOME": "/nowhere"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    if ended.returncode == 1:
        (line,) = ended.stderr.splitlines()
        assert line.startswith("gpuipc-doctor: out of system resources: ")
    else:
        assert (ended.returncode, ended.stderr) == (3, "")
        assert "the probe could not be run: Resource temporarily unavailable" in ended.stdout


@pytest.mark.parametrize(
    ("prelude", "code", "says"),
    [
        full(READ_ONLY_PROC, 12, "FAIL ipc-reopen"),
        (NO_DEV_NULL, 0, "No such file or directory: '/dev/null'"),
    ],
)
def test_prolog_prints_its_line(tmp_path: Path, prelude: str, code: int, says: str) -> None:
    policy = {**POLICY, "simulate": "nvidia-460.32.03", "checks": ["ipc-reopen"]}
    (tmp_path / "site.yaml").write_text(json.dumps({"prolog": policy}))
    (tmp_path / "site.yaml").chmod(0o644)
    command = ("-I", "-m", "gpuipc_doctor", "prolog", "--config", "site.yaml", "--budget", "90")
    ended = run(prelude, *command, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    (line,) = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (code, "")
    assert says in line
