"""What a rank does by its stacks, which ranks wait for which, and how ranks are folded."""

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
from gpuipc_doctor.job import python_stacks
from gpuipc_doctor.job.activity import Activity, Kind, activity, mpi_function
from gpuipc_doctor.job.document import Cause, Process, Stack, Thread
from gpuipc_doctor.job.folding import Branch, fold
from gpuipc_doctor.job.sampling import stacks
from gpuipc_doctor.job.verdict import judge

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
        (("cuCtxSynchronize (libcuda.so.1)", "main (app)"), Kind.DEVICE, "cuCtxSynchronize"),
        (("hipStreamSynchronize (libamdhip64.so.6)",), Kind.DEVICE, "hipStreamSynchronize"),
        (COMPUTING, Kind.COMPUTES, "kernel (app)"),
    ],
)
def test_running_rank_is_in_the_outermost_waiting_call(stack: Stack, kind: Kind, operation: str) -> None:
    seen = activity([process(stack), process(stack)])
    assert (seen.kind, seen.operation if kind is not Kind.COMPUTES else operation) == (kind, operation)


def test_python_that_synchronizes_with_the_gpu_waits_for_it_without_a_native_stack() -> None:
    python = ("torch.cuda.synchronize (__init__.py:1162)", "<module> (spin.py:4)")
    assert activity([replace(process(), python=python)] * 2).kind is Kind.DEVICE
    seen = activity([replace(process(COMPUTING), python=python)] * 2)
    assert (seen.kind, seen.operation) == (Kind.DEVICE, "torch.cuda.synchronize")
    own = ("synchronize (__init__.py:12)", "<module> (app.py:4)")
    assert activity([replace(process(COMPUTING), python=own)] * 2).kind is Kind.COMPUTES
    moved = [replace(process(COMPUTING), python=stack) for stack in (python, python[1:])]
    assert activity(moved).kind is Kind.COMPUTES


def test_frames_of_torch_cuda_are_told_from_a_programs_own() -> None:
    def frame(file: str) -> str:
        return python_stacks.label({"name": "synchronize", "filename": file, "line": 1162})

    assert frame("/opt/lib/torch/cuda/__init__.py") == "torch.cuda.synchronize (__init__.py:1162)"
    assert frame("/opt/lib/torch/cuda/streams.py") == "torch.cuda.synchronize (streams.py:1162)"
    assert frame("/home/u/app/__init__.py") == "synchronize (__init__.py:1162)"


def test_call_of_mpi_on_the_gpu_is_a_wait_for_mpi_when_mpi_made_it() -> None:
    stack = ("cuStreamSynchronize (libcuda.so.1)", "PMPI_Recv (libmpi.so.12)", "main (app)")
    assert activity([process(stack)]).kind is Kind.RECEIVES


def test_rank_whose_calls_differ_moves_on() -> None:
    assert activity([process(IN_RECEIVE), process(COMPUTING)]).kind is Kind.MOVES


def test_stack_that_ends_within_a_transport_says_nothing() -> None:
    cut = ("__sched_yield (libc.so.6)", "opal_progress (libopen-pal.so.80)")
    assert activity([process(IN_RECEIVE), process(cut)]).kind is Kind.RECEIVES


@pytest.mark.parametrize("state", ["R", "S"])
@pytest.mark.parametrize("native", [(), (("__sched_yield (libc.so.6)",),)])
def test_rank_without_a_stack_that_reaches_the_program_cannot_be_told(
    state: str, native: tuple[Stack, ...]
) -> None:
    """A rank that sleeps between two polls of MPI wakes while its stack is read."""
    assert activity([process(*native, state=state)] * 2).kind is Kind.UNKNOWN


def test_sleeping_rank_with_remains_of_mpi_further_out_sleeps_outside() -> None:
    remains = ("clock_nanosleep (libc.so.6)", "nap (app)", "PMPI_Recv (libmpi.so.12)", "main (app)")
    assert activity([process(state="S", approximate=remains)]).kind is Kind.SLEEPS


def test_rank_that_sleeps_inside_mpi_waits_in_mpi() -> None:
    asleep = ("clock_nanosleep (libc.so.6)", "[libucs.so.0]", "[libmpi.so.40]", "PMPI_Recv (libmpi.so.40)")
    assert activity([process(state="S", approximate=asleep)]).kind is Kind.RECEIVES


def test_remains_of_an_earlier_call_do_not_contradict_a_sampled_stack() -> None:
    remains = ("clock_nanosleep (libc.so.6)", "PMPI_Comm_dup (libmpi.so.40)", "PMPI_Allreduce (libmpi.so.40)")
    seen = activity([process(IN_ALLREDUCE), process(state="S", approximate=remains)])
    assert (seen.kind, seen.operation) == (Kind.COLLECTIVE, "MPI_Allreduce")


def test_thread_in_state_d_at_every_look_is_stuck_in_the_kernel() -> None:
    stuck = process(state="D", wchan="fuse_wait")
    seen = activity([stuck, stuck])
    assert (seen.kind, seen.operation) == (Kind.KERNEL, "fuse_wait")
    assert activity([process(COMPUTING), stuck]).kind is not Kind.KERNEL


SLEEPS = doing(Kind.SLEEPS, "nap")
REDUCES = doing(Kind.COLLECTIVE, "MPI_Allreduce")
RECEIVES = doing(Kind.RECEIVES, "MPI_Recv")


@pytest.mark.parametrize("late", [{3}, {*range(1, 16)}, {0, 15}])
def test_late_ranks_are_blamed_whether_few_or_most(late: set[int]) -> None:
    """NVIDIA/nccl#1911: fifteen of sixteen ranks lagged, and the report named the sixteenth."""
    verdict = judge({rank: SLEEPS if rank in late else REDUCES for rank in range(16)})
    assert (verdict.cause, {*verdict.blamed}) == (Cause.HOST_LATE, late)
    assert {*verdict.waiting} == {*range(16)} - late


@pytest.mark.parametrize(
    ("activities", "cause", "blamed"),
    [
        ([RECEIVES, doing(Kind.ENDS, "MPI_Finalize")], Cause.MESSAGE_LOST, (0,)),
        ([RECEIVES, REDUCES, REDUCES], Cause.MESSAGE_LOST, (0,)),
        ([RECEIVES, RECEIVES], Cause.ALL_WAIT, ()),
        ([RECEIVES, doing(Kind.SENDS, "MPI_Send")], Cause.ALL_WAIT, ()),
        ([REDUCES, doing(Kind.COLLECTIVE, "MPI_Barrier")], Cause.MISMATCH, ()),
        ([REDUCES, REDUCES], Cause.ALL_WAIT, ()),
        ([doing(Kind.ENDS, "MPI_Finalize")] * 2, Cause.FINALIZE, ()),
        ([REDUCES, doing(Kind.KERNEL, "fuse_wait")], Cause.KERNEL, (1,)),
        ([REDUCES, doing(Kind.STOPPED)], Cause.STOPPED, (1,)),
        ([REDUCES, doing(Kind.ENDED)], Cause.RANK_ENDED, (1,)),
        ([REDUCES, doing(Kind.DEVICE, "cuCtxSynchronize")], Cause.DEVICE_BUSY, (1,)),
        ([REDUCES, doing(Kind.UNKNOWN)], Cause.UNKNOWN, (1,)),
        ([doing(Kind.COMPUTES, "kernel")] * 2, Cause.RUNS, ()),
        ([doing(Kind.MOVES), REDUCES], Cause.RUNS, ()),
    ],
)
def test_verdict_by_what_the_ranks_do(
    activities: list[Activity], cause: Cause, blamed: tuple[int, ...]
) -> None:
    verdict = judge(dict(enumerate(activities)))
    assert (verdict.cause, verdict.blamed) == (cause, blamed)


def test_rank_that_is_absent_has_ended() -> None:
    verdict = judge({0: REDUCES, 2: REDUCES}, size=3)
    assert (verdict.cause, verdict.blamed, verdict.waiting) == (Cause.RANK_ENDED, (1,), (0, 2))


def test_no_rank_at_all_cannot_be_told() -> None:
    assert judge({}).cause is Cause.UNKNOWN


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
    monkeypatch.setattr("gpuipc_doctor.job.looking.Watcher", watch)
    ended = CliRunner().invoke(cli, ["job"])
    assert isinstance(ended.exception, Seen), ended.output
    (place,) = ended.exception.args
    assert tmp_path not in place.parents
    assert not place.exists()


@pytest.mark.parametrize(
    "changes", [{"python": ("step (app.py:8)",)}, {"callers": "8d1f"}], ids=["Python frames", "callers"]
)
def test_rank_whose_caller_moves_between_two_equal_calls_moves_on(changes: dict[str, object]) -> None:
    before = replace(process(IN_ALLREDUCE), python=("step (app.py:7)",), callers="05aa")
    assert activity([before, before]).kind is Kind.COLLECTIVE
    assert activity([before, replace(before, **changes)]).kind is Kind.MOVES  # type: ignore[arg-type]


def test_program_that_polls_in_a_loop_of_its_own_waits() -> None:
    polls = replace(process(("PMPI_Test (libmpi.so.12)", "main (app)")), callers="05aa")
    assert activity([polls, replace(polls, callers="8d1f")]).kind is Kind.PROGRESSES
