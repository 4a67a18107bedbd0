"""Late ranks that work: helpers, threads, connections and libraries, against those that do nothing."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace

import pytest

from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.document import Cause, JobReport, Process, Snapshot
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.stacks.sockets import carried_bytes, counts, sockets_of
from gpuipc_doctor.stacks.thread import Stack, Thread

WAITS: Stack = ("poll (libc.so.6)", "PMPI_Allreduce (libmpi.so.40)", "step (app)", "main (app)")
SLEEPS: Stack = ("wait4 (libc.so.6)", "convert (app)", "main (app)")
PYTHON = ("svd (linalg.py:7)", "<module> (train.py:3)")


def thread(tid: int, stack: Stack = (), *, busy: float = 0.0, name: str = "app") -> Thread:
    state = "R" if busy > 0.5 else "S"
    return Thread(tid=tid, name=name, state=state, busy=busy, wchan="do_wait", native=(stack,) * bool(stack))


def process(rank: int | None, *threads: Thread, parent: int = 1, **more: object) -> Process:
    libraries = ("/usr/lib/libmpi.so.40",) if rank is not None else ()
    main = threads[0]
    return Process(
        pid=main.tid,
        parent=parent,
        uid=0,
        program=main.name,
        rank=rank,
        threads=threads,
        libraries=libraries,
        **more,  # type: ignore[arg-type]
    )


def examined(*looks: tuple[Process, ...]) -> JobReport:
    return examine([Snapshot(at=float(n), host="n1", processes=look) for n, look in enumerate(looks)], {})


def waiting(*more: Thread) -> Process:
    return process(0, thread(10, WAITS, busy=1.0), *more)


@pytest.mark.parametrize(
    ("helper", "idle", "cause"),
    [
        (0.98, 0.0, Cause.UNKNOWN),
        (0.0, 0.0, Cause.HOST_LATE),
        (0.04, 0.0, Cause.HOST_LATE),
        (0.98, 0.97, Cause.HOST_LATE),
        (0.98, 0.3, Cause.UNKNOWN),
    ],
)
@pytest.mark.parametrize("where", ["child", "grandchild", "thread"])
def test_helper_that_computes_is_work_beyond_that_of_waiting_ranks(
    helper: float, idle: float, cause: Cause, where: str
) -> None:
    own = [thread(21, busy=helper, name="pool")] if where == "thread" else []
    late = process(1, thread(20, SLEEPS), *own)
    child = process(None, thread(30, busy=helper * (where == "child"), name="gzip"), parent=20)
    below = process(None, thread(40, busy=helper * (where == "grandchild"), name="gzip"), parent=30)
    peer = waiting(thread(11, busy=idle * (where == "thread")))
    usual = process(None, thread(60, busy=idle * (where != "thread"), name="monitor"), parent=10)
    report = examined(*[(peer, late, child, below, usual)] * 3)
    assert (report.verdict.cause, report.verdict.blamed) == (cause, (1,))
    if cause is Cause.UNKNOWN:
        assert "rank 1 is late, and working at" in job_content.sentence(report)
        assert "look again" in job_content.sentence(report)


@pytest.mark.parametrize(("polls", "cause"), [("thread", Cause.UNKNOWN), ("child", Cause.HOST_LATE)])
def test_children_are_compared_with_children(polls: str, cause: Cause) -> None:
    """A thread of a waiting rank may poll; it says nothing about what children do."""
    peer = waiting(*[thread(11, busy=1.0, name="progress")] * (polls == "thread"))
    monitor = process(None, thread(60, busy=1.0 * (polls == "child"), name="monitor"), parent=10)
    child = process(None, thread(30, busy=0.98, name="gzip"), parent=20)
    report = examined(*[(peer, monitor, process(1, thread(20, SLEEPS)), child)] * 3)
    assert report.verdict.cause is cause


def test_child_that_is_always_ready_to_run_works_on_a_busy_node() -> None:
    child = process(None, replace(thread(30, busy=0.02, name="gzip"), state="R"), parent=20)
    report = examined(*[(waiting(), process(1, thread(20, SLEEPS)), child)] * 4)
    assert report.verdict.cause is Cause.UNKNOWN
    rests = replace(child, threads=(thread(30, busy=0.02, name="gzip"),))
    looks = [(waiting(), process(1, thread(20, SLEEPS)), each) for each in (child, rests, child, child)]
    assert examined(*looks).verdict.cause is Cause.HOST_LATE


def test_processes_that_are_their_own_parents_are_each_read_once() -> None:
    """The parent of a process is 0 if it cannot be read, and a pid may be reused between two readings."""
    rank = process(1, thread(20, SLEEPS), parent=30)
    child = process(None, thread(30, busy=0.0, name="gzip"), parent=20)
    itself = process(0, thread(10, WAITS, busy=1.0), parent=10)
    assert examined(*[(itself, rank, child)] * 3).verdict.cause is Cause.HOST_LATE


def test_late_rank_that_does_nothing_is_blamed_beside_one_that_works() -> None:
    busy = process(1, thread(20, SLEEPS), thread(21, busy=0.9))
    idle = process(2, thread(50, SLEEPS))
    report = examined(*[(waiting(), busy, idle)] * 3)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.HOST_LATE, (2,))


@pytest.mark.parametrize(
    ("speed", "usual", "cause"),
    [(1 << 20, 0, Cause.UNKNOWN), (100, 0, Cause.HOST_LATE), (1 << 20, 1 << 20, Cause.HOST_LATE)],
)
def test_connection_that_carries_data_is_work(speed: int, usual: int, cause: Cause) -> None:
    def look(n: int) -> tuple[Process, ...]:
        peer = process(0, thread(10, WAITS, busy=1.0), carried={7: n * usual})
        return peer, process(1, thread(20, SLEEPS), carried={8: n * speed, 100 + n: 1 << 40})

    assert examined(*map(look, range(3))).verdict.cause is cause


UFUNC = ("outer (_umath.cpython-311.so)",)


@pytest.mark.parametrize(
    ("places", "cause"),
    [
        ((("dgemm (libopenblas.so.0)", *UFUNC), ("dgesdd (libopenblas.so.0)", *UFUNC)), Cause.UNKNOWN),
        ((("longest_match (libz.so.1)", "deflate (libz.so.1)"), ("deflate (libz.so.1)",)), Cause.UNKNOWN),
        ((("dgemm (libopenblas.so.0)", *UFUNC),) * 2, Cause.HOST_LATE),
        ((("long_mod (python3.11)",), ("PyNumber_Add (python3.11)",)), Cause.HOST_LATE),
    ],
)
def test_library_in_which_python_goes_on_is_work_and_the_interpreter_is_not(
    places: tuple[Stack, ...], cause: Cause
) -> None:
    stacks = [(*place, *INTERPRETER) for place in places]
    late = [process(1, thread(20, stack, busy=1.0), python=PYTHON) for stack in stacks]
    assert examined(*[(waiting(), look) for look in late]).verdict.cause is cause


INTERPRETER = ("_PyEval_EvalFrameDefault (python3.11)", "main (python3.11)")
COLLECTS = ("gc_collect (python3.11)", "PyObject_Vectorcall (python3.11)")


@pytest.mark.parametrize(
    ("inner", "seldom", "cause"),
    [
        ((("visit_decref (python3.11)", *COLLECTS), COLLECTS), COLLECTS, Cause.UNKNOWN),
        ((("visit_decref (python3.11)", *COLLECTS), COLLECTS), (), Cause.HOST_LATE),  # between two calls
        ((("list_sort (python3.11)", "[python3.11]"), ("[python3.11]",)), ("[python3.11]",), Cause.HOST_LATE),
        ((COLLECTS, COLLECTS), COLLECTS, Cause.HOST_LATE),
        ((("long_add (python3.11)",), ("long_mod (python3.11)",)), (), Cause.HOST_LATE),
    ],
)
def test_one_long_call_of_the_interpreter_is_work_and_a_loop_is_not(
    inner: tuple[Stack, Stack], seldom: Stack, cause: Cause
) -> None:
    stacks = [(*inner[n % 2], *INTERPRETER) for n in range(8)] + [(*seldom, *INTERPRETER)]
    late = [process(1, thread(20, stack, busy=1.0), python=PYTHON) for stack in stacks]
    assert examined(*[(waiting(), look) for look in late]).verdict.cause is cause


SOLVES = ("dgesdd_ (libopenblas.so.0)", "solve (app)", "main (app)")


@pytest.mark.parametrize(
    ("inner", "seldom", "cause"),
    [
        (("dgemm (libopenblas.so.0)", "dlacpy (libopenblas.so.0)"), SOLVES, Cause.UNKNOWN),
        (("dgemm (libopenblas.so.0)", "dlacpy (libopenblas.so.0)"), SOLVES[1:], Cause.HOST_LATE),
        (("dgemm (libopenblas.so.0)",) * 2, ("dgemm (libopenblas.so.0)", *SOLVES), Cause.HOST_LATE),
    ],
)
def test_one_long_call_of_a_library_from_c_is_work(
    inner: tuple[str, str], seldom: Stack, cause: Cause
) -> None:
    stacks = [(inner[n % 2], *SOLVES) for n in range(8)] + [seldom]
    late = [process(1, thread(20, stack, busy=1.0)) for stack in stacks]
    assert examined(*[(waiting(), look) for look in late]).verdict.cause is cause


@pytest.mark.parametrize(("number", "cause"), [(12, Cause.UNKNOWN), (9, Cause.HOST_LATE)])
def test_many_samples_in_succession_within_one_call_are_work(number: int, cause: Cause) -> None:
    """Sorts one after the other: between them the interpreter is seen."""
    sorts = [("merge_at (python3.11)", *COLLECTS), COLLECTS]
    places = [(), *(sorts[n % 2] for n in range(number)), ("list_dealloc (python3.11)",)]
    late = [process(1, thread(20, (*place, *INTERPRETER), busy=1.0), python=PYTHON) for place in places]
    assert examined(*[(waiting(), look) for look in late]).verdict.cause is cause


def test_short_lived_children_are_work() -> None:
    """They are seen once each, or not at all: the kernel counts their time when their parent waits."""

    def looks(children_s: float, state: str) -> list[tuple[Process, ...]]:
        rank = process(1, thread(20, SLEEPS))
        child = process(None, thread(100, name="cc1"), parent=20)
        return [
            (
                waiting(),
                replace(rank, children_s=children_s * n),
                replace(child, pid=100 + n, threads=(replace(child.threads[0], tid=100 + n, state=state),)),
            )
            for n in range(4)
        ]

    assert examined(*looks(0.5, "S")).verdict.cause is Cause.UNKNOWN
    assert examined(*looks(0.02, "R")).verdict.cause is Cause.UNKNOWN
    assert examined(*looks(0.02, "S")).verdict.cause is Cause.HOST_LATE


@pytest.mark.parametrize("who", ["rank", "child"])
@pytest.mark.parametrize(
    ("io", "carried", "cause"),
    [(1 << 20, 0, Cause.UNKNOWN), (0, 1 << 20, Cause.UNKNOWN), (4096, 4096, Cause.HOST_LATE)],
)
def test_bytes_of_threads_and_children_are_work(who: str, io: int, carried: int, cause: Cause) -> None:
    def look(n: int) -> tuple[Process, ...]:
        more = {"io": n * io, "carried": {7: n * carried}}
        own, childs = (more, {}) if who == "rank" else ({}, more)
        child = process(None, thread(30, name="curl"), parent=20, **childs)
        return waiting(), process(1, thread(20, SLEEPS), **own), child

    assert examined(*map(look, range(4))).verdict.cause is cause


@pytest.mark.parametrize(
    ("wchan", "wakes", "cause"),
    [
        ("unix_stream_data_wait", 4, Cause.UNKNOWN),
        ("unix_stream_data_wait", 0, Cause.HOST_LATE),
        ("hrtimer_nanosleep", 4, Cause.HOST_LATE),
        ("do_poll", 4, Cause.HOST_LATE),
    ],
)
def test_socket_that_wakes_its_reader_delivers(wchan: str, wakes: int, cause: Cause) -> None:
    late = process(1, replace(thread(20, SLEEPS), wchan=wchan))
    looks = [(waiting(), replace(late, switches=n * wakes)) for n in range(4)]
    assert examined(*looks).verdict.cause is cause


def test_bytes_of_a_connection_are_those_that_it_carried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            before = carried_bytes()
            if not before:
                pytest.skip("this kernel does not list sockets")
            threading.Thread(target=sender.sendall, args=(bytes(1 << 20),)).start()
            left = 1 << 20
            while left:
                left -= len(receiver.recv(left))
            inode = os.fstat(receiver.fileno()).st_ino
            assert inode in sockets_of(os.getpid())
            assert carried_bytes()[inode] - before[inode] == 1 << 20


@pytest.mark.parametrize("answer", [b"", b"\x10", b"\x00" * 64, b"\xff" * 200])
def test_damaged_answer_of_the_kernel_has_no_counts(answer: bytes) -> None:
    assert [*counts(answer)] == []


@pytest.mark.parametrize(("io", "cause"), [(1 << 16, Cause.RUNS), (0, Cause.KERNEL)])
def test_thread_in_state_d_that_writes_a_checkpoint_is_not_stuck(io: int, cause: Cause) -> None:
    writes = Thread(tid=21, name="save", state="D", wchan="folio_wait_bit")
    looks = [(waiting(), process(1, thread(20, SLEEPS), writes, io=n * io)) for n in range(4)]
    assert examined(*looks).verdict.cause is cause


@pytest.mark.parametrize(
    ("sizes", "cause"),
    [
        ((0, 40, 80, 90), Cause.UNKNOWN),
        ((0, 40, 40, 80), Cause.UNKNOWN),
        ((0, 40, 0, 40), Cause.HOST_LATE),
        ((0, 40, 40, 40), Cause.HOST_LATE),
        ((7, 7, 7, 7), Cause.HOST_LATE),
    ],
)
def test_memory_that_fills_is_work(sizes: tuple[int, ...], cause: Cause) -> None:
    looks = [(waiting(), process(1, thread(20, SLEEPS), resident=size << 20)) for size in sizes]
    assert examined(*looks).verdict.cause is cause
