"""The prolog's log and breaker: private, bounded, whole lines; and what fails there is one line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuipc_doctor.policy import Breaker
from gpuipc_doctor.prolog import breaker, clock, record
from gpuipc_doctor.prolog.record import NotLogged

MAX_BYTES = 1000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def lines(log: Path) -> list[object]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_lines_are_appended_and_private(log: Path) -> None:
    for number in range(3):
        record.append(log, {"n": number, "text": "\x1b[2J\u202e"}, MAX_BYTES)
    assert [entry["n"] for entry in lines(log)] == [0, 1, 2]  # type: ignore[index]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text().replace("\n", "").isprintable()
    assert log.read_text().isascii()


def test_it_is_rotated_before_it_grows_too_large(log: Path) -> None:
    for number in range(100):
        record.append(log, {"n": number, "text": "x" * 80}, MAX_BYTES)
    rotated = log.with_name("log.jsonl.1")
    assert max(log.stat().st_size, rotated.stat().st_size) <= MAX_BYTES
    assert [entry["n"] for entry in [*lines(rotated), *lines(log)]][-1] == 99  # type: ignore[index]
    assert sorted(path.name for path in log.parent.iterdir()) == ["log.jsonl", "log.jsonl.1"]


def test_a_lock_that_somebody_holds_is_not_waited_for(log: Path) -> None:
    record.append(log, {}, MAX_BYTES)
    fd = os.open(log, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(NotLogged, match=r"log.jsonl is locked by another process"):
            record.append(log, {}, MAX_BYTES)
    finally:
        os.close(fd)


def test_who_waits_while_another_rotates_writes_to_the_new_log(log: Path) -> None:
    record.append(log, {"n": 1}, MAX_BYTES)
    fd = os.open(log, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(record.append, log, {"n": 2}, MAX_BYTES)
        time.sleep(0.05)
        log.rename(log.with_name("log.jsonl.1"))
        os.close(fd)
        waiting.result()
    assert (lines(log.with_name("log.jsonl.1")), lines(log)) == ([{"n": 1}], [{"n": 2}])


def test_a_log_that_somebody_moves_meanwhile_is_said(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As logrotate may, between our look at the name and our renaming it."""
    record.append(log, {"n": 1}, 10)

    def moved(self: Path, target: Path) -> Path:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "replace", moved)
    with pytest.raises(NotLogged):
        record.append(log, {"n": 2}, 10)


def test_a_full_disk_leaves_no_torn_line(log: Path) -> None:
    """A limit of the file's size stands for the disk: the kernel writes what fits, and then no more."""
    program = f"""
import resource, signal
from pathlib import Path
from gpuipc_doctor.prolog import record
log = Path({str(log)!r})
record.append(log, {{"n": 1}}, {MAX_BYTES})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
for _ in range(2):
    try:
        record.append(log, {{"text": "x" * 80}}, {MAX_BYTES})
    except record.NotLogged as reason:
        print(reason)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [f"not logged: {log}: No space left on device"] * 2
    assert lines(log) == [{"n": 1}]


def test_two_who_rotate_at_once_lose_nothing(log: Path) -> None:
    program = f"""
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gpuipc_doctor.prolog import record
for number in range(60):
    record.append(Path({str(log)!r}), {{"who": sys.argv[1], "n": number, "text": "x" * 40}}, 6000)
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, who]) for who in ("a", "b")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    kept = [*lines(log.with_name("log.jsonl.1")), *lines(log)]
    numbers = {who: [e["n"] for e in kept if e["who"] == who] for who in "ab"}  # type: ignore[index]
    for found in numbers.values():
        assert found == list(range(60))[-len(found) :]
    assert sum(map(len, numbers.values())) > 60


def test_what_another_writes_to_the_new_log_meanwhile_stays(log: Path) -> None:
    """Between a rotation and the line that it was for; then the disk is full, and that line is taken back."""
    program = f"""
import resource, signal
from pathlib import Path
from gpuipc_doctor.prolog import record
log = Path({str(log)!r})

class Rotating(type(log)):
    def replace(self, target):
        super().replace(target)
        record.append(log, {{"n": 2}}, 10)

record.append(Rotating(log), {{"n": 1}}, 10)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    record.append(Rotating(log), {{"text": "x" * 80}}, 10)
except record.NotLogged as reason:
    print(reason)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [f"not logged: {log}: No space left on device"]
    assert (lines(log.with_name("log.jsonl.1")), lines(log)) == ([{"n": 1}], [{"n": 2}])


# -- syslog ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drains", "priority"), [(True, 27), (False, 28)])  # daemon.err, daemon.warning
def test_syslog_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: bool, priority: int) -> None:
    monkeypatch.setattr(record, "SYSLOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        record.tell_syslog("gpuipc-doctor: FAIL ipc-reopen: 100 % bad", drains=drains)
        heard = listener.recv(4096).rstrip(b"\0").decode()
    assert heard == f"<{priority}>gpuipc-doctor[{os.getpid()}]: FAIL ipc-reopen: 100 % bad"


def test_without_a_syslog_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SYSLOG", tmp_path / "log")
    record.tell_syslog("gpuipc-doctor: FAIL", drains=True)


def test_a_syslog_that_nobody_reads_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "SYSLOG", tmp_path / "log")
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
        pool.submit(record.tell_syslog, "gpuipc-doctor: FAIL", drains=True).result(timeout=10)


def test_a_syslog_that_takes_a_stream_of_lines_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As syslog-ng may be set up."""
    monkeypatch.setattr(record, "SYSLOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "log"))
        listener.listen()
        record.tell_syslog("gpuipc-doctor: FAIL", drains=True)
        heard, _ = listener.accept()
        with heard:
            assert heard.recv(4096) == f"<27>gpuipc-doctor[{os.getpid()}]: FAIL\0".encode()


# -- the breaker ----------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir(mode=0o755)
    return tmp_path / "shared"


def bounded(shared: Path, count: int) -> Breaker:
    return Breaker(str(shared), count, within_s=1e12)


def test_so_many_nodes_may_drain_and_each_as_often_as_it_likes(shared: Path) -> None:
    may = [not breaker.refusal(bounded(shared, 2), host) for host in ("a", "a", "b", "c", "b", "c")]
    assert may == [True, True, True, False, True, False]
    assert breaker.refusal(bounded(shared, 2), "c") == "2 nodes have been drained within 1e+12 s"


@pytest.mark.parametrize("old", [False, True])
def test_nodes_that_drain_at_once_share_no_slot(shared: Path, old: bool) -> None:
    if old:
        for number in range(1, 11):
            taken_ago(shared / f"slot-{number}-1", 1e6, "z")
    program = f"""
import sys
from gpuipc_doctor.policy import Breaker
from gpuipc_doctor.prolog import breaker
for number in range(20):
    print(breaker.refusal(Breaker({str(shared)!r}, 10, 1e5), f"{{sys.argv[1]}}{{number}}") == "")
"""
    nodes = [
        subprocess.Popen([sys.executable, "-c", program, who], stdout=subprocess.PIPE, text=True)
        for who in "abc"
    ]
    said = "".join(node.communicate(timeout=60)[0] for node in nodes)
    assert said.count("True") == 10
    assert said.count("False") == 50


def taken_ago(slot: Path, seconds: float, host: str) -> None:
    slot.symlink_to(host)
    at = time.time() - seconds
    os.utime(slot, (at, at), follow_symlinks=False)


def test_a_slot_is_free_again_when_so_much_time_has_passed(shared: Path) -> None:
    taken_ago(shared / "slot-1-4", 900, "a")
    one = Breaker(str(shared), 1, within_s=1000.0)
    assert [breaker.refusal(one, host) for host in "ba"] == ["1 node has been drained within 1000 s", ""]
    (shared / "slot-1-4").unlink()
    for use, ago in ((3, 2200), (4, 1100)):
        taken_ago(shared / f"slot-1-{use}", ago, "a")
    assert [breaker.refusal(one, host) for host in "ba"] == ["", "1 node has been drained within 1000 s"]
    assert sorted(path.name for path in shared.iterdir()) == ["slot-1-4", "slot-1-5"]


def test_an_old_slot_that_cannot_be_removed_changes_nothing(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for use, ago in ((3, 2200), (4, 1100)):
        taken_ago(shared / f"slot-1-{use}", ago, "a")

    def stale(path: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "unlink", stale)
    assert breaker.refusal(Breaker(str(shared), 1, within_s=1000.0), "b") == ""


@pytest.mark.parametrize("ahead_s", [1000.0, 1e9])
def test_a_node_whose_clock_is_ahead_takes_no_slot_of_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    one = Breaker(str(shared), 1, within_s=1000.0)
    assert breaker.refusal(one, "a") == ""
    later = time.time() + ahead_s
    with monkeypatch.context() as clock_ahead:
        clock_ahead.setattr(time, "time", lambda: later)
        assert breaker.refusal(one, "b") == "1 node has been drained within 1000 s"
    assert breaker.refusal(one, "c") == "1 node has been drained within 1000 s"


def test_what_cannot_be_asked_lets_no_node_drain(tmp_path: Path) -> None:
    assert "cannot be used: No such file or directory" in breaker.refusal(bounded(tmp_path / "none", 1), "a")
    (tmp_path / "file").touch()
    assert "cannot be used: Not a directory" in breaker.refusal(bounded(tmp_path / "file", 1), "a")


def test_about_the_stated_share_of_the_nodes_may_drain() -> None:
    may = [not breaker.refusal(Breaker(share=0.1), f"node{number:04}") for number in range(2000)]
    assert 120 < sum(may) < 280
    assert not any(breaker.refusal(Breaker(), f"node{number:04}") for number in range(10))
    assert all(breaker.refusal(Breaker(share=0), f"node{number:04}") for number in range(10))


# -- the clock ------------------------------------------------------------------------------------------


def test_the_start_of_the_process_counts_python_itself() -> None:
    program = """
import time
time.sleep(0.5)
from gpuipc_doctor.prolog import clock
print(time.monotonic() - clock.started_at())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.5 <= float(ended.stdout) < 60


def test_a_process_that_is_older_than_a_prolog_can_be_starts_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MAX_AGE_S", 0.0)
    before = clock.time.monotonic()
    assert before <= clock.started_at() <= clock.time.monotonic()
