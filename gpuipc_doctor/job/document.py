"""The document of a job: what each rank was seen to do, and the verdict.

It holds nothing of an environment beyond listed names, and nothing of a command line beyond the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from gpuipc_doctor.model import Json, Relation, Setting
from gpuipc_doctor.report import documents

SCHEMA = "gpuipc-doctor/job/1"
"""Any change of what may stand in the document raises the number; ``job.schema.json`` describes it."""

Stack = tuple[str, ...]
"""Frames, innermost first: ``function (file)``, or ``[file]`` where the function has no name."""


MPI_LIBRARY = re.compile(r"/libmpi(ch)?(_\w+)?[\w.-]*\.so")
_DRIVER_LIBRARY = re.compile(r"/lib(cuda|amdhip64|hsa-runtime64)\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread at one look."""

    tid: int
    name: str
    state: str
    """The kernel's letter: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie."""
    busy: float = 0.0
    """Part of one processor that it used since the look before, 0 to 1."""
    wchan: str = ""
    """The kernel function in which it sleeps; empty where it runs, or where that may not be read."""
    syscall: str = ""
    """The number of the system call, ``running``, or nothing where that may not be read."""
    kernel: Stack = ()
    native: tuple[Stack, ...] = ()
    """Sampled stacks of a thread that runs."""
    approximate: tuple[Stack, ...] = ()
    """Stacks in which frames of earlier calls may be left over; their first frames are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one look."""

    pid: int
    parent: int
    uid: int
    program: str
    started: int = 0
    """Clock ticks from the node's boot: tells a process from a later one with its pid."""
    rank: int | None = None
    size: int | None = None
    """Ranks of the job, where the launcher says it."""
    threads: tuple[Thread, ...] = ()
    python: tuple[str, ...] = ()
    """Python frames of the main thread, innermost first."""
    callers: str = ""
    """A digest of the main thread's stack outside MPI; empty if it is in no call of MPI, or not known."""
    libraries: tuple[str, ...] = ()
    """Paths of the mapped shared libraries."""
    settings: dict[str, str] = field(default_factory=dict)
    descriptors: int | None = None
    mappings: int | None = None
    resident: int | None = None
    """Bytes of host memory."""
    refused: dict[str, str] = field(default_factory=dict)
    """What could not be read, and why: ``{"environ": "Permission denied"}``."""

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    @property
    def has_mpi(self) -> bool:
        return any(MPI_LIBRARY.search(path) for path in self.libraries)

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU driver's user-space library is mapped."""
        return any(_DRIVER_LIBRARY.search(path) for path in self.libraries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All processes of the job on one host at one time, in seconds since the epoch."""

    at: float
    host: str
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank, and what it did at every look."""

    rank: int
    host: str
    pid: int
    program: str
    doing: str
    """The value of an `activity.Kind`."""
    operation: str
    path: Stack
    """Where it was at every look, outermost frame first."""
    reason: str = ""
    """What was concluded from."""
    settings: dict[str, str] = field(default_factory=dict)
    """Values of the variables that libraries of GPUs and MPI read; no other variable is kept."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the loaded libraries, by the inventory's names."""
    started: int = 0
    """Clock ticks from the node's boot."""
    refused: dict[str, str] = field(default_factory=dict)
    """What could not be read of this process, and why."""


class Cause(Enum):
    """Why a job stands still, or that it does not."""

    KERNEL = "kernel"
    HOST_LATE = "host-late"
    RANK_ENDED = "rank-ended"
    STOPPED = "stopped"
    DEVICE_BUSY = "device-busy"
    MESSAGE_LOST = "message-lost"
    MISMATCH = "collective-mismatch"
    ALL_WAIT = "all-wait"
    FINALIZE = "finalize"
    GROWS = "grows"
    RUNS = "runs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``blamed`` ranks are waited for by ``waiting`` ranks; either may be empty."""

    cause: Cause
    blamed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    operation: str = ""
    """What the blamed ranks are in; if no rank is blamed, what the waiting ranks are in."""
    waits_in: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedIssue:
    """A known issue that fits a rank's stack, the versions that it has loaded, or both."""

    id: str
    title: str
    relation: Relation
    reason: str
    remedy: str
    """Right for the loaded version. Nothing is changed in the running job."""
    checks: tuple[str, ...]
    """Checks that show it on a free node."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a rank takes more of: change in a minute with its 95 % interval, in bytes or pieces."""

    rank: int | None
    """None for what belongs to no rank."""
    pid: int | None
    what: str
    per_minute: float
    low: float
    high: float
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A variable, or the version of a loaded library, that is not the same in all ranks."""

    name: str
    ranks: dict[str, tuple[int, ...]]
    """By value; an empty one stands for a variable that is not set, or a library that is not loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has moved since an earlier report."""

    earlier: float
    """When that was taken, in seconds since the epoch."""
    moved: tuple[int, ...]
    """Ranks that do something else, or moved on in either report."""
    still: tuple[int, ...]
    """Ranks that are where they were."""
    restarted: tuple[int, ...] = ()
    """Ranks that are another process now."""
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What ``gpuipc-doctor job`` saw and concluded."""

    taken: float
    """Seconds since the epoch."""
    seconds: float
    """From the first look to the last."""
    looks: int
    size: int | None
    """Ranks of the job, as far as its launcher says it."""
    ranks: tuple[Rank, ...]
    verdict: Verdict
    unable: dict[str, str] = field(default_factory=dict)
    """What could not be seen, and why."""
    stopped: bool = False
    """Whether each process was stopped for a moment, for its native stacks."""
    watched_s: float = 0.0
    """Seconds for which growth was watched."""
    growth: tuple[Growth, ...] = ()
    ras: tuple[str, ...] = ()
    """What there is to say of NCCL's RAS service."""
    issues: tuple[MatchedIssue, ...] = ()
    wrong_settings: tuple[Setting, ...] = ()
    """Settings that the loaded libraries do not know, or whose value they do not take."""
    differences: tuple[Difference, ...] = ()
    since: Progress | None = None


def schema() -> Json:
    return documents.schema(SCHEMA, JobReport, "Which rank of a running job waits for which.")


def dumps(report: JobReport) -> str:
    """The JSON document, ending in a newline."""
    return documents.dumps({"schema": SCHEMA, **documents.encode(report)})


def loads(text: str | bytes) -> JobReport:
    """The report that was dumped. Raises `documents.BadDocument`."""
    document = documents.parse(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise documents.BadDocument(f"this is not a document of {SCHEMA}")
    return documents.load(JobReport, document, ("schema",))
