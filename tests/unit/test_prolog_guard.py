"""The guard alone: it ends in time with the answer, whatever its child, its clerk or the system does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BUDGET_S = 0.6

LOAD_S = 3.0
"""What a busy machine may add to the second that is promised."""

HEAD = """
import errno, os, signal, subprocess, sys, time
from gpuipc_doctor.prolog import guard
from gpuipc_doctor.supervise import tree

def settle(kind, what, kept, tell):
    tell.answer(5, f"{kind}: {what}; kept {kept}")

def hang(*_, **__):
    while True:
        time.sleep(100)

"""

RUN = f"\nguard.run(duty, settle, ends_at=time.monotonic() + {BUDGET_S})\n"


def run(program: str) -> tuple[int, str, str]:
    """How the guard ends with this ``duty`` (and ``settle``); never later than it promises."""
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + program + RUN], capture_output=True, text=True, timeout=60
    )
    assert time.monotonic() - started < BUDGET_S + 1 + LOAD_S
    return ended.returncode, ended.stdout, ended.stderr


def test_the_last_answer_counts() -> None:
    assert run("""
def duty(tell):
    tell.answer(0, "first")
    tell.say("by the way")
    tell.answer(7, "second")
""") == (7, "second\n", "by the way\n")


def test_an_answer_stands_whatever_becomes_of_the_child() -> None:
    for end in ("hang()", "os.kill(os.getpid(), 9)", "os.abort()", "raise SystemExit(3)"):
        assert run(f"def duty(tell):\n    tell.answer(7, 'answer')\n    {end}\n")[:2] == (7, "answer\n")


@pytest.mark.parametrize(
    ("does", "answer"),
    [
        ("hang()", "budget: the budget was up while this; kept {'a': 1}"),
        ("os.kill(os.getpid(), 9)", "error: ended without a result while this; kept {'a': 1}"),
        ("os.abort()", "error: ended without a result while this; kept {'a': 1}"),
        ("os.kill(os.getppid(), 15); hang()", "budget: was told to end while this; kept {'a': 1}"),
        (
            "1 / 0",
            "error: ended without a result while ZeroDivisionError: division by zero was raised;"
            " kept {'a': 1}",
        ),
    ],
)
def test_without_an_answer_the_clerk_gives_one(does: str, answer: str) -> None:
    code, line, said = run(
        f"def duty(tell):\n    tell.doing('this')\n    tell.keep({{'a': 1}}, {{}})\n    {does}\n"
    )
    assert (code, line) == (5, f"{answer}\n")
    assert ("Traceback" in said) is ("1 / 0" in does)


def test_without_a_clerk_the_policy_holds_all_the_same() -> None:
    for clerk in ("hang()", "os.abort()", "1 / 0"):
        code, line, _ = run(f"""
def settle(*_):
    {clerk}
def duty(tell):
    tell.keep(None, {{"budget": 11}})
    hang()
""")
        assert (code, line) == (11, "gpuipc-doctor: ERROR the budget was up while it started\n")


def test_a_system_without_processes_lets_the_job_start() -> None:
    code, line, _ = run("""
duty = hang
def fork():
    raise OSError(errno.EAGAIN, "no more processes")
os.fork = fork
""")
    assert (code, line) == (
        0,
        "gpuipc-doctor: ERROR in the prolog's guard: BlockingIOError(11, 'no more processes')\n",
    )


def test_the_alarm_ends_a_guard_that_is_held_up_itself() -> None:
    code, line, _ = run("""
duty = hang
guard.tree.end = hang
""")
    assert (code, line) == (0, "")


def test_the_budget_is_the_configs_once_it_is_known() -> None:
    code, line, _ = run(f"""
def duty(tell):
    tell.ends_at(time.monotonic() + {BUDGET_S + 1})
    time.sleep({BUDGET_S + 0.5})
    tell.answer(7, "in time")
""")
    assert (code, line) == (7, "in time\n")


def test_nobody_whom_the_child_started_lives_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run(f"""
SLEEP = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
def duty(tell):
    sleeper = [sys.executable, "-c", SLEEP]
    started = [subprocess.Popen(sleeper, start_new_session=new) for new in (True, False)]
    open({str(pids)!r}, "w").write(" ".join(str(one.pid) for one in started))
    hang()
""")
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_child_does_not_hold_the_streams_that_the_batch_system_waits_for() -> None:
    assert run("""
def duty(tell):
    tell.answer(0, " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)))
""") == (0, "/dev/null /dev/null /dev/null\n", "")


def test_much_that_is_said_is_told_whole() -> None:
    assert run("""
def duty(tell):
    tell.say("x" * 200_000)
    tell.answer(0, "line")
""") == (0, "line\n", "x" * 200_000 + "\n")
