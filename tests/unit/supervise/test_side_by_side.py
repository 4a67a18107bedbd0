"""Calls in separate processes: results in order, and termination on a signal."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.popen_fork import Popen
from pathlib import Path

import pytest

from gpuipc_doctor.supervise.side_by_side import side_by_side
from gpuipc_doctor.supervise.tree import interruptible
from tests import waiting


def where(number: int) -> tuple[int, int]:
    time.sleep(0.01 * (3 - number))
    return number, os.getpid()


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_and_from_other_processes_if_several_run(jobs: int) -> None:
    with side_by_side(where, range(4), jobs) as outcomes:
        numbers, pids = zip(*filter(None, outcomes), strict=True)
    assert numbers == (0, 1, 2, 3)
    assert (os.getpid() in pids) is (jobs == 1)


def interrupted(directory: str) -> str | None:
    """A task that is interrupted by a signal once both tasks run."""
    told = list[int]()
    with interruptible(lambda: told.append(1)):
        Path(directory, str(os.getpid())).touch()
        waiting.until("both run", lambda: len(list(Path(directory).iterdir())) == 2)
        if min(Path(directory).iterdir()).name == str(os.getpid()):
            os.kill(os.getppid(), signal.SIGTERM)
        waiting.until("the signal has come", lambda: told)
    return None


def test_signal_that_nohup_made_ignored_interrupts_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    told = list[int]()
    try:
        with interruptible(lambda: told.append(1)):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == []


def test_signal_ends_running_tasks_and_starts_no_more(tmp_path: Path) -> None:
    with side_by_side(interrupted, [str(tmp_path)] * 8, 2) as outcomes:
        assert list(outcomes) == [None] * 8
    assert len(list(tmp_path.iterdir())) == 2


def endless(directory: str) -> None:
    Path(directory, str(os.getpid())).touch()
    waiting.until("nothing", lambda: False, 20)


@pytest.mark.parametrize("of_another_thread", [False, True])
def test_signal_while_a_task_starts_ends_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_another_thread: bool
) -> None:
    """The signal comes after the fork and before the process counts as a child.

    If the thread that starts the process holds signals back, the kernel gives them to any other thread.
    """
    launch, over = Popen._launch, threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    receiver = other if of_another_thread else threading.main_thread()

    def interrupted_launch(popen: Popen, process: object) -> None:
        launch(popen, process)
        assert receiver.ident
        signal.pthread_kill(receiver.ident, signal.SIGTERM)
        time.sleep(0.05)  # until the other thread has received it

    monkeypatch.setattr(Popen, "_launch", interrupted_launch)
    try:
        with side_by_side(endless, [str(tmp_path)] * 8, 2) as outcomes:
            assert list(outcomes) == [None] * 8
    finally:
        over.set()


def failing(how: str) -> None:
    if how == "raises":
        raise ValueError("of its own")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("how", "error"), [("raises", ValueError), ("is killed", ChildProcessError)])
def test_exception_of_a_process_is_raised_here(how: str, error: type[Exception]) -> None:
    with side_by_side(failing, [how, how], 2) as outcomes, pytest.raises(error):
        list(outcomes)
