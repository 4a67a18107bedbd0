"""The document of a job: what each rank was doing, and the verdict.

Of the environment it contains only listed variables, and of the command line only the program's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from gpuipc_doctor.collective.call import Call
from gpuipc_doctor.model import Setting
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.stacks.thread import MPI_LIBRARY, Stack, Thread

SCHEMA = "gpuipc-doctor/job/2"
"""Format of the document, which ``job.schema.json`` describes. Its number grows with any change to the
fields."""

_DRIVER_LIBRARY = re.compile(r"/lib(cuda|amdhip64|hsa-runtime64|ze_intel_gpu)\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process during one snapshot."""

    pid: int
    parent: int
    uid: int
    program: str
    started: int = 0
    """Start time in clock ticks since boot, 0 if unknown; distinguishes processes that had the same pid."""
    rank: int | None = None
    size: int | None = None
    """Number of ranks in the job, if the launcher sets it."""
    local: int | None = None
    """Number of the rank on its node, if the launcher sets it."""
    threads: tuple[Thread, ...] = ()
    python: tuple[str, ...] = ()
    """Python frames of the main thread, innermost first."""
    own: int = 0
    """Index of the first Python frame in one of the program's own files."""
    variables: str = ""
    """Hash of the local variables of the Python frames; empty if unknown."""
    places: int = 0
    """Number of different Python stacks of the main thread, read between the snapshots as well."""
    callers: str = ""
    """Hash of the main thread's stack outside MPI; empty if unknown, or if the thread is in no MPI call."""
    counts: bool = False
    """Whether a number in the main thread's registers, stack or Python variables keeps rising or falling,
    or a variable has many texts or fractions; False if unknown."""
    libraries: tuple[str, ...] = ()
    """Paths of mapped shared libraries."""
    settings: dict[str, str] = field(default_factory=dict)
    descriptors: int | None = None
    gpu: str = ""
    """The one GPU on which the process has memory, as ``cuda:3``; empty if unknown."""
    gpu_busy: int | None = None
    """Utilisation of the process's GPU in percent; None if unknown."""
    gpu_watts: float | None = None
    switches: int | None = None
    """How often the main thread has gone to sleep so far; None if unknown."""
    transferred: int | None = None
    """Bytes that the main thread has read and written so far."""
    io: int | None = None
    """The same of all threads, and of the children for which the process has waited."""
    resident: int = 0
    """Bytes of memory in use; 0 if unknown."""
    children_s: float = 0.0
    """Processor seconds of the children for which the process has waited."""
    carried: dict[int, int] = field(default_factory=dict)
    """Inode of an open TCP socket → bytes that it has sent and received."""
    waits_for: str = ""
    """What another process holds and the main thread waits for: a lock on a file, the other end of a pipe."""
    cpus: str = ""
    """Processors on which the main thread may run, such as ``0-3,8``; empty if unknown."""
    world: str = ""
    """What distinguishes ranks of MPI_Comm_spawn from those of their parents."""
    launches: bool = False
    """Whether its command line is that of a launcher of PyTorch's ranks."""
    nodes: str = ""
    """Number of nodes that torchrun awaits, such as ``2`` or ``1:4``; empty if this is not torchrun."""
    refused: dict[str, str] = field(default_factory=dict)
    """File or method that could not be read → reason: ``{"environ": "Permission denied"}``."""

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    @property
    def has_mpi(self) -> bool:
        return any(MPI_LIBRARY.search(path) for path in self.libraries)

    @property
    def has_torch(self) -> bool:
        return any("/libtorch" in path for path in self.libraries)

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU driver's user-space library is mapped."""
        return any(_DRIVER_LIBRARY.search(path) for path in self.libraries)


@dataclass(frozen=True, slots=True)
class Contents:
    """Hash of the memory that ranks share. ``whole``: whether the hash covers all of it."""

    digest: str
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All processes of the job on one host at one time. The time is in seconds since the epoch."""

    at: float
    host: str
    processes: tuple[Process, ...]
    shared: Contents | None = None
    """Hash of the memory that the ranks share; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank and what it did in every snapshot."""

    rank: int
    host: str
    pid: int
    program: str
    doing: str
    """The value of the rank's `activity.Kind`."""
    operation: str
    path: Stack
    """The rank's frames common to all snapshots, outermost first."""
    reason: str = ""
    """Evidence for ``doing``."""
    settings: dict[str, str] = field(default_factory=dict)
    """Variables that GPU and MPI libraries read, with their values; no other variable is kept."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the loaded libraries, by inventory name."""
    started: int = 0
    """Start time in clock ticks since boot."""
    refused: dict[str, str] = field(default_factory=dict)
    """What could not be read of this process → reason."""
    gpu_busy: int | None = None
    """Utilisation of the rank's GPU in percent; None if unknown."""
    gpu_watts: float | None = None
    numbered: str = ""
    """How the rank's number was found if no variable of its environment has it."""
    works: str = ""
    """Work that the rank does although it is in no wait, or what its connections carry; empty if neither."""
    mark: str = ""
    """Hash of the stack or the variables of a waiting call's callers. It differs after another call; empty if
    unknown."""
    helpers: tuple[str, ...] = ()
    """What the rank's helper processes do, such as a DataLoader's workers."""
    gpus: tuple[str, ...] = ()
    """GPUs on which the process has memory, numbered as by the vendor's tools: ``cuda:3``."""


class Cause(Enum):
    """What is wrong with a job. ``RUNS`` means that nothing is wrong."""

    KERNEL = "kernel"
    HOST_LATE = "host-late"
    RANK_ENDED = "rank-ended"
    STOPPED = "stopped"
    DEVICE_BUSY = "device-busy"
    MESSAGE_LOST = "message-lost"
    MISMATCH = "collective-mismatch"
    ORDER = "collective-order"
    """Ranks are in collectives of different communicators, and wait for each other."""
    ALL_WAIT = "all-wait"
    FINALIZE = "finalize"
    GPU_WAIT = "gpu-wait"
    """Every rank waits for its GPU, and the ranks cannot be told apart from outside."""
    GROWS = "grows"
    RUNS = "runs"
    UNKNOWN = "unknown"

    @property
    def is_open(self) -> bool:
        """Whether it cannot be told if the job is stuck."""
        return self in (Cause.UNKNOWN, Cause.GPU_WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion on a job: what is wrong, which ranks are to blame, and which wait for them."""

    cause: Cause
    blamed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    operation: str = ""
    """Operation of the blamed ranks, or if there are none, of the waiting ranks."""
    waits_in: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedIssue:
    """A known issue that matches a rank's stack, its loaded versions, or both."""

    id: str
    title: str
    relation: Relation
    reason: str
    remedy: str
    """Workaround for the loaded version. It is for the next job: this tool never changes a running one."""
    checks: tuple[str, ...]
    """Checks that reproduce the issue on a free node."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of one resource of a rank per minute, with its 95 % interval. Memory is in bytes; other
    resources are counted."""

    rank: int | None
    """The rank; None for resources that belong to no rank."""
    pid: int | None
    what: str
    per_minute: float
    low: float
    high: float
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """A file in /dev/shm, or a System V segment."""

    host: str
    name: str
    held: int | None
    """Size in bytes; None if unreadable."""
    ranks: tuple[int, ...] | None
    """Ranks that have the memory mapped; None if no process has it mapped or open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A variable or library version that differs between ranks."""

    name: str
    ranks: dict[str, tuple[int, ...]]
    """Value → ranks; the empty value stands for an unset variable or a library that is not loaded."""
    binds: bool = False
    """Whether the variable assigns GPUs to ranks, so that its values differ by design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress since an earlier report."""

    earlier: float
    """Time of the earlier report, in seconds since the epoch."""
    moved: tuple[int, ...]
    """Ranks whose activity differs from the earlier report, or that made progress during either report."""
    still: tuple[int, ...]
    """Ranks without progress."""
    restarted: tuple[int, ...] = ()
    """Ranks whose process was replaced by a new one."""
    gone: tuple[int, ...] = ()


GROWTH = "growth"
"""Prefix of keys in `JobReport.unable` for resources whose growth could not be watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Observations and conclusions of ``gpuipc-doctor job``."""

    taken: float
    """Seconds since the epoch."""
    seconds: float
    """Seconds from the first snapshot to the last."""
    looks: int
    """Number of snapshots."""
    size: int | None
    """Number of ranks in the job, if the launcher sets it."""
    ranks: tuple[Rank, ...]
    verdict: Verdict
    unable: dict[str, str] = field(default_factory=dict)
    """What could not be read → reason."""
    messages: bool | None = None
    """Whether memory shared by the ranks of a node changed between the last snapshots; None if unknown."""
    stopped: bool = False
    """Whether each process was stopped briefly for its native stacks."""
    watched_s: float = 0.0
    """Seconds for which growth was watched."""
    growth: tuple[Growth, ...] = ()
    ras: tuple[str, ...] = ()
    """Messages of NCCL's RAS service."""
    collectives: tuple[Call, ...] = ()
    """Each rank's last collective by NCCL's RAS, if its count did not change between two answers."""
    collectives_move: bool = False
    """Whether NCCL's RAS counted new collectives between two answers."""
    issues: tuple[MatchedIssue, ...] = ()
    wrong_settings: tuple[Setting, ...] = ()
    """Settings that the loaded libraries do not know, and settings whose values they do not accept."""
    notes: tuple[str, ...] = ()
    """What is unusual about the job's processes: a second world, a shared processor."""
    stopped_launcher: str = ""
    """A process above ranks that is stopped, such as ``mpiexec (7)``."""
    differences: tuple[Difference, ...] = ()
    memory_files: tuple[MemoryFile, ...] = ()
    since: Progress | None = None


KIND = json_documents.Kind(SCHEMA, JobReport, "Which rank of a running job waits for which.")
dumps = KIND.dumps


def is_of_job(text: str | bytes) -> bool:
    """Whether a text is a job document of any version. Raises `json_documents.BadDocument`."""
    document = json_documents.parse(text)
    return isinstance(document, dict) and str(document.get("schema")).startswith(
        SCHEMA.rpartition("/")[0] + "/"
    )


def loads(text: str | bytes) -> JobReport:
    """Parse a job document. Raises `json_documents.BadDocument`."""
    document = json_documents.parse(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        what = (
            "was written by another version of gpuipc-doctor" if is_of_job(text) else "is not a job's report"
        )
        raise json_documents.BadDocument(f'this {what}: "schema" is not "{SCHEMA}"')
    return json_documents.load(JobReport, document, ("schema",))
