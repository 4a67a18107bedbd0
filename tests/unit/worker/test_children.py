"""Processes that a role starts: requests, answers, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.api.worker import ChildGone, ChildHangs
from gpuipc_doctor.probe_types import Calls
from gpuipc_doctor.supervise import tree
from gpuipc_doctor.supervise.assignment import Assignment
from gpuipc_doctor.worker import children
from gpuipc_doctor.worker.children import Child, ChildProcess

ASSIGNMENT = Assignment("check.py", "crew", 1, (), {}, 10.0, "/", 0, waits_for_turn=False, starter=True)
LIMIT_S = 30.0


@pytest.fixture
def returned() -> list[Calls]:
    """The driver calls that children report as returned."""
    return []


@pytest.fixture
def start(returned: list[Calls]) -> Iterator[Callable[[Callable[[Child], None]], ChildProcess]]:
    started = list[ChildProcess]()

    def one(act: Callable[[Child], None]) -> ChildProcess:
        started.append(children.start(act, ASSIGNMENT, returned.append))
        return started[-1]

    yield one
    for child in started:
        child.kill()


Start = Callable[[Callable[[Child], None]], ChildProcess]


def echo(child: Child) -> None:
    while True:
        child.send(child.recv())


def test_child_answers_and_exits(start: Start) -> None:
    child = start(echo)
    child.send({"of": b"\0bytes"})
    assert child.recv(LIMIT_S) == {"of": b"\0bytes"}
    assert child.end(LIMIT_S) == "exit 0"


def test_killed_child_leaves_no_file_of_cuda(start: Start) -> None:
    child = start(echo)
    left = Path(f"/dev/shm/cuda.shm.{os.geteuid()}.{child.pid:x}.1")
    left.touch()
    other = Path(f"/dev/shm/cuda.shm.{os.geteuid()}.{os.getpid():x}.1")
    other.touch()
    try:
        child.kill()
        children.remove_files_of_ended()
        assert (left.exists(), other.exists()) == (False, True)
    finally:
        other.unlink()


def test_calls_that_returned_come_with_the_next_message(start: Start, returned: list[Calls]) -> None:
    def call(child: Child) -> None:
        for _ in range(3):
            with child.armed("cuMemAlloc"):
                pass
        echo(child)

    child = start(call)
    for _ in range(2):
        child.send(None)
        child.recv(LIMIT_S)
    (calls,) = returned
    assert (calls.operation, calls.count) == ("cuMemAlloc", 3)
    assert calls.seconds > 0


def test_descriptor_reaches_the_child_and_comes_back(start: Start) -> None:
    def write_to_what_comes(child: Child) -> None:
        child.recv()
        os.write(child.descriptors[0], b"written")
        child.send(None, child.descriptors)

    ours, theirs = os.pipe()
    child = start(write_to_what_comes)
    child.send(None, [theirs])
    child.recv(LIMIT_S)
    assert os.read(ours, 7) == b"written"
    for number in (ours, theirs, *child.descriptors):
        os.close(number)


def test_crash_names_the_signal_the_call_and_the_progress(start: Start) -> None:
    def crash(child: Child) -> None:
        child.recv()
        child.progress(3)
        with child.armed("cuIpcOpenMemHandle"):
            os.kill(os.getpid(), signal.SIGSEGV)

    child = start(crash)
    child.send(None)
    with pytest.raises(ChildGone, match="SIGSEGV"):
        child.recv(LIMIT_S)
    assert (child.call, child.progress) == ("cuIpcOpenMemHandle", 3)
    with pytest.raises(ChildGone):
        child.send(None)


def test_hang_is_seen_after_the_limit(start: Start) -> None:
    child = start(lambda child: time.sleep(LIMIT_S))
    with pytest.raises(ChildHangs):
        child.recv(0.05)
    child.kill()


def test_child_without_a_processor_is_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "timeslices_of", lambda pid: {pid: tree.Timeslices(wanted_s=time.monotonic())})
    waits = list[None]()

    def still_waits() -> None:
        waits.append(None)
        if len(waits) == 3:
            child.send("a processor")

    child = children.start(lambda child: child.send(child.recv()), ASSIGNMENT, still_waits=still_waits)
    try:
        assert child.recv(0.05) == "a processor"
    finally:
        child.kill()
    assert len(waits) >= 3


@pytest.mark.parametrize("sign", ["progress", "call"])
def test_child_that_makes_progress_in_a_batch_is_not_hung(sign: str) -> None:
    """A crew sends up to 64 operations at once, which together may take longer than the limit of one."""

    def perform(child: Child) -> None:
        for number in range(1, 7):
            child.recv()
            if sign == "progress":
                child.progress(number)
            else:
                with child.armed("cuMemcpyHtoD"):
                    pass
        child.send("done")

    looks = list[float]()

    def still_waits() -> None:
        looks.append(time.monotonic())
        child.send("go on")

    child = children.start(perform, ASSIGNMENT, still_waits=still_waits)
    try:
        assert child.recv(limit_s := 0.5) == "done"
    finally:
        child.kill()
    assert looks[-1] - looks[0] > limit_s


def test_exception_ends_the_child(start: Start) -> None:
    def fail(child: Child) -> None:
        raise ValueError("not in the middle of a list of orders")

    with pytest.raises(ChildGone, match="exit 1"):
        start(fail).recv(LIMIT_S)


def test_child_has_no_file_of_its_role(start: Start) -> None:
    def numbers(child: Child) -> None:
        child.send(sorted(int(name) for name in os.listdir("/proc/self/fd")))  # noqa: PTH208

    ours, theirs = os.pipe()
    *_, channel, listing = start(numbers).recv(LIMIT_S)
    assert listing > channel > 2
    for number in (ours, theirs):
        os.close(number)
