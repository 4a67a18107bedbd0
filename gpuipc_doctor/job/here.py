"""Examine a job's ranks on this node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuipc_doctor.inventory import variables
from gpuipc_doctor.job import gpu_holders, growth, ipc_files, ras, selection
from gpuipc_doctor.job.document import Cause, JobReport, Process
from gpuipc_doctor.job.examination import examine
from gpuipc_doctor.job.selection import NoSuchJob, Request
from gpuipc_doctor.job.verdict import with_growth
from gpuipc_doctor.job.watcher import MORE, Watcher, by_rank, take_snapshots
from gpuipc_doctor.model import Node
from gpuipc_doctor.supervise import scratch


def report(
    request: Request,
    gpu: str,
    *,
    stops: bool = False,
    asks_ras: bool = False,
    watches_s: float = 0.0,
    node: Node = Node(),  # noqa: B008 - it is frozen
) -> JobReport:
    """The report of this node's ranks, or only of those that use ``gpu``. Raises `NoSuchJob` and
    `SeveralJobs`.

    ``stops``: stop processes briefly for their stacks. ``watches_s``: seconds for which to watch for growth.
    ``node``: the node whose drivers list the GPUs.
    """
    chosen = selection.select(Request(pids=gpu_holders.pids(gpu, node)) if gpu else request)
    watched = None
    with scratch.directory(scratch.usual()) as place:
        watcher = Watcher(chosen, place, frozenset(variables.load()), stops)
        snapshots = take_snapshots(watcher)
        found = examine(snapshots, watcher.unable).verdict
        if found.cause is Cause.UNKNOWN and found.waiting:  # a slow rank may move on in as much time again
            snapshots += watcher.snapshots(MORE)
        if watches_s:
            watched = _watch(by_rank(snapshots[-1]), watches_s, node)
            later = watcher.snapshots(1)  # what was slow has moved by now
            snapshots += later if by_rank(later[0]) else []
    ranks = by_rank(snapshots[-1])
    asked = ras.lines(ranks.values(), ask=asks_ras)
    files = tuple(ipc_files.of_node(snapshots[-1].host, ranks))
    seen = replace(examine(snapshots, watcher.unable), stopped=stops, ras=asked, memory_files=files)
    if any(process.has_gpu for process in ranks.values()):
        seen = with_gpus(seen, node)
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


def _watch(ranks: Mapping[int, Process], seconds: float, node: Node) -> growth.Watched:
    def devices(interval_s: float, is_over: Callable[[Mapping[int, int]], bool]) -> None:
        gpu_holders.watch(node, interval_s, lambda gpus: is_over(gpu_holders.used(gpus)))

    has_gpu = any(process.has_gpu for process in ranks.values())
    return growth.watch(ranks, seconds, devices if has_gpu else None)


def with_gpus(seen: JobReport, node: Node) -> JobReport:
    """The report with each rank's GPUs, if the drivers list memory by process."""
    try:
        gpus = gpu_holders.by_process(node)
    except NoSuchJob as reason:
        return replace(seen, unable={**seen.unable, "GPUs of the ranks": str(reason)})
    return replace(seen, ranks=tuple(replace(rank, gpus=gpus.get(rank.pid, ())) for rank in seen.ranks))
