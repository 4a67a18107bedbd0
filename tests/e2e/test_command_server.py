"""A forked command behaves like one started as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_server import SERVER
from tests.waiting import LIMIT_S

LOOKS = """
import gc, logging, os, resource, signal, sys, tempfile, threading, warnings
from pathlib import Path

def of_file(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").partition(":")[0], os.get_inheritable(int(number))
    except OSError:  # the one that listed them
        return None

state = {
    "called": [__name__, __file__, sys.argv, sys.orig_argv, sys.modules["__main__"].__dict__ is globals()],
    "python": [sys.flags, sys.path, sys.warnoptions, str(warnings.filters), logging.root.handlers],
    "place": [os.getcwd(), dict(os.environ), tempfile.tempdir],
    "files": {number: of_file(number) for number in os.listdir("/proc/self/fd")},
    "streams": [
        (one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.seekable(), one.isatty())
        for one in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "process": [os.getsid(0), os.getpgrp(), Path("/proc/self/comm").read_text(), threading.active_count()],
    "handed on": [os.umask(0), os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/limits").read_text()],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.callbacks],
}
print(*(f"{name}: {what!a}" for name, what in state.items()), sep="\\n", flush=True)
"""

ENDS = {
    "by itself": "",
    "with a code": "sys.exit(3)",
    "with a word": "sys.exit('said')",
    "at once": "print('lost', end=''); os._exit(5)",
    "by SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "by SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "with handlers": "import atexit; atexit.register(print, 'at the end'); print('not flushed', end='')",
    "with a thread": "threading.Timer(0.1, print, ['later']).start()",
    "without streams": "[os.close(number) for number in range(3)]; print('nowhere')",
    "with other streams": "os.dup2(2, 1); print('as an error'); os.open(os.devnull, 0)",
    "before its child": "os.fork() or (signal.pthread_sigmask(0, ()), print('from the child'))",
}


def is_the_same(*command: str) -> bool:
    words = [sys.executable, "-m", *command]
    environment = dict(os.environ)  # pytest's libraries have changed C's environment
    alone = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    forked = SERVER.run(*command, timeout=LIMIT_S)
    assert forked.stdout == alone.stdout
    assert forked.stderr == alone.stderr
    return (forked.args, forked.returncode) == (alone.args, alone.returncode)


@pytest.mark.parametrize("how", ENDS)
def test_fork_behaves_like_a_new_process(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looks.py").write_text(LOOKS + ENDS[how])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THIS_TEST", "\udcff·")
    assert is_the_same("looks", "--an option", "·")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("list",),
        ("explain", "ipc-reopen"),
        ("explain", "ipc-reopn"),
        ("config", "show"),
        ("report", "/nowhere"),
        ("chekc",),
    ],
    ids=" ".join,
)
def test_forked_command_prints_the_same(arguments: tuple[str, ...]) -> None:
    assert is_the_same("gpuipc_doctor.cli.main", *arguments)


@pytest.fixture
def tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tells.py").write_text("print(open('/proc/self/cmdline').read())")
    monkeypatch.chdir(tmp_path)


def is_forked(**variables: str) -> bool:
    return "command_server" in SERVER.run("tells", env={**os.environ, **variables}, timeout=LIMIT_S).stdout


@pytest.mark.usefixtures("tells")
def test_command_with_other_process_properties_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_forked(PATH="")
    assert not is_forked(LD_LIBRARY_PATH="/nowhere")
    assert not is_forked(PYTHONHASHSEED="1")
    before = os.umask(0o7)
    try:
        assert not is_forked()
    finally:
        os.umask(before)


@pytest.mark.usefixtures("tells")
def test_server_that_has_ended_is_restarted() -> None:
    assert is_forked()
    assert SERVER._process
    os.kill(SERVER._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, SERVER._process.pid, os.WEXITED | os.WNOWAIT)
    assert is_forked()


def test_command_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(6000)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        SERVER.run("sleeps", timeout=1.0)
    assert SERVER.run("gpuipc_doctor.cli.main", "--version", timeout=LIMIT_S).returncode == 0
