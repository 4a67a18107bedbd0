"""Foreign texts are parsed in a process with limits, and of programs no more is read than is used."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpuipc_doctor.files import foreign


def takes_memory(_: str) -> bytes:
    return bytes(1 << 30)


def runs_on(_: str) -> None:
    while True:
        pass


def answers_too_much(_: str) -> bytes:
    return bytes(foreign.MAX_RESULT + 1)


def is_killed(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(_: str) -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("parser", "text", "says"),
    [
        (takes_memory, "", "it needs more than 512 MiB"),
        (runs_on, "", "it was not parsed in time"),
        (answers_too_much, "", "its content is more than 64 MiB"),
        (is_killed, "", "its parser was killed"),
        (exits, "", "its parser was killed"),
        (json.loads, "9" * 5000, "ValueError: Exceeds the limit"),
        (json.loads, "[" * 100_000, "RecursionError"),
        (lambda text: int(json.loads(text)), "1e999", "OverflowError"),
        (lambda text: json.loads(text)["a"], "[]", "TypeError"),
        (lambda _: (_ for _ in ()), "", "TypeError: cannot pickle"),
    ],
)
def test_hostile_text_is_refused_in_one_line(parser: Callable[[str], Any], text: str, says: str) -> None:
    began = time.monotonic()
    with pytest.raises(foreign.Refused) as refused:
        foreign.parsed(parser, text, limit_s=1.0)
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 5


def test_result_is_the_parsers() -> None:
    assert foreign.parsed(json.loads, '{"a": [1, "ü"]}') == {"a": [1, "ü"]}


def test_no_process_can_be_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(foreign.Refused, match="no process to parse it: Resource temporarily"):
        foreign.parsed(json.loads, "{}")


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_output_of_a_program() -> None:
    ended = foreign.run(sh("cat; echo out; echo err >&2; exit 3"), limit_s=5, environment={"A": "b"})
    assert (ended.stdout, ended.stderr, ended.returncode) == ("out\n", "err\n", 3)


@pytest.mark.parametrize(
    "script", ["sleep 60", "exec >&- 2>&-; sleep 60", "while :; do echo x; sleep 0.01; done"]
)
def test_program_that_does_not_end_is_killed(script: str) -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        foreign.run(sh(script), limit_s=0.5)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("where", ["", ">&2"])
def test_endless_output_is_not_kept(where: str) -> None:
    with pytest.raises(OSError, match="it printed more than 1024 KiB") as error:
        foreign.run(sh(f"cat /dev/zero {where}"), limit_s=30, max_bytes=1 << 20)
    assert error.value.errno == errno.EFBIG
