"""The prolog's log: private, limited in size, complete lines; an error of the log is one line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuipc_doctor.files import private
from gpuipc_doctor.prolog.log import NotLogged, append, tell_syslog
from tests.waiting import LIMIT_S, until

MAX_BYTES = 1000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def descriptors_of(file: Path) -> int:
    """Number of times that this process has a file open."""
    opened = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            opened += descriptor.readlink() == file
    return opened


def lines(log: Path) -> list[object]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_lines_are_appended_and_private(log: Path) -> None:
    for number in range(3):
        append(log, {"n": number, "text": "\x1b[2J\u202e"}, MAX_BYTES)
    assert [entry["n"] for entry in lines(log)] == [0, 1, 2]  # type: ignore[index]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text().replace("\n", "").isprintable()
    assert log.read_text().isascii()


def test_log_is_rotated_before_it_grows_too_large(log: Path) -> None:
    for number in range(100):
        append(log, {"n": number, "text": "x" * 80}, MAX_BYTES)
    rotated = log.with_name("log.jsonl.1")
    assert max(log.stat().st_size, rotated.stat().st_size) <= MAX_BYTES
    assert [entry["n"] for entry in [*lines(rotated), *lines(log)]][-1] == 99  # type: ignore[index]
    assert sorted(path.name for path in log.parent.iterdir()) == ["log.jsonl", "log.jsonl.1"]


def test_held_lock_is_not_waited_for(log: Path) -> None:
    append(log, {}, MAX_BYTES)
    fd = os.open(log, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(NotLogged, match=r"log.jsonl is locked by another process"):
            append(log, {}, MAX_BYTES)
    finally:
        os.close(fd)


def test_writer_that_waited_for_a_rotation_writes_to_the_new_log(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "LOCK_LIMIT_S", LIMIT_S)
    append(log, {"n": 1}, MAX_BYTES)
    fd = os.open(log, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(append, log, {"n": 2}, MAX_BYTES)
        until("it waits", lambda: descriptors_of(log) == 2)
        log.rename(log.with_name("log.jsonl.1"))
        os.close(fd)
        waiting.result()
    assert (lines(log.with_name("log.jsonl.1")), lines(log)) == ([{"n": 1}], [{"n": 2}])


def test_log_moved_meanwhile_is_reported(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """logrotate may move the log between the prolog's look at the name and its renaming."""
    append(log, {"n": 1}, 10)

    def moved(self: Path, target: Path) -> Path:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "replace", moved)
    with pytest.raises(NotLogged):
        append(log, {"n": 2}, 10)


def test_full_disk_leaves_no_torn_line(log: Path) -> None:
    """A limit of the file's size stands for a full disk: the kernel writes only as much as fits."""
    program = f"""
import resource, signal
from pathlib import Path
from gpuipc_doctor.prolog.log import NotLogged, append
log = Path({str(log)!r})
append(log, {{"n": 1}}, {MAX_BYTES})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
for _ in range(2):
    try:
        append(log, {{"text": "x" * 80}}, {MAX_BYTES})
    except NotLogged as reason:
        print(reason)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [f"not logged: {log}: No space left on device"] * 2
    assert lines(log) == [{"n": 1}]


def test_two_simultaneous_rotations_lose_nothing(log: Path) -> None:
    program = f"""
import sys
import time
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gpuipc_doctor.prolog.log import NotLogged, append
for number in range(60):
    append(Path({str(log)!r}), {{"who": sys.argv[1], "n": number, "text": "x" * 40}}, 6000)
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, who]) for who in ("a", "b")]
    assert [writer.wait(timeout=LIMIT_S) for writer in writers] == [0, 0]
    kept = [*lines(log.with_name("log.jsonl.1")), *lines(log)]
    numbers = {who: [e["n"] for e in kept if e["who"] == who] for who in "ab"}  # type: ignore[index]
    for found in numbers.values():
        assert found == list(range(60))[-len(found) :]
    assert sum(map(len, numbers.values())) > 60


def test_lines_of_another_writer_in_the_new_log_stay(log: Path) -> None:
    """Between a rotation and the line that caused it; then the disk is full, and that line is taken back."""
    program = f"""
import resource, signal
from pathlib import Path
from gpuipc_doctor.prolog.log import NotLogged, append
log = Path({str(log)!r})

class Rotating(type(log)):
    def replace(self, target):
        super().replace(target)
        append(log, {{"n": 2}}, 10)

append(Rotating(log), {{"n": 1}}, 10)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    append(Rotating(log), {{"text": "x" * 80}}, 10)
except NotLogged as reason:
    print(reason)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [f"not logged: {log}: No space left on device"]
    assert (lines(log.with_name("log.jsonl.1")), lines(log)) == ([{"n": 1}], [{"n": 2}])


# -- syslog ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drains", "priority"), [(True, 27), (False, 28)])  # daemon.err, daemon.warning
def test_line_is_sent_to_syslog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: bool, priority: int
) -> None:
    monkeypatch.setattr("gpuipc_doctor.prolog.log.SYSLOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        tell_syslog("gpuipc-doctor: FAIL ipc-reopen: 100 % bad", drains=drains)
        heard = listener.recv(4096).rstrip(b"\0").decode()
    assert heard == f"<{priority}>gpuipc-doctor[{os.getpid()}]: FAIL ipc-reopen: 100 % bad"


def test_unread_syslog_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuipc_doctor.prolog.log.SYSLOG", tmp_path / "log")
    with (
        ThreadPoolExecutor(1) as pool,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stuck,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others,
    ):
        stuck.bind(str(tmp_path / "log"))
        others.setblocking(False)
        others.connect(str(tmp_path / "log"))
        with contextlib.suppress(BlockingIOError):
            while True:
                others.send(b"<28>something")
        pool.submit(tell_syslog, "gpuipc-doctor: FAIL", drains=True).result(timeout=10)


def test_line_is_sent_to_a_stream_syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """syslog-ng may be configured with a stream socket."""
    monkeypatch.setattr("gpuipc_doctor.prolog.log.SYSLOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "log"))
        listener.listen()
        tell_syslog("gpuipc-doctor: FAIL", drains=True)
        heard, _ = listener.accept()
        with heard:
            assert heard.recv(4096) == f"<27>gpuipc-doctor[{os.getpid()}]: FAIL\0".encode()
