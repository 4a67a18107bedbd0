"""What a node's processes do, seen from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuipc_doctor.stacks.thread import Stack


def stacks(
    pid: int,
    asleep: Collection[int] | None = None,
    samples: Mapping[int, Sequence[Stack]] | None = None,
) -> tuple[dict[int, tuple[Stack, ...]], dict[str, str]]:
    """Native stacks of a process's threads, and what could not be read → the reason. Nothing is stopped.

    ``asleep``: sleeping threads to read, by default all. ``samples``: stacks of running threads, by default
    taken now. Frames are innermost first; stacks are approximate, as those of `code`.
    """
    from gpuipc_doctor.stacks import (  # every run imports this package for its list of processes
        rights,
        sleeping,
    )
    from gpuipc_doctor.stacks.code import Code

    refused: dict[str, str] = {}
    states = _states(pid) if asleep is None or samples is None else {}
    if samples is None:
        samples = _sampled(pid, [tid for tid, state in states.items() if state == "R"], refused)
    found = {tid: tuple(own) for tid, own in samples.items()}
    wanted = (tid for tid, state in states.items() if state != "R") if asleep is None else asleep
    code = None
    for tid in wanted:
        if tid in found:
            continue
        try:
            code = code or Code(pid)
            found[tid] = tuple(filter(None, [sleeping.stack(pid, tid, code)]))
        except OSError as error:
            denied = isinstance(error, PermissionError)
            refused["stack of a sleeping thread"] = rights.reason(pid) if denied else str(error)
    return found, refused


def _states(pid: int) -> dict[int, str]:
    """State of each thread; empty if the process has ended."""
    from gpuipc_doctor.stacks.proc_files import Gone, Reader, Stat

    reader = Reader(pid)
    try:
        tids = [int(name) for name in reader.names("task") or () if name.isdecimal()]
        return {tid: Stat(reader.text(f"task/{tid}/stat")).state for tid in tids}
    except Gone:
        return {}


def _sampled(pid: int, running: Sequence[int], refused: dict[str, str]) -> dict[int, list[Stack]]:
    from gpuipc_doctor.stacks import perf_events

    found: dict[int, list[Stack]] = {}
    try:
        for tid, stack in perf_events.sample([(pid, tid) for tid in running]):
            found.setdefault(tid, []).append(stack)
    except OSError as error:
        refused["sampled stacks"] = error.strerror or str(error)
    return found
