"""Select the processes of a job by pid, Slurm job or user, with all processes that their launcher started."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor import node_name
from gpuipc_doctor.fleet import slurm
from gpuipc_doctor.job.processes import RANKS
from gpuipc_doctor.stacks import rights
from gpuipc_doctor.stacks.proc_files import Gone, Reader, environment
from gpuipc_doctor.stacks.process_list import (
    KEEPER,
    MARKER,
    PROC,
    Process,
    descendants,
    processes,
    with_descendants,
)

LAUNCHERS = re.compile(
    r"mpiexec|mpirun|hydra_|pmi_proxy|orted|orterun|prte|srun|slurmstepd|flux-shell|torchrun|aprun|palsd?"
)
"""Programs whose descendants form one job. The kernel truncates names to 15 characters."""

DEVICE_FILES = re.compile(r"/dev/(nvidia\d+|kfd|dri/renderD\d+)$")


class NoSuchJob(Exception):
    """The requested process, job or user does not exist here; the message is one line."""


class SeveralJobs(Exception):
    """The request matches more than one job; the message is one line."""

    def __init__(self, says: str, jobs: tuple[tuple[int, ...], ...] = ()) -> None:
        super().__init__(says)
        self.jobs = jobs
        """For each job, the pids that select it; empty if they cannot be told."""


@dataclass(frozen=True, slots=True)
class Request:
    """The user's selection. An empty one selects every rank and every process that has a GPU open."""

    pids: tuple[int, ...] = ()
    slurm: str = ""
    """A Slurm job or job step: ``JOBID`` or ``JOBID.STEP``."""
    user: str = ""


def select(request: Request) -> tuple[int, ...]:
    """Pids of the job, ascending. Raises `NoSuchJob`."""
    everyone = processes()
    keepers = {process.pid for process in descendants(os.getpid()) if process.name == KEEPER}
    ours = _ancestors(os.getpid(), everyone) | keepers
    if request.pids:
        found = _by_pid(request.pids, everyone)
    elif request.slurm:
        found = _of_slurm(request.slurm, everyone, _uid(request.user))
    else:
        found = _matching(everyone, lambda pid: _is_work(pid, _uid(request.user)))
    workers = _matching(found, lambda pid: MARKER in environment(Reader(pid)))  # those of gpuipc-doctor
    found = with_descendants(found, everyone) - ours - workers
    if not found:
        raise NoSuchJob(_absence(request, everyone))
    if not request.slurm:
        _refuse_several(found, everyone)
    return tuple(sorted(found))


def _refuse_several(found: Iterable[int], everyone: Mapping[int, Process]) -> None:
    """Raise `SeveralJobs` if ranks of two jobs have the same number."""
    jobs: dict[int | str, dict[int, str]] = {}
    for pid in found:
        with suppress(Gone):
            environ = environment(Reader(pid))
            rank = next((environ[name] for name in RANKS if name in environ), None)
            if rank is not None and (job := _job_of(pid, environ, everyone)):
                jobs.setdefault(job, {})[pid] = rank
    ranks = [{*numbers.values()} for numbers in jobs.values()]
    if len(jobs) > 1 and sum(map(len, ranks)) > len(set().union(*ranks)):
        pids = ((job,) if isinstance(job, int) else tuple(sorted(jobs[job])) for job in jobs)
        chosen = sorted(zip(pids, map(len, ranks), strict=True))
        names = (f"{first} ({everyone[first].name}, {size} ranks)" for (first, *_), size in chosen)
        says = f"{len(jobs)} jobs run on this node; name one with --pid: {', '.join(names)}"
        raise SeveralJobs(says, tuple(job for job, _ in chosen))


def _job_of(pid: int, environ: Mapping[str, str], everyone: Mapping[int, Process]) -> int | str:
    """The launcher's pid, or the address at which PyTorch's ranks meet; empty if there is neither."""
    top = _launcher(pid, everyone)
    if top != pid:
        return top
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if port else ""


def _by_pid(pids: Iterable[int], everyone: Mapping[int, Process]) -> set[int]:
    """These processes and all others of their launcher. Pid 1 is rejected, and if no other pid is given, a
    process that has ended: a rank of several may have."""
    found: set[int] = set()
    pids = [pid for pid in pids if pid in everyone and everyone[pid].state != "Z"] or list(pids)[:1]
    for pid in pids:
        if pid not in everyone:
            raise NoSuchJob(_unlisted(pid))
        if pid in (1, os.getpid()):
            raise NoSuchJob(
                f"process {pid} ({everyone[pid].name}) is not part of a job; name a rank or its launcher"
            )
        if everyone[pid].state == "Z":
            raise NoSuchJob(f"process {pid} ({everyone[pid].name}) has ended and waits for its parent")
        found.add(_launcher(pid, everyone))
        found |= _meeting(pid, everyone)
    return found


def _meeting(pid: int, everyone: Mapping[int, Process]) -> set[int]:
    """The ranks of PyTorch that meet at the address of a rank without a launcher, such as those that a shell
    started."""
    with suppress(Gone):
        own = _job_of(pid, environment(Reader(pid)), everyone)
        if isinstance(own, str) and own:
            owner = _owner(pid)
            return _matching(
                everyone,
                lambda other: (
                    _owner(other) == owner and _job_of(other, environment(Reader(other)), everyone) == own
                ),
            )
    return set()


def _unlisted(pid: int) -> str:
    """Why a pid was not found. With ``hidepid=1``, the kernel shows only that it exists (proc(5))."""
    if (PROC / str(pid)).exists():
        return f"process {pid} cannot be read; run this as root or as its user"
    hiding = rights.hiding() or "run this on the job's node, inside the job's container if it has one"
    return f"no process {pid} in this pid namespace; {hiding}"


def _launcher(pid: int, everyone: Mapping[int, Process]) -> int:
    """The topmost launcher above a process; without a launcher, the process itself."""
    top, above = pid, pid
    while (above := everyone[above].parent) in everyone and above != 1:
        if LAUNCHERS.match(everyone[above].name):
            top = above
    return top


def _ancestors(pid: int, everyone: Mapping[int, Process]) -> set[int]:
    """A process and its ancestors."""
    family = set[int]()
    while pid in everyone:
        family.add(pid)
        pid = everyone[pid].parent
    return family


def _matching(pids: Iterable[int], belongs: Callable[[int], bool]) -> set[int]:
    found = set()
    for pid in pids:
        with suppress(Gone):
            if belongs(pid):
                found.add(pid)
    return found


def _of_slurm(job: str, everyone: Mapping[int, Process], user: int | None) -> set[int]:
    """The processes of a Slurm job: those in slurmd's control group, and those of the job's owner that have
    Slurm's variables, which any user can set.

    ``user``: the owner, if named; else slurmd's processes tell, and if there are none, squeue. Raises
    `SeveralJobs` if the owner is unknown."""
    in_group = _matching(everyone, lambda pid: _is_in_group(pid, job) and _is_here(pid))
    named = _matching(everyone, lambda pid: _names_job(pid, job) and _is_here(pid)) - in_group
    users = {pid: _user(pid) for pid in (*in_group, *named)}
    started = {pid for pid in named if _is_started_by_slurm(pid, job.partition(".")[0], everyone)}
    owners = {users[pid] for pid in in_group | started} - {0, None} or {users[pid] for pid in named} - {None}
    if user is not None:
        owners &= {user}
    elif len(owners) > 1:
        owners = owners & {_owner_by_slurm(job)} or owners
    if len(owners) > 1:
        shown = ", ".join(map(str, sorted(filter(None, owners))))
        raise SeveralJobs(f"users {shown} have processes with SLURM_JOB_ID={job}; name one with --user")
    return {pid for pid in in_group if user in (None, users[pid])} | {
        pid for pid in named if users[pid] in owners
    }


def _owner_by_slurm(job: str) -> int | None:
    """The user of a job as squeue names it; None if unknown."""
    with suppress(slurm.Refused):
        said = slurm.printed_by("squeue", "-h", "-j", job.partition(".")[0], "-o", "%U").split()
        return int(said[0]) if said and re.fullmatch(r"\d{1,10}", said[0]) else None
    return None


def _is_in_group(pid: int, job: str) -> bool:
    number, _, step = job.partition(".")
    group = Reader(pid).text("cgroup")
    return bool(re.search(rf"/job_{number}/" + (rf"step_{step}(?:/|$)" if step else ""), group, re.MULTILINE))


def _names_job(pid: int, job: str) -> bool:
    """Whether a process has Slurm's variables of a job, and is of one user before and after they are read."""
    number, _, step = job.partition(".")
    before = _user(pid)
    environ = environment(Reader(pid))
    is_named = environ.get("SLURM_JOB_ID") == number and (not step or environ.get("SLURM_STEP_ID") == step)
    return is_named and before is not None and _user(pid) == before


def _is_started_by_slurm(pid: int, number: str, everyone: Mapping[int, Process]) -> bool:
    """Whether a slurmstepd of this job, which only root can start so, is above a process."""
    while (pid := everyone[pid].parent) in everyone and pid != 1:
        with suppress(Gone):
            title = Reader(pid).text("cmdline")
            if title.startswith(f"slurmstepd: [{number}.") and _user(pid) == 0:
                return True
    return False


def _user(pid: int) -> int | None:
    """The user of a process; None if it has several (real, effective, saved), or has ended."""
    with suppress(Gone):
        ids = re.search(r"^Uid:((?:\s+\d+){4})$", Reader(pid).text("status"), re.MULTILINE)
        users = set(map(int, ids[1].split())) if ids else set[int]()
        return users.pop() if len(users) == 1 else None
    return None


def _is_here(pid: int) -> bool:
    """Whether a rank belongs to this node. A machine may run several slurmd, each for a node of its own."""
    return environment(Reader(pid)).get("SLURMD_NODENAME") in (None, node_name.short())


def _is_work(pid: int, uid: int | None) -> bool:
    """Whether a process is a rank or has a GPU open, and belongs to ``user`` if given."""
    reader = Reader(pid)
    if uid is not None and _owner(pid) != uid:
        return False
    return bool(environment(reader).keys() & set(RANKS)) or _has_gpu(pid)


def _has_gpu(pid: int) -> bool:
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if DEVICE_FILES.match(os.readlink(entry.path)):  # noqa: PTH115 - of thousands
                    return True
    return False


def _owner(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        raise Gone from None


def _uid(user: str) -> int | None:
    if not user:
        return None
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise NoSuchJob(f"unknown user {user!r}") from None


def _absence(request: Request, everyone: Mapping[int, Process]) -> str:
    """That there is no job, or that none is visible and why."""
    if hiding := rights.hiding(len(_unread(everyone, _uid(request.user)))):
        of = (
            f"of Slurm job {request.slurm} "
            if request.slurm
            else f"of {request.user} "
            if request.user
            else ""
        )
        return f"no rank {of}is visible here: {hiding}"
    if request.slurm:
        return f"no process of Slurm job {request.slurm} on this node"
    if request.user:
        return f"{request.user} has no rank and no process with an open GPU on this node"
    return "no rank and no process with an open GPU on this node; name one with --pid"


def _unread(everyone: Mapping[int, Process], uid: int | None) -> set[int]:
    """Processes whose environment, which tells ranks from others, may not be read. ``uid``: of this user."""

    def is_refused(pid: int) -> bool:
        reader = Reader(pid)
        return not reader.text("environ") and "environ" in reader.refused and uid in (None, _owner(pid))

    kernel = 2  # kthreadd, the parent of the kernel's threads
    return _matching(everyone, lambda pid: kernel not in (pid, everyone[pid].parent) and is_refused(pid))
