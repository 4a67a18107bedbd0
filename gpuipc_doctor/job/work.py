"""Work of ranks for which others wait, where the stack of the main thread does not show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from gpuipc_doctor.job.document import Process, Snapshot
from gpuipc_doctor.job.process_facts import ProcessFacts
from gpuipc_doctor.job.waits import Activity, Kind
from gpuipc_doctor.stacks.thread import Thread

SHARE = 0.1
"""Processors that threads and helpers must use beyond those of the waiting ranks, whose heartbeats, watchdogs
and idle loaders also wake up."""

FEWEST = 3
"""Snapshots in which a thread must be ready to run."""

BYTES_PER_S = 64 << 10
"""Bytes a second through TCP connections, beyond those of the waiting ranks."""


def find_work(
    snapshots: Sequence[Snapshot],
    ranks: Mapping[int, Sequence[Process]],
    activities: Mapping[int, Activity],
) -> dict[int, str]:
    """Rank outside of waits → the work that it, its children or its connections do.

    ``ranks``: the process of each rank in each snapshot. The processor time of the main thread itself is no
    work: an endless loop uses it, too.
    """
    waiting = [rank for rank, activity in activities.items() if activity.kind.waits]
    pids = {processes[-1].pid for processes in ranks.values() if processes}
    shares = {rank: _shares(snapshots, processes, pids) for rank, processes in ranks.items() if processes}
    speeds = {rank: _bytes_per_s(snapshots, processes) for rank, processes in ranks.items() if processes}
    usual_share = max((sum(shares[rank].values()) for rank in waiting if rank in shares), default=0.0)
    usual_speed = max((speeds[rank] for rank in waiting if rank in speeds), default=0.0)
    found = {}
    for rank in shares:
        if not activities[rank].kind.is_outside:
            continue
        if sum(shares[rank].values()) > usual_share + SHARE:
            busiest = max(shares[rank], key=shares[rank].__getitem__)
            found[rank] = f"{busiest} uses {sum(shares[rank].values()):.0%} of a processor"
        elif speeds[rank] > usual_speed + BYTES_PER_S:
            found[rank] = f"its connections carry {speeds[rank] / 2**20:.1f} MiB a second"
        elif activities[rank].kind is Kind.COMPUTES and (places := ProcessFacts(ranks[rank]).computing):
            found[rank] = f"computes in {places[0]}, then in {places[1]}"
    return found


def _shares(snapshots: Sequence[Snapshot], rank: Sequence[Process], pids: Iterable[int]) -> dict[str, float]:
    """Thread or helper of a rank → its mean processor share, without that of the main thread.

    A thread that is ready to run in every snapshot counts whole: on a busy node, it may get no processor.
    """
    pid, others = rank[-1].pid, {*pids} - {rank[-1].pid}
    seen: dict[tuple[str, int], list[Thread]] = {}
    for snapshot in snapshots[1:]:
        for process in _family(pid, snapshot.processes, others):
            helper = f"{process.program} ({process.pid})"
            for thread in process.threads:
                if process.pid != pid or thread.tid != pid:
                    own = f"thread {thread.name}" if process.pid == pid else helper
                    seen.setdefault((own, thread.tid), []).append(thread)
    shares: dict[str, float] = {}
    for (own, _), threads in seen.items():
        is_ready = len(threads) >= FEWEST and all(thread.state == "R" for thread in threads)
        mean = sum(thread.busy for thread in threads) / (len(snapshots) - 1)
        shares[own] = shares.get(own, 0.0) + (1.0 if is_ready else mean)
    return shares


def _family(pid: int, processes: Sequence[Process], others: set[int]) -> list[Process]:
    """A process and those below it, without other ranks and what is below them."""
    found = [process for process in processes if process.pid == pid]
    known = {pid, *others}
    for process in found:  # grows
        below = [each for each in processes if each.parent == process.pid and each.pid not in known]
        known.update(each.pid for each in below)
        found += below
    return found


def _bytes_per_s(snapshots: Sequence[Snapshot], rank: Sequence[Process]) -> float:
    """Bytes a second of the connections that a rank had in two snapshots in succession."""
    carried = 0
    for earlier, later in pairwise(rank):
        both = earlier.carried.keys() & later.carried.keys()
        carried += sum(max(0, later.carried[inode] - earlier.carried[inode]) for inode in both)
    return carried / max(snapshots[-1].at - snapshots[0].at, 1.0)
