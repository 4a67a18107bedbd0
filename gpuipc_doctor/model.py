"""Values that the packages exchange. They are frozen and do no I/O.

A *check* requests *probes*; a probe runs *roles* in *workers* and ends in an *outcome*; the check concludes
*findings* from it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any, NamedTuple

Json = Any
"""A JSON value: None, bool, int, float, str, lists and string-keyed dicts of these."""


class Status(enum.Enum):
    """The status of a finding. ``FAIL``: what was tested is faulty. ``ERROR``: the result is unknown."""

    PASS = "PASS"
    SKIP = "SKIP"
    WARN = "WARN"
    ERROR = "ERROR"
    FAIL = "FAIL"

    @property
    def severity(self) -> int:
        """Rank for "the worst of": PASS 0, SKIP 1, WARN 2, ERROR 3, FAIL 4."""
        return list(Status).index(self)


@total_ordering
class Tier(enum.Enum):
    """The depth of a run. A tier includes all lower ones."""

    PROLOG = "prolog"
    ACCEPTANCE = "acceptance"
    SOAK = "soak"

    def __lt__(self, other: Tier) -> bool:
        tiers = list(Tier)
        return tiers.index(self) < tiers.index(other)

    @property
    def label(self) -> str:
        return self.value


class Subject(enum.Enum):
    """What a verdict on a node is about. Tested: a check of it has a result other than SKIP and ERROR."""

    MEMORY = "memory"
    MPI = "mpi"
    COLLECTIVES = "collectives"
    FABRIC = "fabric"

    @property
    def title(self) -> str:
        return {
            Subject.MEMORY: "GPU memory between processes",
            Subject.MPI: "MPI",
            Subject.COLLECTIVES: "collectives",
            Subject.FABRIC: "the fabric",
        }[self]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as numbered by one backend.

    ``uuid`` is in the driver's spelling (``GPU-…``) and survives renumbering; ``total_bytes`` is in bytes;
    ``capabilities`` holds words such as ``legacy-ipc`` that checks may require; ``peers`` holds the labels of
    the devices whose memory this one can access directly.
    """

    backend: str
    index: int
    uuid: str
    pci: str
    name: str
    total_bytes: int
    capabilities: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """The device's name in the matrix and on the command line: ``cuda:0``."""
        return f"{self.backend}:{self.index}"

    @property
    def identity(self) -> str:
        """Key of the device, independent of numbering: its uuid, or else its PCI address."""
        return self.uuid or self.pci

    @property
    def has_credible_size(self) -> bool:
        return 0 < self.total_bytes < 2**50


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Maximum device memory that a check may hold on one device: the smaller of bytes and fraction."""

    fraction: float = 0.05
    """Fraction of the device's total or free memory."""
    most_gib: float = 2.0

    def of(self, nbytes: int) -> int:
        """Maximum bytes to use of ``nbytes`` bytes of device memory."""
        return int(min(self.fraction * nbytes, self.most_gib * 2**30))


@dataclass(frozen=True, slots=True)
class Node:
    """The node on which workers run. A simulated node has its own libraries and files.

    ``env`` is added to the workers' environment only; ``root`` precedes ``/proc`` and ``/sys`` wherever the
    inventory reads; ``simulated`` is the profile's name.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    root: str = "/"
    simulated: str = ""
    rank_env: Mapping[str, str] = field(default_factory=dict)
    """Added, like ``env``, to the environment of workers, but only if they are MPI ranks."""
    visible: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of workers whose probe has no device, to limit the GPUs they see."""


@dataclass(frozen=True, slots=True)
class DriverFault:
    """A driver call that did not return success: the call, its code and the driver's name for the code."""

    call: str
    code: int
    name: str

    def __str__(self) -> str:
        return f"{self.call} returned {self.name} ({self.code})"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure to compare with later runs, such as a latency.

    A probe records it once, not in each round: rounds of a probe share a processor, so they are not
    independent.
    """

    name: str
    value: float
    unit: str
    more_is_better: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.name} is {self.value}, which is not a finite number")


class EvidenceKind(enum.Enum):
    """The kind of an item of evidence."""

    SEEN = "seen"
    """A further or more detailed observation."""
    CONTROL = "control"
    """What was observed without the suspected cause."""
    MEASURED = "measured"
    """What was measured, and which fault the measurement would have shown."""
    BEFORE = "before"
    """What a role recorded before its probe ended early."""
    HOLDER = "holder"
    """A process that holds device memory."""
    RERUN = "rerun"
    """The result of a rerun of the same probe."""
    TRIAL = "trial"
    """The result of rerunning the probe with a workaround. ``values`` have ``outcome`` (a `Trial`), and
    ``env`` or ``without``."""
    CAUSE = "cause"
    """What on this node explains the failure (`run.causes`); the summary begins with it. ``values`` have
    ``shown`` (a `Shown`): see `Evidence.cause`."""
    RECOGNISED = "recognised"
    """A known issue or message that a failure's texts show (`recognition`): ``values`` have ``entry`` and
    ``confidence``."""
    ISSUE = "issue"
    """A related known issue; ``values["issue"]`` is its id."""


class Shown(enum.Enum):
    """How a cause was shown. What was shown in none of these ways is no cause."""

    TRIED = "tried"
    """The probe passes without it, and fails again with it."""
    STATED = "stated"
    """The failed call's code or own words name it."""
    MEASURED = "measured"
    """A limit that was reached, or a lack of what the failed step needs, was seen on this node."""


class Trial(enum.Enum):
    """The result of rerunning a failed probe with a workaround."""

    HELPS = "helps"
    DOES_NOT_HELP = "does not help"
    WORSE = "worse"
    UNKNOWN = "cannot tell"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One item of evidence for a finding, as data; ``says`` and ``values`` are as in `Finding`.

    Common kinds have a constructor: ``Evidence.seen("{count} of them", count=3)``.
    """

    kind: EvidenceKind
    says: str
    values: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def seen(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.SEEN, says, values)

    @classmethod
    def cause(cls, shown: Shown, says: str, values: Mapping[str, Json]) -> Evidence:
        return cls(EvidenceKind.CAUSE, says, {**values, "shown": shown.value})

    @classmethod
    def control(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.CONTROL, says, values)

    @classmethod
    def measured(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.MEASURED, says, values)


PLACES = frozenset({"device", "from_device", "to_device", "host", "step"})
"""Names of values that say where a finding occurred. Findings that differ only in these values are equal."""

ORDINALS = frozenset({"occurrence"})
"""Names of numbers that do distinguish findings: a hang in the second call is not a hang in the third."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's conclusion about one subject, as data; `report.sentences` turns it into text.

    ``key`` names the conclusion in words of a to z and 0 to 9 joined by hyphens. Together with the check's id
    (`Result.key`), it is the stable name by which findings are grouped, suppressed, compared and matched.
    ``says`` is a sentence with placeholders for ``values``: ``"{missing:mib} was not released after {end}"``.
    ``evidence`` begins with the most important item; ``remedy`` is an instruction.
    """

    status: Status
    key: str
    says: str
    values: Mapping[str, Json] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    measured: tuple[Measurement, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """Key that is equal for a check's findings that differ only in place, time and figures.

        It consists of the status, the finding's key, the texts in ``values`` except `PLACES`, and the numbers
        in `ORDINALS`.
        """
        texts = (
            f"{name}={value}"
            for name, value in sorted(self.values.items())
            if (isinstance(value, str) and name not in PLACES) or name in ORDINALS
        )
        return (self.status.value, self.key, *texts)

    @property
    def issues(self) -> frozenset[str]:
        """The known issues named in the evidence."""
        return frozenset(
            str(item.values.get("issue")) for item in self.evidence if item.kind is EvidenceKind.ISSUE
        )

    @classmethod
    def of(
        cls,
        status: Status,
        key: str,
        says: str,
        /,
        *evidence: Evidence | str,
        remedy: str = "",
        **values: Json,
    ) -> Finding:
        """A finding whose status is a value, as a site config states it."""
        return cls(status, key, says, values, _items(evidence), remedy)

    @classmethod
    def ok(
        cls,
        key: str,
        says: str,
        /,
        *evidence: Evidence | str,
        measured: Iterable[Measurement] = (),
        **values: Json,
    ) -> Finding:
        return cls(Status.PASS, key, says, values, _items(evidence), measured=tuple(measured))

    @classmethod
    def skip(
        cls, key: str, reason: str, /, *evidence: Evidence | str, remedy: str = "", **values: Json
    ) -> Finding:
        return cls(Status.SKIP, key, reason, values, _items(evidence), remedy)

    @classmethod
    def warn(
        cls, key: str, says: str, /, *evidence: Evidence | str, remedy: str = "", **values: Json
    ) -> Finding:
        return cls(Status.WARN, key, says, values, _items(evidence), remedy)

    @classmethod
    def error(
        cls, key: str, says: str, /, *evidence: Evidence | str, remedy: str = "", **values: Json
    ) -> Finding:
        return cls(Status.ERROR, key, says, values, _items(evidence), remedy)

    @classmethod
    def fail(
        cls, key: str, says: str, /, *evidence: Evidence | str, remedy: str = "", **values: Json
    ) -> Finding:
        return cls(Status.FAIL, key, says, values, _items(evidence), remedy)


def _items(evidence: Iterable[Evidence | str]) -> tuple[Evidence, ...]:
    return tuple(Evidence(EvidenceKind.SEEN, item) if isinstance(item, str) else item for item in evidence)


Role = Callable[[Any], None]
"""A role function: it receives the ``api.Worker`` of its process, and returns when the role has ended."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an MPI launcher starts ranks: a command with ``{ranks}`` in it, and additional environment.

    On several ``nodes`` each node gets one rank, and a device has the same number on every node.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    preload: tuple[str, ...] = ()
    """Libraries preloaded in ranks, but not in the launcher."""
    ends_badly: bool = False
    """Whether the launcher hangs or fails although its ranks have ended. A run reports this only once."""
    shows: tuple[frozenset[str], ...] = ()
    """For each rank, the labels of the devices that the launcher shows it; empty if each rank sees all."""

    def with_ranks(self, ranks: int) -> list[str]:
        """The command that starts this many ranks."""
        return [part.format(ranks=ranks) for part in self.command]

    def can_use(self, devices: Sequence[Device]) -> bool:
        """Whether the launcher shows every rank its own device: the first device to the first rank, and so
        on."""
        return all(devices[rank % len(devices)].label in shown for rank, shown in enumerate(self.shows))


@dataclass(frozen=True, slots=True)
class Workaround:
    """A workaround to try: the environment to set, or the operations to omit, and the cost in words.

    ``without``: operations of a history that a program omits if it follows the instruction ``do``.
    ``part``: what the settings switch off, if a failure that they avoid is due to it.
    """

    env: Mapping[str, str]
    cost: str
    without: tuple[str, ...] = ()
    do: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class MpiStack:
    """The MPI of this run: its identity, how to start its ranks, and whether it accepts device pointers.

    ``takes``: backends whose device pointers it accepts. On a simulated node that is every backend, since
    simulated device memory is host memory. ``why_not`` and ``remedy``: why it does not accept those of other
    backends, and what to do. ``ipc_off``: environment that disables GPU IPC in it; empty if that is
    impossible. ``cache_bound``: variable that limits its IPC mapping cache; empty if none is known.
    ``workarounds``: settings that may help if it fails, cheapest first. ``edges``: message sizes in bytes at
    which its protocol changes.
    """

    family: str
    version: str
    library: str
    launch: Launch
    across: Launch | None = None
    """How to start ranks on several nodes, if requested."""
    takes: frozenset[str] = frozenset()
    has_gpu_path: bool = False
    """Whether the MPI has its own GPU path instead of treating simulated device memory as host memory."""
    why_not: str = ""
    remedy: str = ""
    ipc_off: Mapping[str, str] = field(default_factory=dict)
    cache_bound: str = ""
    cache_buffers: int | None = None
    """Number of buffers that the ``cache_bound`` variable allows; None if not set, or if it counts bytes."""
    cache_in_bytes: bool = False
    """Whether the ``cache_bound`` variable counts bytes."""
    workarounds: tuple[Workaround, ...] = ()
    edges: tuple[int, ...] = ()
    louder: Mapping[str, str] = field(default_factory=dict)
    """Environment that raises the log level of this MPI and its libraries."""
    starts: bool = True
    """Whether the ranks of this MPI could be started and initialised, if this was tried."""
    ucx: str = ""
    """Version of the UCX that moves this MPI's device memory; empty without UCX."""
    lacks: tuple[str, ...] = ()
    """Features that this MPI does not support in device memory: ``derived types``."""

    def with_env(self, env: Mapping[str, str]) -> Launch:
        """A copy of the launch with additional environment variables."""
        return replace(self.launch, env={**self.launch.env, **env})


@dataclass(frozen=True, slots=True)
class Program:
    """A program on the node: its path, and how it was found, in words."""

    file: str
    via: str


@dataclass(frozen=True, slots=True)
class StatedFabric:
    """The fabric that the site config states for its nodes, and ``file:line`` of the statement."""

    name: str
    """The fabric's name: ``cxi``, ``verbs``, ``tcp`` or ``none``."""
    where: str


@dataclass(frozen=True, slots=True)
class FabricStack:
    """The programs to test libfabric and UCX without MPI."""

    programs: Mapping[str, Program] = field(default_factory=dict)
    """Programs by name: ``fi_info``, ``fi_pingpong``, ``ucx_info``, ``ucx_perftest``."""
    why_not: str = ""
    """Why no program was searched for."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment added by the site config."""
    stated: StatedFabric | None = None
    adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Adapters that the kernel lists, by fabric (``cxi``, ``verbs``, ``efa``, ``opa``)."""


@dataclass(frozen=True, slots=True)
class CollectiveLibrary:
    """A file of NCCL or RCCL on the node.

    ``file``: its path as the node calls it; ``path``: its path for a process of this tool, which differs on a
    simulated node. ``version`` is stated by its name or package; empty if it is not. ``via``: how it was
    found, in words.
    """

    backend: str
    file: str
    path: str
    version: str
    via: str

    def __str__(self) -> str:
        return f"{self.file} ({', '.join(filter(None, (self.version, self.via)))})"


@dataclass(frozen=True, slots=True)
class CollectiveStack:
    """The libraries of collectives found on the node, and where they were searched."""

    found: tuple[CollectiveLibrary, ...] = ()
    """The libraries of all backends. Of each backend, the first one is tested."""
    searched: str = ""
    least: Mapping[str, float] = field(default_factory=dict)
    """The site's own limits in GB/s: ``bus`` of an all-reduce, ``pair`` of two GPUs."""
    least_where: str = ""
    """``file:line`` of the limits."""

    def of(self, backend: str) -> tuple[CollectiveLibrary, ...]:
        return tuple(library for library in self.found if library.backend == backend)


class Baseline(NamedTuple):
    """The idle state of a device: bytes in use (None if unknown), and seconds to wait for the state."""

    used: int | None
    patience_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """One isolated execution requested by a check.

    All roles run at the same time, each in its own worker, and get ``params`` as ``Worker.params``. Most
    probes state the first four fields; each other field says what the engine cannot know in advance.
    """

    name: str
    """Distinguishes a check's probes of one subject (``destroy-context``)."""
    roles: Mapping[str, Role]
    """A role's name → a function in the check's file or in the api."""
    devices: tuple[Device, ...] = ()
    """The GPUs that every worker can see, in this order: none for a probe of the node, one for a device, two
    for a pair, more for a group."""
    params: Mapping[str, Json] = field(default_factory=dict)
    deadline_s: float = 10.0
    """Seconds for each operation, not for the whole probe: loading a library takes longer than a call."""
    exclusive: bool = False
    """The probe measures the total use of its devices, so no other probe runs on them."""
    by_process: bool = False
    """What it measures may be what its own processes hold. Where a driver tells that, the engine clears
    ``exclusive``: other probes may run on the devices."""
    together: bool = False
    """The roles busy-wait for each other, as ranks do: one that lacks a processor makes others look hung."""
    concurrent: frozenset[str] = frozenset()
    """Roles that run work in several streams at once. Other roles' contexts have a single queue to the
    device, which costs less than half the time."""
    starters: frozenset[str] = frozenset()
    """Roles that start processes of their own. They load no driver, because a process with a driver must not
    fork."""
    launch: Launch | None = None
    """The roles are the ranks of an MPI job, in order, and communicate through `Worker.mpi`."""
    harms: frozenset[str] = frozenset()
    """Steps of this probe that are harmful with some versions; known issues of class ``probe-harms`` name the
    same steps."""
    imports: tuple[str, ...] = ()
    """Python modules that the roles import, and backends whose bindings they use without their devices. One
    process imports them for many workers, because some take seconds."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the probe's workers if no launcher starts them: libraries read it when they
    are loaded."""
    unset: frozenset[str] = frozenset()
    """Variables that are removed from the environment of the probe's workers, launcher and ranks."""
    fresh: str = ""
    """``context`` if the probe needs contexts that no other probe used, because it ends them; else empty.
    Other probes of a tour share contexts."""
    ends: frozenset[str] = frozenset()
    """Roles whose processes end in this probe, or keep something of it. These are processes of their own,
    and initialise the driver only when they need it; the other roles' processes may run other probes."""
    library: str = ""
    """What the first role's process loads and keeps: it may run other probes with the same library, but no
    others."""

    def parts_from(self, later: Probe) -> frozenset[str]:
        """Roles whose processes must not go on from this probe to a later one."""
        changes = self.library != later.library
        return self.ends | later.ends | frozenset(list(self.roles)[:changes])

    @property
    def subject(self) -> str:
        return subject_label([device.label for device in self.devices])


def subject_label(labels: Sequence[str]) -> str:
    """A subject's label: ``node``; a GPU ``cuda:0``; a pair ``cuda:0 > cuda:1`` (exporter first); a group
    ``cuda:0,1,2``."""
    if len(labels) > 2:
        indices = ",".join(label.rpartition(":")[2] for label in labels)
        return f"{labels[0].rpartition(':')[0]}:{indices}"
    return " > ".join(labels) or "node"


class Ending(enum.Enum):
    """How a role's worker ended."""

    COMPLETED = "completed"
    DRIVER_ERROR = "driver error"
    EXCEPTION = "exception"
    UNAVAILABLE = "unavailable"
    """The driver or GPU is not, or no longer, usable."""
    UNFIT = "unfit"
    """The GPU lacks a capability that the check requires."""
    CRASHED = "crashed"
    HUNG = "hung"
    UNKILLABLE = "unkillable"
    PEER_LOST = "peer lost"
    """The partner ended first; this role is not at fault."""
    NOT_STARTED = "not started"
    """No journal line was written within the start-up time."""
    UNRECORDED = "unrecorded"
    """The journal could not be written, so the result is unknown."""
    STOPPED = "stopped"
    """Ended by us because another role failed or the run was interrupted."""


@dataclass(frozen=True, slots=True)
class Calls:
    """A role's successful calls of one operation: their number and their total seconds."""

    operation: str
    count: int
    seconds: float


class Observed(enum.Enum):
    """Names of the texts that `Worker.observe` keeps. Each becomes evidence if the role fails later."""

    CONTROL = "control"
    WRONG = "wrong"
    REFUSED = "refused"
    LIBRARY = "library"
    TRANSPORTS = "transports"
    WARNED = "warned"


class Reached(NamedTuple):
    """How far a rank has come in a launch that performs histories of messages.

    ``trying``: index of the history in the launch; ``at`` and ``do``: index and name of the operation.
    ``waits_for``: index of the operation whose request is being waited for at the end.
    """

    trying: int
    at: int
    do: str
    waits_for: int | None = None


_UNREPORTED = {"reported": False}
"""Metadata of a field that the engine needs during the run and that documents omit."""


@dataclass(frozen=True, slots=True)
class RoleOutcome:
    """How one role ended.

    ``operation`` is the call that was armed when the worker ended (``cuIpcOpenMemHandle``). ``occurrence`` is
    its number, from 1, among the worker's calls of that name. ``step`` is the check's description of the
    call. If a library's own thread crashed between two calls, ``operation`` is the last call, and
    ``returned`` is true. ``records`` are kept even if the role died later.
    """

    role: str
    ending: Ending
    pid: int = 0
    operation: str = ""
    occurrence: int = 0
    step: str = ""
    returned: bool = False
    signal: str = ""
    exit_code: int | None = None
    fault: DriverFault | None = None
    exception: str = ""
    records: Mapping[str, Json] = field(default_factory=dict)
    python_stack: tuple[str, ...] = ()
    native_stack: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    start_up_s: float = 0.0
    """Seconds before the role began: for the interpreter, imports and, with MPI, the launcher."""
    calls: tuple[Calls, ...] = ()
    observed: Mapping[str, str] = field(default_factory=dict, metadata=_UNREPORTED)
    """Value of an `Observed` → the text."""
    unsupported: str = field(default="", metadata=_UNREPORTED)
    """What the library does not support, by documentation: an end in a call is then no fault."""
    acts_for: str = field(default="", metadata=_UNREPORTED)
    """The check to which a failure belongs, if several checks share the launch."""
    tested: Mapping[str, str] = field(default_factory=dict, metadata=_UNREPORTED)
    """Library of collectives → its version as it reports it."""
    price: tuple[float, str] | None = field(default=None, metadata=_UNREPORTED)
    """Figure and unit, which show the cost of a workaround."""
    reached: Reached | None = field(default=None, metadata=_UNREPORTED)
    meters: Mapping[str, Json] = field(default_factory=dict, metadata=_UNREPORTED)
    """Label of a device, empty for the role's own → what `api.meter` recorded."""
    loop: Mapping[str, Json] | None = field(default=None, metadata=_UNREPORTED)
    """The samples so far of the loop that `api.meter` watches; None between loops."""
    usage: Mapping[str, Mapping[str, Json]] = field(default_factory=dict, metadata=_UNREPORTED)
    """Repeated operation → the process's figures after each repetition (`api.process_leaks`)."""
    lacking: Sequence[str] = field(default=(), metadata=_UNREPORTED)
    """Required capabilities that the role's GPU lacks."""
    by_design: str = field(default="", metadata=_UNREPORTED)
    """Which of the role's GPUs refuses the failed call by design, and why; empty if none does."""
    memory: Sequence[tuple[int, int]] = field(default=(), metadata=_UNREPORTED)
    """(free, total) bytes of each device after a call that ran out of memory."""
    holders: Sequence[Mapping[str, Json]] = field(default=(), metadata=_UNREPORTED)
    """The processes that held the memory then (`Gpu.memory_holders`)."""
    loaded: Sequence[str] | None = field(default=None, metadata=_UNREPORTED)
    """Fabric libraries that the rank had loaded; None if it did not initialise MPI."""
    baselines: Sequence[int | None] = field(default=(), metadata=_UNREPORTED)
    """Bytes in use on each device when the role began, None where it did not wait; empty if it waited for
    none."""


@dataclass(frozen=True, slots=True)
class LauncherEnd:
    """How a launcher ended abnormally although all its ranks ended with exit code 0.

    ``exit_code`` is None if the launcher had not ended after ``waited_s`` seconds.
    """

    exit_code: int | None
    waited_s: float
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """How a probe ended: each role's outcome and, if the probe did not complete, the failed role."""

    probe: str
    devices: tuple[Device, ...]
    params: Mapping[str, Json]
    roles: Mapping[str, RoleOutcome]
    blamed: str | None
    elapsed_s: float
    deadline_s: float = 0.0
    logs: str = ""
    stopped: str = ""
    """Why the probe was stopped early: ``budget`` or ``interrupted``; empty otherwise."""
    launch: Launch | None = None
    launcher: LauncherEnd | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    """If the probe failed, the limits of the tool's own processes by name: see `supervise.process_limits`."""
    began: float = 0.0
    """`time.monotonic` at its start."""

    @property
    def completed(self) -> bool:
        return self.blamed is None and not self.stopped

    @property
    def suspects(self) -> tuple[str, ...]:
        """The failed role, then the other roles that hung, because any rank that hangs may be the cause."""
        if self.blamed is None:
            return ()
        hung = [name for name, role in self.roles.items() if role.ending is Ending.HUNG]
        return tuple(dict.fromkeys((self.blamed, *hung)))

    @property
    def records(self) -> Mapping[str, Mapping[str, Json]]:
        """The records of each role."""
        return {name: role.records for name, role in self.roles.items()}

    def follow_up(self, name: str, roles: Mapping[str, Role], **changed: Json) -> Probe:
        """A probe on the same devices, with the same deadline and launch, and with these parameters
        ``changed``."""
        params = {**self.params, **changed}
        return Probe(name, roles, self.devices, params, self.deadline_s, launch=self.launch)


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the inventory: a name from the closed set (``nvidia-driver``), its value, and its source.

    ``value`` is None if the fact was not found; ``source`` then says what was searched.
    """

    name: str
    value: str | None
    source: str


class Effect(enum.Enum):
    """The effect of an environment variable in the versions found on a node."""

    WORKS = "works"
    UNKNOWN = "cannot tell"
    """It is not known whether this version reads the variable."""
    UNUSED = "unused"
    """The library that would read the variable was not found."""
    INVALID = "invalid value"
    DEAD = "dead"
    """This version does not read the variable."""
    MISSPELT = "misspelt"

    @property
    def is_mistake(self) -> bool:
        """Whether the variable has no effect although it is set."""
        return self in (Effect.INVALID, Effect.DEAD, Effect.MISSPELT)


@dataclass(frozen=True, slots=True)
class Setting:
    """A set environment variable: where it is set, its effect, and the variable to set instead."""

    name: str
    value: str
    where: str
    effect: Effect
    says: str
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Unexpected:
    """A fact that differs from the site config's expectation, with ``file:line`` of the expectation."""

    name: str
    found: str
    wanted: str
    where: str
    why: str = ""
    status: Status = Status.WARN
    """Status of the finding: what the site config says with ``else``."""


class Relation(enum.Enum):
    """Relation between a known issue's versions and the probes' results."""

    CONFIRMED = "confirmed"
    """The version is affected, and the probe is bad."""
    LATENT = "latent"
    """The version is affected; the probe is fine or was not run."""
    NEW = "new"
    """The probe fails as the issue describes, although the version is not affected: a new finding."""
    UNKNOWN = "cannot tell"
    """The probe is bad; the version or the affected range is unknown, or the finding alone, such as growth,
    does not show which fault it is."""


@dataclass(frozen=True, slots=True)
class FindingRef:
    """Which finding of a report: its key, where it was seen, and what distinguishes it from others of this
    key."""

    key: str
    """`Result.key`: ``ipc-release.not-returned``."""
    subject: str
    probe: str
    repetition: int
    identity: tuple[str, ...]
    """`Finding.identity`: findings of one key differ in their texts, such as the role."""


@dataclass(frozen=True, slots=True)
class Join:
    """A known issue that is relevant to this run, with the reason."""

    issue: str
    title: str
    relation: Relation
    reason: str
    remedy: str = ""
    checks: tuple[str, ...] = ()
    """Checks of this run that are evidence for or against the issue."""
    subjects: tuple[str, ...] = ()
    component: str = ""
    """The issue's component, which is also the name of the facts with its version."""
    findings: tuple[FindingRef, ...] = ()
    """The findings of this run that show the issue; empty if it is latent."""


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """The report's entry for a requested check."""

    id: str
    title: str
    tier: Tier
    subject: Subject | None = None
    """What a PASS of the check is about; None if not about what processes share."""


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of a series, with a value for each point."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on a series' axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Series:
    """Bytes over time or over rounds, as recorded by a probe, for plots.

    ``axis`` is the unit of the points ``at``: ``seconds`` or ``iteration``.
    """

    title: str
    axis: str
    at: tuple[float, ...]
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with its check, subject, probe and the ends of its roles."""

    check: str
    finding: Finding
    devices: tuple[str, ...] = ()
    """Device labels: none for the node, one label for a device, two for a pair, more for a group."""
    probe: str = ""
    elapsed_s: float = 0.0
    roles: tuple[RoleOutcome, ...] = ()
    logs: str = ""
    """Directory of the probe's logs below the kept logs; empty if none were kept."""
    repetition: int = 1
    """Number of the repetition, from 1, if probes were repeated."""
    stopped: str = ""
    """Why the probe was not run or not completed: ``budget`` or ``interrupted``; empty otherwise."""
    series: tuple[Series, ...] = ()
    """Time series of the result's probe, stored with the first of the probe's results."""
    started_s: float = 0.0
    """Seconds from the start of the run to that of the probe; 0 if it was not started."""

    @property
    def key(self) -> str:
        """The finding's stable name: ``ipc-release.not-returned``."""
        return f"{self.check}.{self.finding.key}"

    @property
    def subject(self) -> str:
        return subject_label(self.devices)

    @property
    def ref(self) -> FindingRef:
        return FindingRef(self.key, self.subject, self.probe, self.repetition, self.finding.identity)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found; renderers turn it into text without adding anything."""

    host: str
    started: str
    """Time at which the run started, in ISO 8601 with offset."""
    elapsed_s: float
    tier: Tier
    tool_version: str
    devices: tuple[Device, ...]
    inventory: tuple[Fact, ...]
    checks: tuple[CheckInfo, ...]
    results: tuple[Result, ...]
    joins: tuple[Join, ...] = ()
    simulated: str = ""
    """Name of the simulated profile; empty on a real node."""
    interrupted: bool = False
    probes_run: int = 0
    """Number of probes run, not counting discovery."""
    needs_gpu: bool = True
    """Whether the request needs a GPU."""
    stack: tuple[Fact, ...] = ()
    """The MPI library used for messages, and the fabric libraries that its ranks had loaded."""
    known_issues: str = ""
    """Edition of the known issues; two reports with the same edition used the same database."""
    processes: int = 0
    """Number of processes that were started to use a driver."""
    initialisations: int = 0
    """Number of driver initialisations in these processes, which take most of a run's time."""
    whole: bool = False
    """Whether all checks of the tier were requested, on all GPUs, which a verdict on the node needs."""

    @property
    def nothing_tested(self) -> bool:
        """Whether the request needs a GPU but no probe ran."""
        return self.needs_gpu and not self.probes_run

    def worst(self) -> Status:
        return max((r.finding.status for r in self.results), key=lambda s: s.severity, default=Status.SKIP)


class Exit(enum.IntEnum):
    """Exit codes shared by all commands; each package's ``MEANINGS`` explains its own.

    ``NOTHING``: nothing was tested, compared or read.
    """

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING = 3
    WARN = 10
    ERROR = 11
    FAIL = 12
    INTERRUPTED = 130
