"""Examine a job's ranks on this node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.collective.call import Call
from gpuipc_doctor.collective.ras_counts import unchanged
from gpuipc_doctor.job import gpu_holders, ipc_files, ras, recorder_dumps, selection, surroundings
from gpuipc_doctor.job.document import Cause, JobReport, Process, Snapshot, Verdict
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.processes import read_process
from gpuipc_doctor.job.roles import Roles, by_rank, kind_of_helper, roles, workers
from gpuipc_doctor.job.selection import NoSuchJob, Request
from gpuipc_doctor.job.verdict import with_growth
from gpuipc_doctor.job.watcher import MORE, Watcher, take_snapshots
from gpuipc_doctor.model import Node
from gpuipc_doctor.node import kernel_log, variables
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.stacks import python_stacks

if TYPE_CHECKING:
    from gpuipc_doctor.job import growth
    from gpuipc_doctor.node.memory_usage import GpuUse


def report(
    request: Request,
    gpu: str,
    scratch: Path,
    *,
    stops: bool = False,
    asks_ras: bool = False,
    watches_s: float = 0.0,
    node: Node = Node(),  # noqa: B008 - it is frozen
) -> JobReport:
    """The report of this node's ranks, or only of those that use ``gpu``. Raises `NoSuchJob` and
    `SeveralJobs`.

    ``scratch``: a private directory. ``stops``: stop processes briefly for their stacks. ``watches_s``:
    seconds for which to watch for growth. ``node``: the node whose drivers list the GPUs.
    """
    chosen = selection.select(Request(pids=gpu_holders.pids(gpu, node)) if gpu else request)
    watched = None

    def ask() -> ras.Question:
        processes = (read_process(pid, lambda tid, used_s: 0.0, frozenset()) for pid in chosen)
        return ras.query(workers(filter(None, processes)), ask=asks_ras)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask)  # while the snapshots are taken
        watcher = Watcher(chosen, scratch, frozenset(variables.load()), stops)
        snapshots = take_snapshots(watcher)
        gpus = gpus_of(by_rank(snapshots[-1]), node, watcher.unable)
        found = examine(_with_loads(snapshots, gpus), watcher.unable).verdict
        if found.cause is Cause.UNKNOWN and found.waiting:  # a slow rank may move on in as much time again
            snapshots += watcher.snapshots(MORE)
        elif found.cause is Cause.GPU_WAIT and first.result().answer is None:
            snapshots += watcher.snapshots(MORE // 2)
        if watches_s:
            watched = _watch(by_rank(_with_loads(snapshots, gpus)[-1]), watches_s, node)
            later = watcher.snapshots(1)  # what was slow has moved by now
            snapshots += later if by_rank(later[0]) else []
    snapshots = _with_loads(snapshots, gpus)
    ranks = by_rank(snapshots[-1])
    asked, collectives, moves = _collectives(ranks, first.result(), asks_ras=asks_ras)
    files = tuple(ipc_files.of_node(snapshots[-1].host, ranks))
    seen = examine(snapshots, watcher.unable, collectives, collectives_move=moves)
    held = gpu_holders.holders(gpus)
    seen = replace(
        seen,
        stopped=stops,
        ras=(*asked, *recorder_dumps.lines(ranks)),
        notes=(*seen.notes, *surroundings.neighbours(ranks, {*chosen, os.getpid()})),
        memory_files=files,
        ranks=tuple(replace(rank, gpus=held.get(rank.pid, ())) for rank in seen.ranks),
    )
    seen = _with_helpers(seen, roles(snapshots[-1]))
    if again := _started_again(snapshots, request, chosen):
        why = f"{again} while the ranks were examined: ask again"
        seen = replace(seen, verdict=Verdict(cause=Cause.UNKNOWN, reasons=(why,)))
    if seen.verdict.cause is Cause.RANK_ENDED:
        log = kernel_log.since(min(process.started for process in ranks.values()))
        seen = replace(seen, verdict=replace(seen.verdict, reasons=(*seen.verdict.reasons, *log)))
    if watched is None:
        return seen
    grown = watched.grown()
    return replace(
        seen,
        watched_s=watched.took_s,
        growth=grown,
        verdict=with_growth(seen.verdict, grown, watched.unseen),
        unable={**seen.unable, **watched.unseen},
    )


def _started_again(snapshots: Sequence[Snapshot], request: Request, chosen: Sequence[int]) -> str:
    """Which ranks ended during the snapshots and were started again, as torchrun does; empty if none were."""
    left = {process.pid for process in snapshots[-1].processes}
    gone = {each.rank for each in workers(snapshots[0].processes) if each.pid not in left} - {None}
    new = set[int]()
    if gone:
        with suppress(NoSuchJob, selection.SeveralJobs):
            new = {*selection.select(request)} - {*chosen}
    read = (read_process(pid, lambda tid, used_s: 0.0, frozenset()) for pid in sorted(new))
    ranks = [each.rank for each in read if each and each.rank is not None and each.rank in gone]
    who = f"rank {ranks[0]} was" if len(ranks) == 1 else f"ranks {ranges(ranks)} were"
    return f"{who} started again" if ranks else ""


def _watch(ranks: Mapping[int, Process], seconds: float, node: Node) -> growth.Watched:
    from gpuipc_doctor.job import growth

    def devices(interval_s: float, is_over: Callable[[Mapping[int, int]], bool]) -> None:
        gpu_holders.watch(node, interval_s, lambda gpus: is_over(gpu_holders.used(gpus)))

    has_gpu = any(process.has_gpu for process in ranks.values())
    return growth.watch(ranks, seconds, devices if has_gpu else None)


def gpus_of(ranks: Mapping[int, Process], node: Node, unable: dict[str, str]) -> Sequence[GpuUse]:
    """The node's GPUs, if a rank uses one. If they cannot be listed, the reason is added to ``unable``."""
    if not any(process.has_gpu for process in ranks.values()):
        return ()
    try:
        return gpu_holders.now(node)
    except NoSuchJob as reason:
        unable["GPUs of the ranks"] = str(reason)
        return ()


MOST_HELPERS = 16
"""Maximum helper processes of a rank whose Python frames are read."""


def _with_helpers(seen: JobReport, found: Roles) -> JobReport:
    """The report with what the helpers of the blamed ranks do."""
    blamed = {rank for rank in seen.verdict.blamed if rank in found.helpers}
    return replace(
        seen,
        ranks=tuple(
            replace(rank, helpers=tuple(_helpers(found.helpers[rank.rank]))) if rank.rank in blamed else rank
            for rank in seen.ranks
        ),
    )


def _helpers(processes: Sequence[Process]) -> Iterator[str]:
    """What each helper is and where; equal ones once."""
    lines: dict[str, list[str]] = {}
    for process in processes[:MOST_HELPERS]:
        with suppress(python_stacks.NotRead):
            stack = python_stacks.dump(process)
            if not stack.frames:
                continue
            kind, depth = kind_of_helper(stack.frames)
            state = "sleeps" if process.main and process.main.state == "S" else "is"
            what = f"{state} in {stack.frames[stack.own]}" if stack.own < depth else "waits for work"
            lines.setdefault(f"{kind}, which {what}", []).append(str(process.pid))
    for line, pids in lines.items():
        yield f"{line}: pid {', '.join(pids)}"


def _with_loads(snapshots: Sequence[Snapshot], gpus: Sequence[GpuUse]) -> list[Snapshot]:
    """The snapshots with each rank's GPU, its utilisation and its power."""
    last = by_rank(snapshots[-1])
    of_pid = {last[rank].pid: gpu for rank, gpu in gpu_holders.of_ranks(gpus, last).items()}

    def with_load(process: Process) -> Process:
        gpu = of_pid.get(process.pid)
        return replace(process, gpu=gpu.label, gpu_busy=gpu.busy, gpu_watts=gpu.watts) if gpu else process

    return [replace(snapshot, processes=tuple(map(with_load, snapshot.processes))) for snapshot in snapshots]


def _collectives(
    ranks: Mapping[int, Process], first: ras.Question, *, asks_ras: bool
) -> tuple[tuple[str, ...], tuple[Call, ...], bool]:
    """Lines on NCCL's RAS, each rank's last collective, and whether RAS counted new ones.

    RAS is asked twice, because in a healthy loop the counts of two ranks differ at most times.
    """
    if first.answer is None or first.seconds > ras.SHORT_S:
        return first.lines, (), False
    second = ras.query(ranks.values(), ask=asks_ras)
    if second.answer is None:
        return second.lines, (), False
    same, move = unchanged(first.answer, second.answer)
    pids = {process.pid: rank for rank, process in ranks.items()}
    size = max((process.size for process in ranks.values() if process.size), default=len(ranks))
    remarks = tuple(f"RAS: {remark}" for remark in same.remarks)
    return (*second.lines, *remarks), tuple(same.calls(pids, size)), move
