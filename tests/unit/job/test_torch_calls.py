"""PyTorch's collectives in Python frames and native stacks, and what a rank in them waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.process_facts import STILL
from gpuipc_doctor.job.stack_tree import readable
from gpuipc_doctor.job.torch_calls import native_operation, operation
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.stacks.python_stacks import is_python
from gpuipc_doctor.stacks.thread import Thread

WRAPPER = "torch.distributed._exception_logger.<locals>.wrapper (c10d_logger.py:83)"
REDUCES = ("torch.distributed.all_reduce (distributed_c10d.py:3068)", WRAPPER, "step (train.py:21)")
JOINS = (
    "torch.distributed._new_process_group_helper (distributed_c10d.py:2253)",
    "torch.distributed.init_process_group (distributed_c10d.py:1838)",
    WRAPPER,
    "<module> (train.py:13)",
)
WAITS = ("pthread_cond_wait (libc.so.6)", "_ZN4c10d4Work4waitENSt6chrono (libtorch_cpu.so)", "[python3.12]")


def rank(*python: str, state: str = "S", wchan: str = "futex_do_wait", **more: object) -> Process:
    main = Thread(tid=7, name="python3", state=state, busy=float(state == "R"), wchan=wchan)
    process = Process(pid=7, parent=1, uid=0, program="python3", threads=(main,), python=python)
    return replace(process, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("python", "name"),
    [
        (REDUCES, "all_reduce"),
        (JOINS, "init_process_group"),
        (("torch.distributed.get_rank (distributed_c10d.py:1)", "main (a.py:2)"), ""),
        (("all_reduce (mine.py:3)", "main (a.py:2)"), ""),
        (("torch.distributed.recv (distributed_c10d.py:9)", "stage (a.py:2)"), "recv"),
    ],
)
def test_operation_is_the_outermost_of_the_innermost_frames(python: tuple[str, ...], name: str) -> None:
    assert operation(python) == name


@pytest.mark.parametrize(
    ("python", "kind"),
    [
        (REDUCES, Kind.COLLECTIVE),
        (JOINS, Kind.JOINS),
        (("torch.distributed.recv (distributed_c10d.py:9)", "stage (a.py:2)"), Kind.RECEIVES),
        (("torch.distributed.send (distributed_c10d.py:9)", "stage (a.py:2)"), Kind.SENDS),
        (("torch.distributed.batch_isend_irecv (distributed_c10d.py:9)", "stage (a.py:2)"), Kind.PROGRESSES),
    ],
)
def test_rank_in_one_operation_waits_for_ranks(python: tuple[str, ...], kind: Kind) -> None:
    assert activity([rank(*python)] * 3).kind is kind


def test_rank_seen_in_and_outside_of_a_collective_moves() -> None:
    assert activity([rank(*REDUCES), rank("step (train.py:22)", state="R")]).kind is Kind.MOVES


def test_result_of_a_collective_is_awaited_in_the_programs_own_frame() -> None:
    """`work.wait()` has no Python frame of its own."""
    main = Thread(tid=7, name="python3", state="S", wchan="futex_do_wait", approximate=(WAITS,))
    seen = activity([rank("step (train.py:30)", threads=(main,))] * 3)
    assert (seen.kind, seen.operation) == (Kind.PROGRESSES, "step (train.py:30)")
    assert native_operation(WAITS) == "work.wait"


def test_running_rank_beside_a_busy_gpu_waits_for_it() -> None:
    """`.item()` polls, and there may be no native stack of a running thread."""
    spins = rank("step (train.py:21)", state="R", wchan="")
    assert activity([replace(spins, gpu_busy=100)] * 3).kind is Kind.DEVICE
    assert activity([replace(spins, gpu_busy=3)] * 3).kind is Kind.UNKNOWN
    assert activity([spins] * 3).kind is Kind.UNKNOWN


def test_rank_read_in_several_places_between_snapshots_moves() -> None:
    """A fast loop: each snapshot shows the line of `.item()`, for which the GPU is needed."""
    stack = ("cuStreamSynchronize (libcuda.so.1)", "[libtorch_cuda.so]", "[python3.12]")
    main = Thread(tid=7, name="python3", state="R", busy=1.0, native=(stack,))
    spins = rank("step (train.py:21)", state="R", wchan="", threads=(main,))
    assert activity([spins] * 3).kind is Kind.DEVICE
    assert activity([spins, replace(spins, places=2)]).kind is Kind.MOVES
    assert activity([spins, replace(spins, variables="7f")]).kind is Kind.DEVICE
    assert activity([replace(spins, variables="7e"), replace(spins, variables="7f")]).kind is Kind.MOVES


def test_rank_that_sleeps_in_pytorch_beside_a_busy_gpu_waits_for_it() -> None:
    """`backward()` sleeps until autograd's thread is done; the frames are those of FSDP on an H200."""
    stack = (
        "pthread_cond_wait (libc.so.6)",
        "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb (libc10_cuda.so)",
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE (libstdc++.so.6.0.33)",
        "_ZN5torch8autograd10ReadyQueue3popEv (libtorch_cpu.so)",
        "cudaGetDevice (libcudart.so.13)",
    )
    main = Thread(tid=7, name="python3", state="S", wchan="futex_do_wait", approximate=(stack,))
    python = ("_engine_run_backward (graph.py:869)", "step (train.py:30)")
    sleeps = rank(*python, threads=(main,), own=1, libraries=("/usr/lib/libcuda.so.1",))
    assert activity([replace(sleeps, gpu_busy=100)] * 3).kind is Kind.DEVICE
    assert activity([replace(sleeps, gpu_busy=0)] * 3).kind is Kind.SLEEPS


def test_process_with_a_name_of_its_own_is_python_by_its_libraries() -> None:
    """PyTorch names DataLoader workers pt_data_worker; inference servers name theirs."""
    module = "/usr/lib/python3.12/lib-dynload/_json.cpython-312-x86_64-linux-gnu.so"
    assert is_python(replace(rank(), program="pt_data_worker", libraries=(module,)))
    assert not is_python(replace(rank(), program="app", libraries=("/usr/lib/libc.so.6",)))


def test_sleeping_rank_says_whether_it_woke_up() -> None:
    naps = [rank("build (a.py:5)", wchan="hrtimer_nanosleep", switches=count) for count in (4, 4, 4)]
    seen = activity(naps)
    assert (seen.kind, seen.operation) == (Kind.SLEEPS, "build (a.py:5)")
    assert seen.reason.endswith(STILL[0])
    assert activity([*naps, replace(naps[0], switches=None)]).reason.endswith(STILL[1])
    assert not activity([*naps, replace(naps[0], switches=5)]).reason.endswith(STILL)


def test_futex_in_the_programs_own_frame_may_be_a_collectives() -> None:
    assert activity([rank("step (train.py:30)")] * 3).kind is Kind.UNKNOWN


def test_rank_in_state_d_whose_bytes_move_is_not_stuck() -> None:
    """A slow file system."""
    writes = rank("save (a.py:9)", state="D", wchan="rpc_wait_bit_killable", transferred=0)
    assert activity([writes, replace(writes, transferred=65536)]).kind is Kind.MOVES
    assert activity([writes, writes]).kind is Kind.KERNEL


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("_ZN4c10d4Work4waitENSt6chrono (libtorch_cpu.so)", "Work::wait (libtorch_cpu.so)"),
        ("_ZNKSt6vectorIiE4sizeEv (libapp.so)", "vector (libapp.so)"),
        ("_ZNSt10_HashtableIiiE4findEv (libtorch_cpu.so)", "[libtorch_cpu.so]"),
        ("_Z9heavyworkv (app)", "heavywork (app)"),
        ("_ZThn16_N3foo3barEv (liba.so)", "[liba.so]"),
        ("_ZN999999foo (liba.so)", "[liba.so]"),
        ("main (app)", "main (app)"),
        ("[libc.so.6]", "[libc.so.6]"),
    ],
)
def test_mangled_names_are_shortened_or_left_out(frame: str, name: str) -> None:
    assert readable(frame) == name
