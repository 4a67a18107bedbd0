"""Who holds what a sleeping process waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.stacks.holders import lock_holders, waits_for
from tests.waiting import until

LOCKS = """1: FLOCK  ADVISORY  WRITE 70 08:01:11 0 EOF
1: -> FLOCK  ADVISORY  WRITE 71 08:01:11 0 EOF
2: POSIX  ADVISORY  READ  80 00:2c:12 0 EOF
2: -> POSIX  ADVISORY  WRITE 81 00:2c:12 0 99
2:  -> -> POSIX  ADVISORY  WRITE 82 00:2c:12 0 99
3: OFDLCK ADVISORY  WRITE -1 08:01:13 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 08:01:13 0 EOF
3: -> POSIX  ADVISORY  WRITE 91 08:01:13 0 EOF
"""


@pytest.mark.parametrize(
    ("pid", "holders"), [(71, [70]), (81, [80]), (82, [80]), (91, []), (70, []), (7, [])]
)
def test_holder_of_a_lock_is_first_of_its_number(pid: int, holders: list[int]) -> None:
    assert [*lock_holders(LOCKS, pid)] == holders


def test_damaged_list_of_locks_names_nobody() -> None:
    for end in range(0, len(LOCKS), 7):
        assert {*lock_holders(LOCKS[:end], 71)} <= {70}


@contextmanager
def asleep(code: str, *arguments: str, **more: int) -> Iterator[tuple[int, str]]:
    """A process that sleeps in the kernel: its pid and the function."""
    with subprocess.Popen([sys.executable, "-c", code, *arguments], **more) as process:  # type: ignore[call-overload]
        wchan = Path(f"/proc/{process.pid}/wchan")
        try:
            waits = ("lock", "setlk", "pipe")
            until("it sleeps there", lambda: any(name in wchan.read_text() for name in waits))
            yield process.pid, wchan.read_text()
        finally:
            process.kill()


@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_holder_of_a_file_lock_is_named(lock: str, tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "table"
    code = f"import fcntl, sys; fcntl.{lock}(open(sys.argv[1], 'w'), fcntl.LOCK_EX)"
    with path.open("w") as file:
        getattr(fcntl, lock)(file, fcntl.LOCK_EX)
        with asleep(code, str(path)) as (pid, wchan):
            said = waits_for(pid, wchan)
    assert said.startswith("waits for a lock on the file table, held by ")
    assert f"({os.getpid()})" in said


@pytest.mark.parametrize(
    ("code", "others", "says"),
    [
        ("import os, sys; os.write(int(sys.argv[1]), bytes(1 << 20))", True, "pipe which"),
        ("import os, sys; os.read(int(sys.argv[2]), 1)", True, "may write"),
        ("import os, sys; os.read(int(sys.argv[2]), 1)", False, "no other process writes"),
        ("import os, sys; os.write(int(sys.argv[1]), bytes(1 << 20))", False, "no process reads"),
    ],
)
def test_other_end_of_a_pipe_is_named(code: str, others: bool, says: str) -> None:
    read, write = os.pipe()
    for end in (read, write):
        os.set_inheritable(end, True)
    with asleep(code, str(write), str(read), close_fds=False) as (pid, wchan):
        if not others:
            os.close(read)
            os.close(write)
        said = waits_for(pid, wchan)
    if others:
        os.close(read)
        os.close(write)
        assert f"({os.getpid()})" in said
    assert says in said


def test_other_waits_and_ended_processes_say_nothing() -> None:
    assert waits_for(os.getpid(), "hrtimer_nanosleep") == ""
    assert waits_for(4194303, "pipe_read") == ""
