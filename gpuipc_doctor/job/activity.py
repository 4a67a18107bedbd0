"""What a rank is doing: an ordered table of rows, of which the first that applies decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.process_facts import HALF, KERNEL_WAITS, MOST_PLACES, ProcessFacts
from gpuipc_doctor.job.waits import Activity, Kind, kind_of_torch, waits_for_gpu
from gpuipc_doctor.stacks.thread import Thread


def activity(snapshots: Sequence[Process]) -> Activity:
    """What a rank did during these snapshots, which are in order of time."""
    facts = ProcessFacts(snapshots)
    for row in ROWS:
        if why := row.why(facts):
            kind = row.kind(facts) if callable(row.kind) else row.kind
            return Activity(kind, row.operation(facts), facts.path(row.thread(facts)), why)
    raise AssertionError("the last row always applies")


class Row(NamedTuple):
    """The ``kind`` of activity, ``why`` (the evidence; empty if the row does not apply), the ``operation``,
    and the ``thread`` that shows it."""

    kind: Kind | Callable[[ProcessFacts], Kind]
    why: Callable[[ProcessFacts], str]
    operation: Callable[[ProcessFacts], str] = lambda process: ""
    thread: Callable[[ProcessFacts], Thread | None] = lambda process: process.main


def _if(applies: Callable[[ProcessFacts], object], why: str) -> Callable[[ProcessFacts], str]:
    return lambda process: why if applies(process) else ""


def _where(process: ProcessFacts) -> str:
    return process.where


# -- the kernel ---------------------------------------------------------------------------------------------


def _stuck_place(process: ProcessFacts) -> str:
    thread = process.stuck
    assert thread is not None
    return thread.wchan or (thread.kernel[0] if thread.kernel else "the kernel")


def _stuck(process: ProcessFacts) -> str:
    if process.stuck is None:
        return ""
    return f"{KERNEL_WAITS.get(_stuck_place(process), 'state D')} in every snapshot"


# -- calls of PyTorch and MPI -------------------------------------------------------------------------------


def _torch_operation(process: ProcessFacts) -> str:
    return max(process.torch_operations, default="")


def _operation(process: ProcessFacts) -> str:
    """The call in which the rank waits; of a wait for the GPU, the place in the program."""
    assert process.call
    kind, name = min(process.call[1], key=lambda call: call[1])
    return (process.own if kind is Kind.DEVICE else "") or name


def _kind(process: ProcessFacts) -> Kind:
    assert process.call
    return min(process.call[1], key=lambda call: call[1])[0]


# -- outside of calls ---------------------------------------------------------------------------------------


def _synchronises(process: ProcessFacts) -> bool:
    return waits_for_gpu(process.function)


def _beside_busy_gpu(process: ProcessFacts) -> str:
    if process.runs_beside_busy_gpu:
        return f"runs in one place with its GPU at {process.last.gpu_busy} %"
    if process.sleeps_in_driver:
        return f"sleeps in {process.wchan} in every snapshot"
    return (
        f"sleeps in PyTorch with its GPU at {process.last.gpu_busy} %"
        if process.sleeps_beside_busy_gpu
        else ""
    )


def _loops(process: ProcessFacts) -> str:
    through = process.functions
    return f"goes through {', '.join(through[:MOST_PLACES])}" if len(through) > 1 else ""


def _in_driver(process: ProcessFacts) -> str:
    how = "polls" if process.busy > HALF else "sleeps"
    return f"{how} in {process.driver} in every sample" if process.driver else ""


_COUNTS = "a number in its registers, stack or variables keeps rising or falling, or a variable is often new"
_UNREADABLE = "the states of the process's threads cannot be read"
_NO_PYTHON = "its Python stack, which alone shows PyTorch's collectives, could not be read"

ROWS = (
    Row(Kind.UNKNOWN, _if(lambda p: p.is_unread, _UNREADABLE), thread=lambda p: None),
    Row(Kind.ENDED, _if(lambda p: p.is_zombie, "the process is a zombie"), thread=lambda p: None),
    Row(Kind.STOPPED, lambda p: f"state {p.main.state}" if p.main and p.main.state in "Tt" else ""),
    Row(Kind.MOVES, lambda p: p.transfers(p.stuck)),
    Row(Kind.KERNEL, _stuck, _stuck_place, lambda p: p.stuck),
    # PyTorch's operations.
    Row(Kind.MOVES, lambda p: p.torch_moves),
    Row(
        lambda p: kind_of_torch(_torch_operation(p)), _if(_torch_operation, "Python frames"), _torch_operation
    ),
    Row(Kind.MOVES, lambda p: p.moves if p.native_torch and len(p.pythons) > 1 else ""),
    Row(
        lambda p: kind_of_torch(p.native_torch),
        _if(lambda p: p.native_torch, "native stacks"),
        lambda p: p.own or p.native_torch,
    ),
    # Calls of MPI and the driver.
    Row(
        Kind.LOOPS,
        lambda p: f"polls with {p.polls}, which returns at once" if p.polls else "",
        lambda p: p.polls,
        lambda p: p.calling,
    ),
    Row(
        Kind.MOVES,
        _if(lambda p: p.calling and len(p.calls(p.calling.tid)) > 1, "the stack differs between samples"),
        thread=lambda p: p.calling,
    ),
    Row(Kind.MOVES, lambda p: p.waits_and_moves, thread=lambda p: p.calling),
    Row(_kind, _if(lambda p: p.call, "native stacks"), _operation, lambda p: p.calling),
    # Outside of them, for the GPU.
    Row(Kind.MOVES, lambda p: p.moves if _synchronises(p) else "", lambda p: p.function),
    Row(Kind.DEVICE, _if(_synchronises, "Python frames"), lambda p: p.function),
    Row(Kind.DEVICE, _beside_busy_gpu, lambda p: p.where or p.wchan),
    Row(Kind.UNKNOWN, _if(lambda p: p.lacks_python, _NO_PYTHON)),
    # Asleep in Python.
    Row(Kind.MOVES, lambda p: p.transfers(p.main) if p.sleeps_in_python() else "", _where),
    Row(Kind.SLEEPS, lambda p: p.sleeps if p.sleeps_in_python() else "", _where),
    # In code of its own.
    Row(Kind.UNKNOWN, _if(lambda p: not p.has_own_code, "native stacks lack the program's own functions")),
    Row(Kind.MOVES, lambda p: p.transfers(p.main), _where),
    Row(Kind.LOOPS, _loops, _where),
    Row(Kind.DEVICE, _in_driver, lambda p: p.where or p.driver),
    Row(Kind.COUNTS, _if(lambda p: p.is_running and any(s.counts for s in p.snapshots), _COUNTS), _where),
    Row(Kind.COMPUTES, _if(lambda p: p.is_running, "runs outside MPI and the driver"), _where),
    Row(Kind.SLEEPS, lambda p: p.sleeps, lambda p: p.where or p.wchan),
)
"""Rows in the order in which they are tried; each may rely on all before it not applying."""


def is_outside(snapshots: Sequence[Process]) -> bool:
    """Whether a stack of the main thread shows the program's own code, and no waiting call."""
    return ProcessFacts(snapshots).has_own_code


def is_seen(snapshots: Sequence[Process]) -> bool:
    """Whether a stack of the main thread shows what the thread does."""
    return bool(ProcessFacts(snapshots).calls(snapshots[-1].pid))
