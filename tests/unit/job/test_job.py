"""Activity of a rank from its stacks, ranks that wait for each other, and merging ranks with equal stacks."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.job import job_content
from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import Cause, Contents, Process, Snapshot
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.stack_tree import Branch, fold
from gpuipc_doctor.job.verdict import judge
from gpuipc_doctor.job.waits import Activity, Kind, mpi_function
from gpuipc_doctor.stacks import python_stacks
from gpuipc_doctor.stacks.sampling import stacks
from gpuipc_doctor.stacks.thread import Stack, Thread

IN_RECEIVE = ("[libmpi.so.12]", "PMPI_Recv_c (libmpi.so.12)", "main (app)", "_start (app)")
IN_ALLREDUCE = ("[libmpi.so.12]", "PMPI_Allreduce (libmpi.so.12)", "step (app)", "main (app)")
COMPUTING = ("kernel (app)", "main (app)", "_start (app)")


def process(*native: Stack, state: str = "R", approximate: Stack = (), **more: str) -> Process:
    sleeping = (approximate,) if approximate else ()
    busy = float(state == "R")
    thread = Thread(tid=7, name="app", state=state, busy=busy, native=native, approximate=sleeping, **more)
    return Process(pid=7, parent=1, uid=0, program="app", threads=(thread,))


def doing(kind: Kind, operation: str = "") -> Activity:
    return Activity(kind, operation)


@pytest.mark.parametrize(
    ("symbol", "function"),
    [
        ("MPI_Recv", "Recv"),
        ("PMPI_Recv_c", "Recv"),
        ("mpi_allreduce_", "Allreduce"),
        ("pmpi_barrier__", "Barrier"),
        ("MPIR_Wait", ""),
        ("my_MPI_Recv", ""),
    ],
)
def test_mpi_function_of_c_and_fortran_names(symbol: str, function: str) -> None:
    assert mpi_function(symbol) == function


@pytest.mark.parametrize(
    ("stack", "kind", "operation"),
    [
        (IN_RECEIVE, Kind.RECEIVES, "MPI_Recv"),
        (IN_ALLREDUCE, Kind.COLLECTIVE, "MPI_Allreduce"),
        (("poll (libc.so.6)", "PMPI_Ssend (libmpi.so.40)"), Kind.SENDS, "MPI_Ssend"),
        (("PMPI_Sendrecv (libmpi.so.40)",), Kind.PROGRESSES, "MPI_Sendrecv"),
        (("PMPI_Waitall (libmpi.so.40)",), Kind.PROGRESSES, "MPI_Waitall"),
        (("MPI_Finalize (libmpi.so.40)",), Kind.ENDS, "MPI_Finalize"),
        (("PMPI_Init_thread (libmpi.so.40)",), Kind.STARTS, "MPI_Init_thread"),
        (("PMPI_Comm_dup (libmpi.so.40)",), Kind.COLLECTIVE, "MPI_Comm_dup"),
        (("PMPI_Reduce_scatter_block (libmpi.so.40)",), Kind.COLLECTIVE, "MPI_Reduce_scatter_block"),
        (("pwrite (libc.so.6)", "PMPI_File_write_at (libmpi.so.40)", "save (app)"), Kind.COMPUTES, ""),
        (
            ("pwrite (libc.so.6)", "PMPI_File_write_at_all (libmpi.so.40)"),
            Kind.COLLECTIVE,
            "MPI_File_write_at_all",
        ),
        (("PMPI_Initialized (libmpi.so.12)", "PMPI_Finalize (libmpi.so.12)"), Kind.ENDS, "MPI_Finalize"),
        (("cuCtxSynchronize (libcuda.so.1)", "main (app)"), Kind.DEVICE, "cuCtxSynchronize"),
        (("hipStreamSynchronize (libamdhip64.so.6)",), Kind.DEVICE, "hipStreamSynchronize"),
        (("zeEventHostSynchronize (libze_intel_gpu.so.1)",), Kind.DEVICE, "zeEventHostSynchronize"),
        (("zeCommandListHostSynchronize (libze_loader.so.1)",), Kind.DEVICE, "zeCommandListHostSynchronize"),
        (("zeMemGetIpcHandle (libze_loader.so.1)", "a (a.out)"), Kind.COMPUTES, "a"),
        (
            ("fi_cq_read (libccl.so.1)", "_ZN3ccl2v19allreduceEPKv (libccl.so.1)"),
            Kind.COLLECTIVE,
            "ccl::allreduce",
        ),
        (("poll (libccl.so.1)", "ccl::v1::event::wait() (libccl.so.1)"), Kind.PROGRESSES, "ccl::event::wait"),
        (("x (libccl.so.1)", "_ZN3ccl2v14recvEPv (libccl.so.1)"), Kind.RECEIVES, "ccl::recv"),
        (COMPUTING, Kind.COMPUTES, "kernel (app)"),
    ],
)
def test_running_rank_is_in_the_outermost_waiting_call(stack: Stack, kind: Kind, operation: str) -> None:
    seen = activity([process(stack), process(stack)])
    assert (seen.kind, seen.operation if kind is not Kind.COMPUTES else operation) == (kind, operation)


def test_python_that_synchronises_with_the_gpu_waits_without_a_native_stack() -> None:
    python = ("torch.cuda.synchronize (__init__.py:1162)", "<module> (spin.py:4)")
    assert activity([replace(process(), python=python)] * 2).kind is Kind.DEVICE
    seen = activity([replace(process(COMPUTING), python=python)] * 2)
    assert (seen.kind, seen.operation) == (Kind.DEVICE, "torch.cuda.synchronize")
    own = ("synchronize (__init__.py:12)", "<module> (app.py:4)")
    assert activity([replace(process(COMPUTING), python=own)] * 2).kind is Kind.COMPUTES
    moved = [replace(process(COMPUTING), python=stack) for stack in (python, python[1:])]
    assert activity(moved).kind is Kind.LOOPS


def test_frames_of_torch_cuda_are_distinguished_from_the_programs() -> None:
    def frame(file: str) -> str:
        return python_stacks.label({"name": "synchronize", "filename": file, "line": 1162})

    assert frame("/opt/lib/torch/cuda/__init__.py") == "torch.cuda.synchronize (__init__.py:1162)"
    assert frame("/opt/lib/torch/cuda/streams.py") == "torch.cuda.synchronize (streams.py:1162)"
    assert frame("/home/u/app/__init__.py") == "synchronize (__init__.py:1162)"


def test_stack_that_ends_in_a_transport_is_unknown() -> None:
    cut = ("__sched_yield (libc.so.6)", "opal_progress (libopen-pal.so.80)")
    assert activity([process(IN_RECEIVE), process(cut)]).kind is Kind.RECEIVES


def test_sleeping_rank_with_stale_mpi_frames_further_out_sleeps_outside_mpi() -> None:
    remains = ("clock_nanosleep (libc.so.6)", "nap (app)", "PMPI_Recv (libmpi.so.12)", "main (app)")
    assert activity([process(state="S", approximate=remains)]).kind is Kind.SLEEPS


@pytest.mark.parametrize(
    "library", ["libevent_core-2.1.so.7", "libmlx5.so.1", "libcxi.so.1", "libxpmem.so.0"]
)
def test_any_shared_library_below_an_mpi_call_belongs_to_it(library: str) -> None:
    """Without perf(1) stacks are approximate, and end at the first frame of the program."""
    polls = (
        "epoll_wait (libc.so.6)",
        f"[{library}]",
        f"poll (libm-{library})",
        "PMPI_Waitall (libmpi.so.40)",
    )
    for state in "RS":
        assert activity([process(state=state, approximate=(*polls, "main (app)"))]).kind is Kind.PROGRESSES


@pytest.mark.parametrize(
    "file", ["_umath.cpython-312-x86_64-linux-gnu.so", "libopenblas.so.0", "libpython3.12.so.1"]
)
def test_library_that_computes_is_not_below_an_mpi_call(file: str) -> None:
    remains = (f"multiply ({file})", "PMPI_Recv (libmpi.so.40)", "main (app)")
    assert activity([process(approximate=remains)] * 2).kind is Kind.COMPUTES


def test_stale_frames_do_not_contradict_a_sampled_stack() -> None:
    remains = ("clock_nanosleep (libc.so.6)", "PMPI_Comm_dup (libmpi.so.40)", "PMPI_Allreduce (libmpi.so.40)")
    seen = activity([process(IN_ALLREDUCE), process(state="S", approximate=remains)])
    assert (seen.kind, seen.operation) == (Kind.COLLECTIVE, "MPI_Allreduce")


def test_thread_in_state_d_in_every_snapshot_is_stuck_in_the_kernel() -> None:
    stuck = process(state="D", wchan="fuse_wait")
    seen = activity([stuck, stuck])
    assert (seen.kind, seen.operation) == (Kind.KERNEL, "fuse_wait")
    assert activity([process(COMPUTING), stuck]).kind is not Kind.KERNEL
    vfork = process(COMPUTING, state="D", wchan="kernel_clone")
    assert activity([vfork, vfork]).reason == "waits for its child of vfork() in every snapshot"


IN_DRIVER = (
    "clock_gettime (linux-vdso.so.1)",
    "[libcuda.so.580.95.05]",
    "[libcuda.so.580.95.05]",
    "at::native::_local_scalar_dense_cuda (libtorch_cuda.so)",
    "[python3.12]",
)
QUEUES = ("[libcudart.so.12]", "launch (libtorch_cuda.so)", "[python3.12]")


@pytest.mark.parametrize(
    ("samples", "lines", "kind"),
    [
        ([IN_DRIVER[1:], IN_DRIVER], ("f (t.py:1)",), Kind.DEVICE),
        ([("spin (libamdhip64.so.6)", "main (app)")] * 2, (), Kind.DEVICE),
        ([("[libhsa-runtime64.so.1]", "main (app)")] * 2, (), Kind.DEVICE),
        ([IN_DRIVER, QUEUES], ("f (t.py:1)",), Kind.LOOPS),  # between two launches
        ([IN_DRIVER, IN_DRIVER], ("f (t.py:1)", "f (t.py:2)"), Kind.COMPUTES),  # it makes progress
        ([("memcpy (libc.so.6)", "main (app)")] * 2, (), Kind.COMPUTES),
        ([(*IN_DRIVER[:3], "PMPI_Recv (libmpi.so.12)", "main (app)")] * 2, (), Kind.RECEIVES),
    ],
)
def test_thread_that_polls_in_the_driver_waits_for_the_gpu(
    samples: list[Stack], lines: tuple[str, ...], kind: Kind
) -> None:
    snapshots = [
        replace(process(stack), python=lines[number % len(lines) :][:1] if lines else ())
        for number, stack in enumerate(samples)
    ]
    assert activity(snapshots).kind is kind


@pytest.mark.parametrize(
    ("stack", "wchan", "kind"),
    [
        (("poll (libc.so.6)", "[libcuda.so.580.95.05]", "train (app)"), "do_sys_poll", Kind.DEVICE),
        (("ioctl (libc.so.6)", "[libhsa-runtime64.so.1]", "train (app)"), "kfd_wait_on_events", Kind.DEVICE),
        ((), "kfd_wait_on_events", Kind.DEVICE),  # its stack is not readable
        (("poll (libc.so.6)", "train (app)"), "do_sys_poll", Kind.SLEEPS),
        (("poll (libc.so.6)", "[libcuda.so.1]", "PMPI_Recv (libmpi.so.12)"), "do_sys_poll", Kind.RECEIVES),
    ],
)
def test_thread_that_sleeps_in_the_driver_waits_for_the_gpu(stack: Stack, wchan: str, kind: Kind) -> None:
    """The thread does not poll, with cudaDeviceScheduleBlockingSync, and on AMD's GPUs by default."""
    assert activity([process(state="S", approximate=stack, wchan=wchan)] * 2).kind is kind


SLEEPS = doing(Kind.SLEEPS, "nap")
REDUCES = doing(Kind.COLLECTIVE, "MPI_Allreduce")
RECEIVES = doing(Kind.RECEIVES, "MPI_Recv")
SENDS = doing(Kind.SENDS, "MPI_Ssend")


def requests(operation: str) -> Activity:
    return doing(Kind.PROGRESSES, operation)


@pytest.mark.parametrize(
    ("activities", "cause", "blamed"),
    [
        ([RECEIVES, doing(Kind.ENDS, "MPI_Finalize")], Cause.MESSAGE_LOST, (0,)),
        ([RECEIVES, REDUCES, REDUCES], Cause.MESSAGE_LOST, (0,)),
        ([RECEIVES, RECEIVES], Cause.ALL_WAIT, ()),
        ([RECEIVES, doing(Kind.SENDS, "MPI_Send")], Cause.ALL_WAIT, ()),
        ([SENDS, SENDS, REDUCES], Cause.ALL_WAIT, (0, 1)),  # ranks in a collective are in no cycle
        ([SENDS, RECEIVES, REDUCES], Cause.ALL_WAIT, (0, 1)),
        ([SENDS, doing(Kind.ENDS, "MPI_Finalize")], Cause.ALL_WAIT, (0,)),
        ([requests("MPI_Waitall"), REDUCES, REDUCES], Cause.MESSAGE_LOST, (0,)),
        ([requests("MPI_Sendrecv"), RECEIVES, REDUCES], Cause.MESSAGE_LOST, (0, 1)),
        ([requests("MPI_Waitall"), requests("MPI_Waitall")], Cause.ALL_WAIT, ()),
        ([requests("MPI_Wait"), REDUCES], Cause.ALL_WAIT, (0,)),  # perhaps of a nonblocking collective
        ([requests("MPI_Win_lock"), REDUCES], Cause.ALL_WAIT, (0,)),
        ([requests("an MPI call"), REDUCES], Cause.ALL_WAIT, (0,)),
        ([doing(Kind.LOOPS, "solve"), REDUCES], Cause.UNKNOWN, (0,)),
        ([doing(Kind.LOOPS, "solve"), SLEEPS, REDUCES], Cause.HOST_LATE, (0, 1)),
        ([doing(Kind.LOOPS, "solve")] * 2, Cause.RUNS, ()),
        ([REDUCES, doing(Kind.COLLECTIVE, "MPI_Barrier")], Cause.MISMATCH, ()),
        ([REDUCES, REDUCES], Cause.ALL_WAIT, ()),
        ([REDUCES, doing(Kind.ENDS, "MPI_Finalize"), REDUCES], Cause.MISMATCH, (1,)),
        ([doing(Kind.ENDS, "MPI_Finalize")] * 2, Cause.FINALIZE, ()),
        ([REDUCES, doing(Kind.KERNEL, "fuse_wait")], Cause.KERNEL, (1,)),
        ([REDUCES, doing(Kind.STOPPED)], Cause.STOPPED, (1,)),
        ([REDUCES, doing(Kind.ENDED)], Cause.RANK_ENDED, (1,)),
        ([REDUCES, doing(Kind.DEVICE, "cuCtxSynchronize")], Cause.DEVICE_BUSY, (1,)),
        ([REDUCES, doing(Kind.UNKNOWN)], Cause.UNKNOWN, ()),
        ([doing(Kind.COMPUTES, "kernel")] * 2, Cause.RUNS, ()),
        ([doing(Kind.MOVES), REDUCES], Cause.RUNS, ()),
    ],
)
def test_verdict_from_the_ranks_activities(
    activities: list[Activity], cause: Cause, blamed: tuple[int, ...]
) -> None:
    verdict = judge(dict(enumerate(activities)))
    assert (verdict.cause, verdict.blamed) == (cause, blamed)


def reduces_at(*path: str, **more: str) -> Activity:
    return replace(REDUCES, path=(*path, "PMPI_Allreduce (libmpi.so.12)"), **more)  # type: ignore[arg-type]


ONE, TWO = reduces_at("main (app)", "one (app)"), reduces_at("main (app)", "two (app)")
LINE_3, LINE_5 = reduces_at("<module> (train.py:3)"), reduces_at("<module> (train.py:5)")
CARRIES = reduces_at("main (app)", "one (app)", works="its connections carry 9.0 MiB a second")


@pytest.mark.parametrize(
    ("activities", "cause", "blamed"),
    [
        ([ONE, TWO, ONE], Cause.ORDER, (1,)),
        ([ONE, TWO], Cause.ORDER, ()),
        ([LINE_3, LINE_3, LINE_5], Cause.ORDER, (2,)),
        ([ONE, ONE, ONE], Cause.ALL_WAIT, ()),
        ([ONE, reduces_at("main (app)"), ONE], Cause.ALL_WAIT, ()),  # a stack cut inside
        ([ONE, reduces_at("one (app)"), ONE], Cause.ALL_WAIT, ()),  # and outside
        ([ONE, TWO, doing(Kind.SLEEPS, "nap")], Cause.HOST_LATE, (2,)),
        ([ONE, replace(TWO, operation="MPI_Barrier"), ONE], Cause.MISMATCH, ()),
        ([CARRIES, TWO, ONE], Cause.UNKNOWN, ()),
        ([CARRIES, ONE, ONE], Cause.UNKNOWN, ()),
    ],
)
def test_one_collective_called_at_two_places_is_of_two_communicators(
    activities: list[Activity], cause: Cause, blamed: tuple[int, ...]
) -> None:
    verdict = judge(dict(enumerate(activities)), messages=False)
    assert (verdict.cause, verdict.blamed) == (cause, blamed)


IN_PYTHON = replace(REDUCES, path=("<module> (train.py:3)", "PMPI_Allreduce (libmpi.so.12)"))


@pytest.mark.parametrize(
    ("activities", "messages", "cause"),
    [
        ([REDUCES, REDUCES], True, Cause.RUNS),
        ([REDUCES, REDUCES], False, Cause.ALL_WAIT),
        ([REDUCES, REDUCES], None, Cause.ALL_WAIT),
        ([IN_PYTHON, IN_PYTHON], True, Cause.RUNS),
        ([IN_PYTHON, IN_PYTHON], False, Cause.ALL_WAIT),
        ([IN_PYTHON, IN_PYTHON], None, Cause.UNKNOWN),  # a loop of this collective looks the same
        ([RECEIVES, REDUCES], True, Cause.UNKNOWN),
        ([RECEIVES, REDUCES], False, Cause.MESSAGE_LOST),
        ([REDUCES, SLEEPS], True, Cause.UNKNOWN),  # a step of a few seconds, or a task of a worker
        ([REDUCES, SLEEPS], False, Cause.HOST_LATE),
        ([REDUCES, SLEEPS], None, Cause.HOST_LATE),
    ],
)
def test_ranks_between_which_messages_move_do_not_wait(
    activities: list[Activity], messages: bool | None, cause: Cause
) -> None:
    assert judge(dict(enumerate(activities)), messages=messages).cause is cause


paths = st.dictionaries(st.integers(0, 40), st.lists(st.sampled_from("abc"), max_size=6), max_size=12)


@given(paths)
def test_fold_keeps_the_path_of_every_rank(ways: dict[int, list[str]]) -> None:
    found: dict[int, list[str]] = {rank: [] for rank in ways}

    def walk(branch: Branch) -> None:
        for rank in branch.ranks:
            found[rank] += branch.frames
        for below in branch.branches:
            walk(below)

    for branch in fold(ways):
        walk(branch)
    assert found == ways


def test_fold_of_a_stack_of_many_frames_does_not_recurse_by_frame() -> None:
    deep = [f"frame{number}" for number in range(10_000)]
    (branch,) = fold({0: deep, 1: deep})
    assert branch.ranks == (0, 1)
    assert len(branch.frames) == 10_000


def test_fold_of_ten_thousand_ranks_needs_little_memory() -> None:
    ways = {rank: ["main", "step", f"wait{rank % 7}", "poll"] for rank in range(10_000)}
    tracemalloc.start()
    (branch,) = fold(ways)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(branch.branches) == 7
    assert used < 200 << 20


def test_perf_script_output_becomes_stacks_without_kernel_frames() -> None:
    text = (
        "python 16547 \n"
        "\tffffffff813a2313 finish_task_switch ([kernel.kallsyms])\n"
        "\t           ee017 __sched_yield@@GLIBC_2.2.5 (/usr/lib/libc.so.6)\n"
        "\t          3dbc8e [unknown] (/opt/mpi/lib/libmpi.so.12)\n"
        "\t          15d64f PMPI_Barrier (/opt/mpi/lib/libmpi.so.12)\n"
        "\tffffffffffffffff [unknown] ([unknown])\n"
        "\n"
        "   99 \n"
        "\t           1 main (/bin/app)\n"
    )
    assert list(stacks(text)) == [
        (16547, ("__sched_yield (libc.so.6)", "[libmpi.so.12]", "PMPI_Barrier (libmpi.so.12)")),
        (99, ("main (app)",)),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be careful: needs root")
def test_samples_of_root_are_in_no_directory_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def watch(_: object, place: Path, *__: object) -> None:
        raise Seen(place)

    os.chown(tmp_path, 12345, -1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("gpuipc_doctor.job.selection.select", lambda request: request)
    monkeypatch.setattr("gpuipc_doctor.job.here.Watcher", watch)
    ended = CliRunner().invoke(cli, ["job"])
    assert isinstance(ended.exception, Seen), ended.output
    (place,) = ended.exception.args
    assert tmp_path not in place.parents
    assert not place.exists()


@pytest.mark.parametrize(
    "changes", [{"python": ("step (app.py:8)",)}, {"callers": "8d1f"}], ids=["Python frames", "callers"]
)
def test_rank_whose_caller_advances_between_equal_calls_makes_progress(changes: dict[str, object]) -> None:
    before = replace(process(IN_ALLREDUCE), python=("step (app.py:7)",), callers="05aa")
    assert activity([before, before]).kind is Kind.COLLECTIVE
    assert activity([before, replace(before, **changes)]).kind is Kind.MOVES  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call", ["Test", "Testall", "Testsome", "Iprobe", "Improbe", "Request_get_status", "Parrived"]
)
def test_nonblocking_mpi_test_is_no_wait(call: str) -> None:
    """An idle server looks like this; all samples of a loop that sleeps can be in its test."""
    polls = replace(process((f"PMPI_{call} (libmpi.so.12)", "main (app)")), callers="05aa")
    seen = activity([polls, replace(polls, callers="8d1f")])
    assert (seen.kind, seen.operation) == (Kind.LOOPS, f"MPI_{call}")
    assert judge({0: seen, 1: SLEEPS}, messages=True).cause is Cause.RUNS
    assert judge({0: seen, 1: REDUCES}, messages=False).cause is Cause.UNKNOWN
    late = judge({0: seen, 1: SLEEPS, 2: REDUCES}, messages=False)
    assert (late.cause, late.blamed) == (Cause.HOST_LATE, (1,))


def test_thread_that_polls_does_not_hide_the_main_thread() -> None:
    main = Thread(tid=7, name="app", state="R", busy=1.0, native=(COMPUTING,))
    poller = Thread(tid=8, name="app", state="R", native=(("PMPI_Iprobe (libmpi.so.12)", "serve (app)"),))
    assert activity([replace(process(), threads=(main, poller))] * 2).operation == "kernel (app)"


def test_python_in_changing_extension_functions_is_late_or_in_a_loop() -> None:
    """Each snapshot is at the same line, a sleep, but the samples show several calls of NumPy."""
    numpy, inner = "(_multiarray_umath.so)", ("_PyEval_EvalFrameDefault (python3.11)", "main (python3.11)")
    naps = replace(process(), python=("solve (h3.py:8)", "<module> (h3.py:10)"))

    def seen(*samples: Stack) -> Activity:
        thread = replace(naps.threads[0], native=tuple((*sample, *inner) for sample in samples))
        return activity([replace(naps, threads=(thread,))] * 2)

    multiply = ("dgemm_kernel (libopenblas.so)", f"array_dot {numpy}")
    sleeps = ("clock_nanosleep (libc.so.6)", "[python3.11]")
    several = seen(multiply, (f"array_arange {numpy}",), sleeps)
    assert (several.kind, several.reason) == (Kind.LOOPS, "goes through array_dot, array_arange")
    assert seen(multiply, multiply[1:], sleeps, ()).kind is Kind.COMPUTES  # the same call repeatedly


def test_messages_between_any_snapshots_except_the_first_two_count() -> None:
    """A master with a message every two seconds: the last two snapshots may see none."""

    def moved(*digests: str) -> bool | None:
        shared = [Contents(digest, whole=digest != "partial") for digest in digests]
        each = [Snapshot(at=1.0, host="n1", processes=(process(IN_RECEIVE),), shared=one) for one in shared]
        return examine(each, {}).messages

    assert moved("a", "a", "b", "b") is True
    assert moved("a", "b", "b", "b") is False  # ranks may still have been arriving
    assert moved("a", "b") is True
    assert moved("a", "b", "partial", "partial") is True
    assert moved("a", "partial", "partial", "partial") is None


def test_rank_whose_main_thread_reads_or_writes_makes_progress() -> None:
    """A checkpoint of minutes, or a pipe with a line every second: late, but not stuck."""

    def snapshots(wchan: str, *transferred: int | None) -> list[Process]:
        asleep = process(state="S", approximate=("read (libc.so.6)", "main (app)"), wchan=wchan)
        return [replace(asleep, transferred=each) for each in transferred]

    assert activity(snapshots("anon_pipe_read", 100, 100, 140)).kind is Kind.MOVES
    assert activity(snapshots("anon_pipe_read", 100, 100, 100)).kind is Kind.SLEEPS
    assert activity(snapshots("jbd2_log_wait", 0, 2 << 20)).kind is Kind.MOVES
    assert (
        activity(snapshots("hrtimer_nanosleep", 0, 4000)).kind is Kind.SLEEPS
    )  # a loop that writes to its log
    assert activity(snapshots("anon_pipe_read", None, None)).kind is Kind.SLEEPS


def test_python_frames_name_the_programs_own_function_and_its_loop() -> None:
    waits = ("Condition.wait (threading.py:320)", "train (app.py:13)", "<module> (app.py:20)")
    asleep = replace(process(state="S", approximate=("[python3.11]",)), python=waits, own=1)
    assert activity([asleep] * 2).operation == "train (app.py:13) > Condition.wait (threading.py:320)"
    loop = [
        replace(process(COMPUTING), python=(f"iterate (app.py:{line})", "<module> (app.py:20)"))
        for line in (7, 8, 9)
    ]
    seen = activity(loop)
    assert (seen.kind, seen.operation) == (Kind.COMPUTES, "iterate (app.py)")
    through = [*loop, replace(loop[0], python=("residual (app.py:3)", *loop[0].python))]
    assert activity(through).kind is Kind.LOOPS


def test_ranks_that_poll_in_own_loops_are_judged_by_moving_messages() -> None:
    polls, sleeps = ("MPI_Iprobe (libmpi.so.40)", "main (app)"), ("nap (app)", "main (app)")
    seen = activity([process(polls, sleeps)] * 2)
    assert (seen.kind, seen.operation) == (Kind.LOOPS, "MPI_Iprobe")
    assert judge({0: seen, 1: seen}, messages=False).cause is Cause.UNKNOWN
    assert judge({0: seen, 1: seen}, messages=True).cause is Cause.RUNS
    assert judge({0: seen, 1: REDUCES}).cause is Cause.UNKNOWN
    assert activity([process(polls, IN_RECEIVE)] * 2).kind is Kind.MOVES


def test_ranks_that_wait_while_others_make_progress_are_named() -> None:
    verdict = judge({0: doing(Kind.MOVES), 1: RECEIVES, 2: RECEIVES})
    assert (verdict.cause, verdict.waiting) == (Cause.UNKNOWN, (1, 2))
    idle = "2 others stayed in MPI_Recv, idle or stuck"
    assert (verdict.waits_in, verdict.reasons) == ("MPI_Recv", ("1 of 3 ranks made progress", idle))
    verdict = judge({0: doing(Kind.MOVES), 1: REDUCES, 2: REDUCES})
    assert (verdict.cause, verdict.waiting) == (Cause.RUNS, (1, 2))
    verdict = judge({0: doing(Kind.MOVES), 1: REDUCES, 2: doing(Kind.COMPUTES)})
    assert (verdict.cause, verdict.waiting) == (Cause.UNKNOWN, (1,))
    other = replace(REDUCES, operation="MPI_Barrier")
    assert judge({0: doing(Kind.MOVES), 1: REDUCES, 2: other}).cause is Cause.UNKNOWN


def test_rank_whose_variables_change_between_two_receives_makes_progress() -> None:
    seen = [replace(process(IN_RECEIVE), variables=each) for each in ("a", "a", "b")]
    assert activity(seen[:2]).kind is Kind.RECEIVES
    assert activity(seen).kind is Kind.MOVES
    assert (
        activity([replace(each, threads=process(COMPUTING).threads) for each in seen]).kind is Kind.COMPUTES
    )


def test_ranks_that_wait_at_a_socket_without_mpi_have_no_verdict() -> None:
    deaf = replace(doing(Kind.SLEEPS, "recv"), path=("recv (app)", "wait_woken"))
    verdict = judge({0: deaf, 1: SLEEPS})
    assert (verdict.cause, verdict.waiting) == (Cause.UNKNOWN, (0,))
    assert judge({0: deaf}).cause is Cause.RUNS


def test_c_program_in_changing_functions_is_late_or_in_a_loop() -> None:
    assemble = ("assemble (app)", "go_on (app)", "main (app)")
    solve = ("sin (libm.so.6)", "solve (app)", "main (app)")
    seen = activity([process(assemble, solve)] * 2)
    assert (seen.kind, seen.reason) == (Kind.LOOPS, "goes through assemble, solve")
    assert activity([process(solve, solve[1:])] * 2).kind is Kind.COMPUTES
    calls_itself = activity([process(solve[1:], ("solve (app)", *solve[1:]))] * 2)
    assert calls_itself.kind is Kind.LOOPS
    assert calls_itself.reason == "goes through solve, recursion at 2 depths"


def test_threads_of_a_main_thread_that_waits_for_them_are_shown() -> None:
    main = Thread(tid=7, name="app", state="S", wchan="futex_do_wait", approximate=(("main (app)",),))
    lock = ("pthread_mutex_lock (libc.so.6)", "fill (app)")
    other = Thread(tid=8, name="app", state="S", wchan="futex_do_wait", approximate=(lock,))
    seen = activity([replace(process(), threads=(main, other))] * 2)
    assert (seen.kind, seen.operation) == (Kind.SLEEPS, "main (app)")
    assert "; other threads: pthread_mutex_lock (libc.so.6) < fill (app)" in seen.reason


@pytest.mark.parametrize(("left", "cause"), [("bash", Cause.RANK_ENDED), ("python3", Cause.HOST_LATE)])
def test_rank_with_only_its_script_left_has_ended(left: str, cause: Cause) -> None:
    """The rank's processes have no MPI, although other ranks have passed MPI_Init, which needs every rank."""
    waits = replace(process(IN_ALLREDUCE), rank=0, size=2, libraries=("/opt/mpi/lib/libmpi.so.12",))
    rest = replace(process(state="S", approximate=("wait4 (libc.so.6)", "main (bash)")), program=left)
    rest = replace(rest, pid=9, rank=1, size=2, threads=(replace(rest.threads[0], tid=9),))
    snapshot = Snapshot(at=1.0, host="n1", processes=(waits, rest))
    verdict = examine([snapshot, snapshot], {}).verdict
    assert (verdict.cause, verdict.blamed, verdict.waiting) == (cause, (1,), (0,))


@pytest.mark.parametrize(
    ("processes", "reason"),
    [
        ([process()], "no rank number, no open GPU and no PyTorch in app (7)"),
        (
            [replace(process(), refused={"maps": ""})],
            "cannot read whether there is a rank among app (7): root and their user can",
        ),
        ([process(state="T")], "app (7) is stopped; kill -CONT 7 continues it"),
        (
            [process()] * 4,
            "no rank number, no open GPU and no PyTorch in app (7), app (7), app (7) and 1 more",
        ),
        ([], "every process has ended"),
    ],
)
def test_job_without_a_rank_says_why(processes: list[Process], reason: str) -> None:
    report = examine([Snapshot(at=1.0, host="n1", processes=tuple(processes))], {})
    assert report.verdict.cause is Cause.UNKNOWN
    assert report.verdict.reasons == (reason,)
    screen = job_content.screen(report, width=80, color=False)
    assert "no rank found: cannot tell whether anything is stuck" in screen
    assert "name a rank or its launcher" in screen
    assert "nothing grew" not in job_content.screen(replace(report, watched_s=20.0), width=80, color=False)
    assert "where the ranks are" not in screen
