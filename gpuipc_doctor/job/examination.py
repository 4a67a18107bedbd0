"""Turn several snapshots of a job into its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpuipc_doctor.collective.call import Call
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job import loaded, shared_memory, surroundings
from gpuipc_doctor.job.activity import activity
from gpuipc_doctor.job.document import JobReport, Process, Rank, Snapshot
from gpuipc_doctor.job.gpu_waits import Evidence
from gpuipc_doctor.job.merging import busy, differences, watts
from gpuipc_doctor.job.roles import is_agent, roles
from gpuipc_doctor.job.verdict import judge
from gpuipc_doctor.job.waits import Activity, Kind
from gpuipc_doctor.job.work import find_work


def examine(
    snapshots: Sequence[Snapshot],
    unable: Mapping[str, str],
    calls: tuple[Call, ...] = (),
    *,
    collectives_move: bool = False,
) -> JobReport:
    """The report of a job. ``unable``: what could not be read → reason.

    ``calls``: each rank's last collective by NCCL's RAS; ``collectives_move``: whether RAS counted new ones.
    """
    here = roles(snapshots[-1])
    last = here.ranks
    pids = {process.pid: rank for rank, process in last.items()}
    # A helper, or a rank without a number, may be known as such in later snapshots only.
    seen = [
        {pids[process.pid]: process for process in snapshot.processes if process.pid in pids}
        for snapshot in snapshots
    ]
    of_rank = {rank: [each[rank] for each in seen if rank in each] for rank in last}
    activities = {rank: activity(of_rank[rank]) for rank in last}
    activities.update(_ended(snapshots[-1], last, activities))
    for rank, work in find_work(snapshots, of_rank, activities).items():
        activities[rank] = replace(activities[rank], works=work)
    for rank in last:
        if activities[rank].kind.is_outside:
            defunct = surroundings.defunct_children(snapshots, last[rank].pid)
            reason = "; ".join(filter(None, (defunct, activities[rank].reason)))
            for other in last.keys() - {rank}:
                reason = reason.replace(f"{last[other].program} ({last[other].pid})", f"rank {other}")
            activities[rank] = replace(activities[rank], reason=reason)
    size = here.size
    # Before the second of several snapshots, ranks may still arrive.
    settled = snapshots[1:] if len(snapshots) > 2 else snapshots
    moved = {shared_memory.moved(earlier.shared, later.shared) for earlier, later in pairwise(settled)}
    messages = True if True in moved else False if moved == {False} else None
    ranks = tuple(
        replace(
            _rank(number, last[number], activities[number], snapshots[-1].host),
            numbered=here.order if number in here.numbered and len(last) > 1 else "",
        )
        for number in sorted(last)
    )
    refused = {what: why for process in last.values() for what, why in process.refused.items()}
    seconds = snapshots[-1].at - snapshots[0].at
    evidence = Evidence(calls, collectives_move, watts(ranks), seconds, busy(ranks))
    launcher = surroundings.stopped_launcher(snapshots, last)
    verdict = judge(activities, _size_here(size, last, snapshots[-1]), messages, evidence)
    verdict = surroundings.with_launcher(verdict, launcher)
    if not last:
        verdict = replace(verdict, reasons=(_no_rank(snapshots[-1]),))
    return JobReport(
        taken=snapshots[0].at,
        seconds=seconds,
        looks=len(snapshots),
        size=size,
        ranks=ranks,
        verdict=verdict,
        messages=messages,
        collectives=calls,
        collectives_move=collectives_move,
        unable={**unable, **refused},
        stopped_launcher=launcher,
        notes=(*here.notes, *surroundings.crowded(last)),
        differences=tuple(differences(ranks)),
    )


SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "busybox"})


def _ended(
    snapshot: Snapshot, ranks: Mapping[int, Process], activities: Mapping[int, Activity]
) -> dict[int, Activity]:
    """Ranks whose program has ended, although the script that started it still runs.

    Such a rank has no process with MPI although other ranks are past MPI_Init, which needs every rank.
    """
    left = by_key(
        (process.rank, process.program) for process in snapshot.processes if process.rank is not None
    )
    is_past_init = any(
        activities[rank].kind.waits_for_ranks and activities[rank].kind is not Kind.STARTS and process.has_mpi
        for rank, process in ranks.items()
    )
    return {
        rank: replace(
            activities[rank],
            kind=Kind.ENDED,
            reason=f"the rank's MPI program has ended; only {', '.join(left[rank])} is left",
        )
        for rank, process in ranks.items()
        if is_past_init
        and not process.has_mpi
        and "maps" not in process.refused
        and SHELLS & {*left.get(rank, ())}
        and (activities[rank].kind.is_outside or activities[rank].kind is Kind.UNKNOWN)
    }


def _no_rank(snapshot: Snapshot) -> str:
    """Why a snapshot has no rank: its processes ended, could not be read, or are none."""
    if not snapshot.processes:
        return "every process has ended"
    for process in snapshot.processes:
        if agent := is_agent(process):
            nodes = f", which starts ranks on {process.nodes} nodes," if process.nodes else ""
            who = f"{process.program} ({process.pid}){nodes}"
            waits = (
                "it waits for the launchers of other nodes" if "rendezvous" in agent else "it starts ranks"
            )
            return f"{who} is in {agent}: {waits}"
        if process.threads and all(thread.state in ("T", "t") for thread in process.threads):
            return f"{process.program} ({process.pid}) is stopped; kill -CONT {process.pid} continues it"
    names = [f"{process.program} ({process.pid})" for process in snapshot.processes]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    if any(process.refused for process in snapshot.processes):
        return f"cannot read whether there is a rank among {shown}: root and their user can"
    return f"no rank number, no open GPU and no PyTorch in {shown}"


def _rank(number: int, process: Process, doing: Activity, host: str) -> Rank:
    return Rank(
        rank=number,
        host=host,
        pid=process.pid,
        program=process.program,
        doing=doing.kind.value,
        operation=doing.operation,
        path=doing.path,
        reason=doing.reason,
        works=doing.works,
        mark=process.callers or process.variables,
        settings=process.settings,
        versions=loaded.versions(process),
        started=process.started,
        refused=process.refused,
        gpu_busy=process.gpu_busy,
        gpu_watts=process.gpu_watts,
    )


def _size_here(size: int | None, ranks: Mapping[int, Process], snapshot: Snapshot) -> int | None:
    """The job's number of ranks if all ranks without a process here have ended, else None.

    A rank without a process here may also be on another node, or have an unreadable environment.
    """
    programs = {process.program for process in ranks.values()}
    is_hidden = any(
        process.rank is None and "environ" in process.refused and process.program in programs
        for process in snapshot.processes
    )
    return size if size and len(ranks) > size / 2 and not is_hidden else None
