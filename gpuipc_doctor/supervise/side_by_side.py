"""Run calls side by side, each in its own process, since a run owns its process's signals and children.

The standard pools do not serve: `concurrent.futures` forks no process for each task; `multiprocessing.Pool`
waits forever for a worker that was killed, and forks workers from a thread whose end would kill them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from gpuipc_doctor.supervise.tree import INTERRUPTS, interruptible

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


@contextmanager
def side_by_side(
    function: Callable[[Task], Outcome | None], tasks: Sequence[Task], jobs: int
) -> Iterator[Iterator[Outcome | None]]:
    """The results of ``function`` for each task, in order; None if interrupted.

    A single task runs in this process. Otherwise Ctrl-C and SIGTERM end the running tasks, through the
    handlers of ``function``, and no further task starts.
    """
    if jobs == 1:
        yield map(function, tasks)
        return
    from multiprocessing import active_children

    stopped = Event()

    def stop() -> None:
        stopped.set()
        for child in active_children():
            child.terminate()

    with interruptible(stop):
        try:
            yield _outcomes(function, tasks, jobs, stopped)
        finally:
            stop()


def _outcomes(
    function: Callable[[Any], object], tasks: Sequence[object], jobs: int, stopped: Event
) -> Iterator[Any]:
    """Each task's result when available; None if interrupted."""
    from multiprocessing import get_context
    from multiprocessing.connection import wait

    context = get_context("fork")
    waiting, running, done = list(enumerate(tasks)), dict["Connection", int](), dict[int, object]()
    for number in range(len(tasks)):
        while number not in done:
            while waiting and len(running) < jobs and not stopped.is_set():
                place, task = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_do, args=(function, task, theirs))
                with _interrupts_later():
                    process.start()
                if stopped.is_set():  # a signal that another thread received comes before that
                    process.terminate()
                theirs.close()
                running[ours] = place
            if not running:
                break
            ready = wait(list(running))
            for results in [each for each in running if each in ready]:
                done[running.pop(results)] = _received(results, stopped)
        yield done.pop(number, None)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold signals back from this thread, and from a process that it starts, until that can end by them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(results: Connection, stopped: Event) -> object:
    """A process's result; raises its exception, or `ChildProcessError` if it was killed."""
    try:
        outcome = results.recv()
    except EOFError:
        if stopped.is_set():
            return None
        raise ChildProcessError("a helper process was killed before it returned its result") from None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _do(function: Callable[[object], object], task: object, results: Connection) -> None:
    import ctypes

    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.environ["TERM"] = "dumb"  # several displays would overwrite each other's lines
    try:
        outcome = function(task)
    except Exception as error:
        outcome = error
    results.send(outcome)
