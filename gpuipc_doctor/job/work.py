"""Work of ranks for which others wait, where the stack of the main thread does not show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise, takewhile

from gpuipc_doctor.job.document import Process, Snapshot
from gpuipc_doctor.job.process_facts import MUCH_BYTES, SOCKET_READS, ProcessFacts
from gpuipc_doctor.job.waits import Activity, Kind, is_of_library, is_shared
from gpuipc_doctor.stacks.thread import Thread

SHARE = 0.1
"""Processors that threads and helpers must use beyond those of the waiting ranks, whose heartbeats, watchdogs
and idle loaders also wake up."""

FEWEST_SAMPLES, MANY_SAMPLES = 8, 12
_EVALUATES = "_PyEval_EvalFrame"
"""Begin of the function in which Python's interpreter runs a function of the program."""

FEWEST = 3
"""Snapshots in which a thread must be ready to run."""

BYTES_PER_S = 64 << 10
"""Bytes a second through TCP connections, or read and written, beyond those of the waiting ranks."""


_MARGINS = (SHARE, SHARE, BYTES_PER_S, BYTES_PER_S)
"""By how much threads, children, connections, and reads and writes must exceed those of the waiting ranks."""

THREAD = "thread "
"""Begin of the name of a rank's own thread beside its children's."""


def find_work(
    snapshots: Sequence[Snapshot],
    ranks: Mapping[int, Sequence[Process]],
    activities: Mapping[int, Activity],
) -> dict[int, str]:
    """Rank → the work that it, its children or its connections do; of one that waits, what these carry.

    ``ranks``: the process of each rank in each snapshot. The processor time of the main thread itself is no
    work: an endless loop uses it, too.
    """
    pids = {processes[-1].pid for processes in ranks.values() if processes}
    seconds = max(snapshots[-1].at - snapshots[0].at, 1.0)
    families = {
        rank: [_family(own[-1].pid, each.processes, pids) for each in snapshots]
        for rank, own in ranks.items()
        if own
    }
    shares = {rank: _shares(family, seconds) for rank, family in families.items()}
    figures = {
        rank: (
            sum(share for name, share in shares[rank].items() if name.startswith(THREAD)),
            sum(share for name, share in shares[rank].items() if not name.startswith(THREAD)),
            _carried(family) / seconds,
            _grown(family, lambda process: process.io) / seconds,
        )
        for rank, family in families.items()
    }
    waiting = [figures[rank] for rank in figures if activities[rank].kind.waits]
    usual = [max(column) for column in zip(*waiting, strict=True)] or [0.0] * len(_MARGINS)
    found = {}
    for rank, own in figures.items():
        more = [each > other + margin for each, other, margin in zip(own, usual, _MARGINS, strict=True)]
        carries = f"its connections carry {own[2] / 2**20:.1f} MiB a second"
        if activities[rank].kind.waits_for_ranks and own[2] > BYTES_PER_S:
            found[rank] = carries
        if not activities[rank].kind.is_outside:
            continue
        facts = ProcessFacts(ranks[rank])
        if more[0] or more[1]:
            busiest = max(shares[rank], key=shares[rank].__getitem__)
            found[rank] = f"{busiest} uses {shares[rank][busiest]:.0%} of a processor"
        elif more[2]:
            found[rank] = carries
        elif more[3]:
            found[rank] = f"it and its children read and write {own[3] / 2**20:.1f} MiB a second"
        elif activities[rank].kind is Kind.COMPUTES and (places := _computing(facts)):
            found[rank] = f"computes in {places[0]}, then in {places[1]}"
        elif why := _receives(facts) or _fills(facts):
            found[rank] = why
    return found


Family = Sequence[Sequence[Process]]
"""A rank's process and those below it, in each snapshot."""


def _shares(family: Family, seconds: float) -> dict[str, float]:
    """Thread or helper of a rank → its mean processor share, without that of the main thread.

    A thread that is ready to run in every snapshot counts whole: on a busy node, it may get no processor. So
    do short-lived children of which one is ready in every snapshot.
    """
    lasting = set.intersection(*({process.pid for process in look} for look in family))
    seen: dict[tuple[str, int], list[list[Thread]]] = {}
    for number, look in enumerate(family[1:]):
        for process in look:
            own = process is look[0]
            helper = f"{process.program} ({process.pid})" if process.pid in lasting else process.program
            for thread in process.threads:
                if not own or thread.tid != process.pid:
                    key = f"{THREAD}{thread.name}" if own else helper, thread.tid * (process.pid in lasting)
                    seen.setdefault(key, [[] for _ in family[1:]])[number].append(thread)
    shares: dict[str, float] = {}
    for (own_name, _), looks in seen.items():
        is_ready = len(looks) >= FEWEST and all(any(each.state == "R" for each in look) for look in looks)
        mean = sum(each.busy for look in looks for each in look) / len(looks)
        shares[own_name] = shares.get(own_name, 0.0) + (1.0 if is_ready else mean)
    ended = _grown(family, lambda process: process.children_s) / seconds
    return {**shares, "the sum of its short-lived children": ended} if ended > 0 else shares


def _grown(family: Family, count: Callable[[Process], float | None]) -> float:
    """By how much a count of the processes of a family rose while they were seen."""
    seen: dict[int, list[float]] = {}
    for process in (process for look in family for process in look):
        if (known := count(process)) is not None:
            seen.setdefault(process.pid, []).append(known)
    return sum(max(0.0, counts[-1] - counts[0]) for counts in seen.values())


def _family(pid: int, processes: Sequence[Process], others: set[int]) -> list[Process]:
    """A process and those below it, without other ranks and what is below them."""
    found = [process for process in processes if process.pid == pid]
    known = {pid, *others}
    for process in found:  # grows
        below = [each for each in processes if each.parent == process.pid and each.pid not in known]
        known.update(each.pid for each in below)
        found += below
    return found


def _carried(family: Family) -> float:
    """Bytes of the connections that a family had in two snapshots in succession."""
    looks = [{inode: sent for process in look for inode, sent in process.carried.items()} for look in family]
    return sum(
        max(0, later[inode] - earlier[inode])
        for earlier, later in pairwise(looks)
        for inode in earlier.keys() & later.keys()
    )


def _receives(facts: ProcessFacts) -> str:
    """Evidence that the socket from which the main thread reads delivers; empty if there is none.

    Such a read wakes up for data only: one with a time limit sleeps in poll().
    """
    counts = [each.switches for each in facts.snapshots if each.switches is not None]
    woken = counts[-1] - counts[0] if counts else 0
    in_read = all(each.main and each.main.wchan in SOCKET_READS for each in facts.snapshots)
    return f"its read from a socket woke up {woken} times" if woken > 1 and in_read else ""


def _fills(facts: ProcessFacts) -> str:
    """Evidence that the process fills memory, as one that loads a file does; empty if there is none.

    An endless loop that frees what it allocates has a few sizes in turn.
    """
    steps = [later.resident - earlier.resident for earlier, later in pairwise(facts.snapshots)]
    grows = sum(steps) >= MUCH_BYTES and min(steps) >= 0 and sum(step > 0 for step in steps) > 1
    return f"its memory grew by {sum(steps) / 2**20:.0f} MiB" if grows else ""


def _computing(facts: ProcessFacts) -> list[str]:
    """The places of libraries in which the main thread computes, if they change.

    The places of Python's interpreter change in an endless loop as well, and so do those of a library that
    such a loop in C calls. They count if all samples, or many in succession, are within one call, such as
    that of a sort: a loop is seen between its calls, too.
    """
    stacks = facts.native(facts.last.pid)
    called = [facts.called(stack) for stack in stacks] if facts.pythons else []
    places = [frames for frames in called if frames and not is_of_library(frames[-1])]
    inside = [[*takewhile(_is_called if facts.pythons else is_shared, stack)] for stack in stacks]
    whole = [own if len(own) < len(stack) else [] for own, stack in zip(inside, stacks, strict=True)]
    for call, samples in groupby(whole, lambda own: own[-1] if own else "["):
        run = [*samples]
        is_long = len(run) >= MANY_SAMPLES or FEWEST_SAMPLES <= len(run) == len(stacks)
        if is_long and not call.startswith("[") and not is_of_library(call):
            places += run
    inner = dict.fromkeys(" < ".join(frames) for frames in places)
    return [*inner] if len(inner) > 1 else []


def _is_called(frame: str) -> bool:
    """Whether a frame is not that of Python's interpreter in which it runs a function of the program."""
    return not frame.startswith(_EVALUATES)
