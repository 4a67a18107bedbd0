"""The guard alone ends in time with an answer, whatever its child, the clerk or the system does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuipc_doctor.prolog import guard
from tests.waiting import LIMIT_S, LOAD_S

BUDGET_S = 0.6

HEAD = """
import errno, os, signal, subprocess, sys, time
from gpuipc_doctor.prolog import guard
from gpuipc_doctor.supervise import tree

def answer_for(kind, what, kept, channel):
    channel.answer(5, f"{kind}: {what}; kept {kept}")

def hang(*_, **__):
    while True:
        time.sleep(100)

"""

RUN = f"\nguard.run(work, answer_for, ends_at=time.monotonic() + {BUDGET_S})\n"


def run(program: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a guard with this ``work``; asserts that it ends within its budget."""
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + program + RUN], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert time.monotonic() - started < BUDGET_S + 1 + LOAD_S
    return ended.returncode, ended.stdout, ended.stderr


def test_last_answer_counts() -> None:
    assert run("""
def work(channel):
    channel.answer(0, "first")
    channel.say("by the way")
    channel.answer(7, "second")
""") == (7, "second\n", "by the way\n")


def test_answer_counts_whatever_happens_to_the_child() -> None:
    for end in ("hang()", "os.kill(os.getpid(), 9)", "os.abort()", "raise SystemExit(3)"):
        assert run(f"def work(channel):\n    channel.answer(7, 'answer')\n    {end}\n")[:2] == (7, "answer\n")


@pytest.mark.parametrize(
    ("does", "answer"),
    [
        ("hang()", "budget: the budget was exhausted while this; kept {'a': 1}"),
        ("os.kill(os.getpid(), 9)", "error: ended without a result while this; kept {'a': 1}"),
        ("os.abort()", "error: ended without a result while this; kept {'a': 1}"),
        ("os.kill(os.getppid(), 15); hang()", "budget: was terminated while this; kept {'a': 1}"),
        (
            "1 / 0",
            "error: ended without a result while ZeroDivisionError: division by zero was raised;"
            " kept {'a': 1}",
        ),
    ],
)
def test_second_child_answers_if_the_first_does_not(does: str, answer: str) -> None:
    code, line, said = run(
        f"def work(channel):\n    channel.doing('this')\n    channel.keep({{'a': 1}}, {{}})\n    {does}\n"
    )
    assert (code, line) == (5, f"{answer}\n")
    assert ("Traceback" in said) is ("1 / 0" in does)


@pytest.mark.parametrize("known", ["", "what is known"])
def test_policy_holds_without_the_second_child(known: str) -> None:
    for does in ("hang()", "os.abort()", "1 / 0"):
        code, line, _ = run(f"""
def answer_for(*_):
    {does}
def work(channel):
    channel.keep(None, {{"budget": [11, {known!r}]}})
    hang()
""")
        assert (code, line) == (
            11,
            f"{known or 'gpuipc-doctor: ERROR the budget was exhausted while it started'}\n",
        )


def test_system_that_cannot_fork_lets_the_job_start() -> None:
    code, line, _ = run("""
work = hang
def fork():
    raise OSError(errno.EAGAIN, "no more processes")
os.fork = fork
""")
    assert (code, line) == (
        0,
        "gpuipc-doctor: ERROR in the prolog's guard: BlockingIOError(11, 'no more processes')\n",
    )


@pytest.mark.parametrize(
    ("known", "answer"),
    [("", "gpuipc-doctor: ERROR the budget was exhausted while it started"), ("bad", "bad")],
)
def test_delayed_guard_answers(known: str, answer: str) -> None:
    code, line, _ = run(f"""
def work(channel):
    channel.keep(None, {{"budget": [11, {known!r}]}})
    hang()
guard.tree.end = hang
""")
    assert (code, line) == (11, f"{answer}\n")


def test_guard_without_processor_time_in_its_budget_answers() -> None:
    """On a busy node, the guard's time may be over when it first runs."""
    code, line, _ = run("""
def work(channel):
    channel.answer(7, "too late")
started = time.monotonic()
guard.time.monotonic = lambda: started + 100
""")
    assert code in (0, 7)
    assert line.count("\n") == 1


def test_guard_raises_its_priority_if_permitted() -> None:
    _, line, _ = run("""
def work(channel):
    channel.answer(0, str(os.getpriority(os.PRIO_PROCESS, 0)))
""")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(line) == (guard.PRIORITY if os.geteuid() == 0 else before)


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/self/autogroup").exists(),
    reason="needs root, and a kernel that schedules sessions as groups",
)
def test_processes_of_the_guard_have_priority_in_their_own_session() -> None:
    _, line, _ = run("""
def work(channel):
    worker = subprocess.Popen(["sleep", "60"], start_new_session=True)
    tree.carry_priority(worker.pid)
    told = [open(f"/proc/{pid}/autogroup").read().split()[-1] for pid in ("self", worker.pid)]
    channel.answer(0, " ".join(told))
""")
    assert line == f"{guard.PRIORITY} {guard.PRIORITY}\n"


def test_budget_is_the_configs_once_known() -> None:
    code, line, _ = run(f"""
def work(channel):
    channel.ends_at(time.monotonic() + 60)
    time.sleep({BUDGET_S + 0.5})
    channel.answer(7, "in time")
""")
    assert (code, line) == (7, "in time\n")


def test_processes_started_by_the_child_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run(f"""
SLEEP = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
def work(channel):
    sleeper = [sys.executable, "-c", SLEEP]
    started = [subprocess.Popen(sleeper, start_new_session=new) for new in (True, False)]
    open({str(pids)!r}, "w").write(" ".join(str(one.pid) for one in started))
    hang()
""")
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_child_closes_the_streams_that_the_batch_system_waits_for() -> None:
    assert run("""
def work(channel):
    channel.answer(0, " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)))
""") == (0, "/dev/null /dev/null /dev/null\n", "")


def test_long_output_is_complete() -> None:
    assert run("""
def work(channel):
    channel.say("x" * 200_000)
    channel.answer(0, "line")
""") == (0, "line\n", "x" * 200_000 + "\n")


# -- the clock ------------------------------------------------------------------------------------------


def test_start_of_the_process_includes_python() -> None:
    program = """
import time
time.sleep(0.5)
from gpuipc_doctor.prolog import guard
print(time.monotonic() - guard.started_at())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.5 <= float(ended.stdout) < 60


def test_process_too_old_for_a_prolog_starts_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_AGE_S", 0.0)
    before = guard.time.monotonic()
    assert before <= guard.started_at() <= guard.time.monotonic()
