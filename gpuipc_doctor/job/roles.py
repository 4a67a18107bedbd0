"""Which processes are a job's ranks, which are their helpers, and which only started them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.job.document import Process, Snapshot
from gpuipc_doctor.present.text import ranges

_HELPERS = (
    (re.compile(r"^_worker_loop \(worker\.py:"), "DataLoader worker"),
    (re.compile(r"\((?:compile_worker|subproc_pool)\.py:|^_async_compile_initializer "), "compile worker"),
    (re.compile(r"^main \((?:resource_tracker|forkserver)\.py:"), "helper of Python's multiprocessing"),
)
"""Patterns for Python frames of helper processes → what such a process is."""

_LAUNCHES = re.compile(r"^(?:\w+\.)*(?:join|start_processes) \(spawn\.py:")
"""Pattern for Python frames of a process that waits for the ranks that it started (torch.multiprocessing)."""

_AGENT = re.compile(r"^(?:\w+\.)*(next_rendezvous|_rendezvous|_monitor_workers|_invoke_run) \(")
"""Pattern for Python frames of torchrun's agent, which starts ranks (torch.distributed.elastic)."""

_ACTIVE = re.compile(r"cuda-EvtHandlr|pt_(?:nccl|gloo|tcpstore)|gloo|ncclAsync|NCCL")
"""Pattern for the names of threads that a rank starts for a GPU or a communicator. A fork has no such
threads, although it has its parent's libraries."""

IN_ORDER = "in the order of their start: no variable has the rank"
BY_GPU = "by their parents and GPUs: no variable has the rank"


@dataclass(frozen=True, slots=True)
class Roles:
    """The processes of a job on one node by their role."""

    ranks: dict[int, Process]
    """Rank → the process that does its work."""
    helpers: dict[int, tuple[Process, ...]] = field(default_factory=dict)
    """Rank → the processes that work for it."""
    numbered: frozenset[int] = frozenset()
    """Ranks that no variable of the environment numbers."""
    order: str = IN_ORDER
    """How these ranks were numbered."""
    size: int | None = None
    """Number of ranks of all worlds, if launchers set it."""
    notes: tuple[str, ...] = ()
    """Ranks that have another number than that in their environment."""


def is_candidate(process: Process) -> bool:
    """Whether a process may do a rank's work, rather than being a shell or launcher around it."""
    return process.rank is not None or process.has_gpu or process.has_torch


def by_rank(snapshot: Snapshot) -> dict[int, Process]:
    """Rank → the process that does its work."""
    return roles(snapshot).ranks


def workers(processes: Iterable[Process]) -> list[Process]:
    """The processes that may be ranks, without helpers and launchers."""
    candidates = {process.pid: process for process in processes if is_candidate(process)}
    return [
        process
        for process in candidates.values()
        if _helped(process, candidates) is None and not _is_launcher(process, candidates)
    ]


def roles(snapshot: Snapshot) -> Roles:
    """The roles of a snapshot's processes.

    Of several processes with one rank number, such as a wrapper and its child, the one that does more counts.
    Ranks that MPI_Comm_spawn started, and further processes of one number, are numbered after the others.
    Processes without a number are numbered by their parents, in the order of their start, and by their GPUs:
    Ray and servers of inference start them in any order, and give the first GPU to the first rank. If a GPU
    is unknown, or two of a parent's children are on one, they are numbered in the order of their start.
    """
    candidates = {process.pid: process for process in snapshot.processes if is_candidate(process)}
    numbered: set[int] = set()
    ordered = sorted(workers(snapshot.processes), key=lambda process: (process.started, process.pid))
    unnumbered = [process for process in ordered if process.rank is None]
    places = {(process.parent, process.gpu) for process in unnumbered if process.gpu}
    if is_by_gpu := len(places) == len(unnumbered):
        parents = list(dict.fromkeys(process.parent for process in unnumbered))
        unnumbered.sort(key=lambda process: (parents.index(process.parent), _number(process.gpu)))
    found, size, notes = _by_number(ordered, {each.pid: each.parent for each in snapshot.processes})
    for process in unnumbered:
        rank = next(number for number in range(len(ordered) + len(found) + 1) if number not in found)
        numbered.add(rank)
        found[rank] = process
    of_pid = {process.pid: rank for rank, process in found.items()}
    helpers: dict[int, list[Process]] = {}
    for process in candidates.values():
        helped = _helped(process, candidates)
        if helped is not None and helped.pid in of_pid:
            helpers.setdefault(of_pid[helped.pid], []).append(process)
    of_ranks = {rank: tuple(own) for rank, own in helpers.items()}
    return Roles(found, of_ranks, frozenset(numbered), BY_GPU if is_by_gpu else IN_ORDER, size, notes)


def _by_number(
    ordered: Sequence[Process], parents: Mapping[int, int]
) -> tuple[dict[int, Process], int | None, tuple[str, ...]]:
    """The processes by the numbers in their environments, the number of ranks, remarks on other numbers."""
    worlds: dict[str, dict[int, Process]] = {}
    extra: list[tuple[Process, Process]] = []
    for process in ordered:
        if process.rank is None:
            continue
        world = worlds.setdefault(process.world, {})
        other = world.setdefault(process.rank, process)
        if other is not process and _are_two(process, other, parents):
            extra.append((process, other))
        elif _activity_key(process) > _activity_key(other):
            world[process.rank] = process
    found: dict[int, Process] = {}
    sizes: list[int] = []
    notes = []
    for world in worlds.values():
        first = sum(sizes)
        found.update({first + rank: process for rank, process in world.items()})
        if first:
            here = ranges(first + rank for rank in world)
            notes.append(f"ranks {here} are ranks {ranges(world)} of a world of their own (MPI_Comm_spawn)")
        stated = [process.size for process in world.values() if process.size]
        sizes.append(max([*stated, 1 + max(world)]) if stated or len(worlds) > 1 else 0)
    for process, other in extra:
        number = max([*found, sum(sizes) - 1]) + 1
        found[number] = process
        notes.append(
            f"rank {number} is pid {process.pid}, which has the rank number of pid {other.pid}: {other.rank}"
        )
    return found, max([sum(sizes), *(number + 1 for number in found if extra)]) or None, tuple(notes)


def _are_two(one: Process, other: Process, parents: Mapping[int, int]) -> bool:
    """Whether two processes of one rank number both do a rank's work, rather than one for the other."""
    both = any(getattr(one, what) and getattr(other, what) for what in ("has_mpi", "has_gpu", "has_torch"))
    return both and one.pid not in _above(other.pid, parents) and other.pid not in _above(one.pid, parents)


def _above(pid: int, parents: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _number(gpu: str) -> tuple[str, int]:
    """Sort key of a GPU such as ``cuda:3``."""
    vendor, _, number = gpu.partition(":")
    return vendor, int(number)


def kind_of_helper(python: Sequence[str]) -> tuple[str, int]:
    """What a helper process is, and the number of its own frames (innermost first); those beyond are its
    parent's, from before a fork."""
    for depth, frame in enumerate(python):
        if what := next((what for pattern, what in _HELPERS if pattern.search(frame)), ""):
            return what, depth
    return "child process", len(python)


def _activity_key(process: Process) -> tuple[bool, bool, int]:
    """Sort key by which the process that does most comes last: by MPI, then by GPU, then by libraries."""
    return process.has_mpi, process.has_gpu, len(process.libraries)


def _helped(process: Process, candidates: Mapping[int, Process]) -> Process | None:
    """The rank for which a process works: the outermost process above it that can be a rank itself; None if
    there is none."""
    parent = candidates.get(process.parent)
    if parent is None or parent is process or _is_launcher(parent, candidates):
        return None
    above = _helped(parent, candidates) or parent
    if above.rank is None:
        known = any(pattern.search(frame) for pattern, _ in _HELPERS for frame in process.python)
        is_helper = process.rank is None and (known or (_is_active(above) and not _is_active(process)))
    else:
        works = above.has_mpi or above.has_gpu or above.has_torch  # and is no shell around the rank
        is_helper = works and process.rank in (None, above.rank)
    return above if is_helper else None


def _is_launcher(process: Process, candidates: Mapping[int, Process]) -> bool:
    """Whether a process only started the ranks that are its children. Below srun, torchrun has a number."""
    if process.launches or is_agent(process):
        return True
    if process.rank is not None or process.has_mpi:
        return False
    below = _descendants(process, candidates)
    if any(other.rank is not None for other in below):
        return True
    if below and any(map(_LAUNCHES.search, process.python)):
        return True
    return not _is_active(process) and any(map(_is_active, below))


def is_agent(process: Process) -> str:
    """The function in which torchrun's agent waits; empty for any other process."""
    return next((found[1] for frame in process.python if (found := _AGENT.match(frame))), "")


def _descendants(process: Process, candidates: Mapping[int, Process]) -> list[Process]:
    children = [other for other in candidates.values() if other.parent == process.pid]
    return [*children, *(below for child in children for below in _descendants(child, candidates))]


def _is_active(process: Process) -> bool:
    return any(_ACTIVE.search(thread.name) for thread in process.threads)
