"""The values that the rooms hand to each other: frozen, free of I/O, importing nothing of ours.

The words are those of the design: a *check* asks for *probes*; a probe runs *roles* in
*workers* and ends in an *outcome*; the check concludes *findings* from it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Json = Any
"""A value that JSON can hold: None, bool, int, float, str, lists and string-keyed dicts of those."""


class Status(enum.Enum):
    """What a finding says. ``FAIL``: the thing under test is bad. ``ERROR``: we could not tell."""

    PASS = "PASS"
    SKIP = "SKIP"
    WARN = "WARN"
    ERROR = "ERROR"
    FAIL = "FAIL"

    @property
    def severity(self) -> int:
        """Rank for "the worst of": PASS 0, SKIP 1, WARN 2, ERROR 3, FAIL 4."""
        return list(Status).index(self)


class Tier(enum.IntEnum):
    """How long a run may take. A tier includes the ones below it."""

    PROLOG = 1
    ACCEPTANCE = 2
    SOAK = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as one backend numbers it.

    ``uuid`` is the driver's own spelling (``GPU-…``) and survives renumbering; ``total_bytes`` is in
    bytes; ``capabilities`` holds words such as ``legacy-ipc`` that checks may require; ``peers`` the labels
    of the devices whose memory this one can reach directly.
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
        """``cuda:0``: what the matrix and the command line call this device."""
        return f"{self.backend}:{self.index}"


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The most device memory that a check may come to hold on one device, whichever of the two is less."""

    fraction: float = 0.05
    """Of what the device has, or has free."""
    most_gib: float = 2.0

    def of(self, nbytes: int) -> int:
        """The share of so many bytes, in bytes."""
        return int(min(self.fraction * nbytes, self.most_gib * 2**30))


@dataclass(frozen=True, slots=True)
class Node:
    """Where workers run. A real node adds nothing; a simulated one lends its libraries and its files.

    ``env`` is added to the workers' environment and to nobody else's; ``root`` stands before ``/proc`` and
    ``/sys`` wherever the inventory reads; ``simulated`` is the profile's name.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    root: str = "/"
    simulated: str = ""
    rank_env: Mapping[str, str] = field(default_factory=dict)
    """Added, too, to the environment of workers that are MPI ranks."""
    visible: Mapping[str, str] = field(default_factory=dict)
    """Added to that of workers whose probe is about no device: which GPUs they may see at all."""


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
    """A figure that a later run may be held against, such as a latency: one for each probe, not each round.

    Within a probe, rounds share a processor and a placement; only whole probes are independent.
    """

    name: str
    value: float
    unit: str
    more_is_better: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.name} is {self.value}, which is no measurement")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check concludes about one subject.

    ``summary`` is one line; ``evidence`` further lines, most telling first; ``remedy`` says what to do.
    A SKIP says its reason in ``summary``.
    """

    status: Status
    summary: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    measured: tuple[Measurement, ...] = ()

    @classmethod
    def ok(cls, summary: str, *evidence: str, measured: Iterable[Measurement] = ()) -> Finding:
        return cls(Status.PASS, summary, evidence, measured=tuple(measured))

    @classmethod
    def skip(cls, reason: str, *evidence: str, remedy: str = "") -> Finding:
        return cls(Status.SKIP, reason, evidence, remedy)

    @classmethod
    def warn(cls, summary: str, *evidence: str, remedy: str = "") -> Finding:
        return cls(Status.WARN, summary, evidence, remedy)

    @classmethod
    def error(cls, summary: str, *evidence: str, remedy: str = "") -> Finding:
        return cls(Status.ERROR, summary, evidence, remedy)

    @classmethod
    def fail(cls, summary: str, *evidence: str, remedy: str = "") -> Finding:
        return cls(Status.FAIL, summary, evidence, remedy)


Role = Callable[[Any], None]
"""A role function: it receives the ``api.Worker`` of its process and returns when its part is done."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an MPI launcher starts ranks: a command with ``{ranks}`` in it, and environment to add.

    On several ``nodes`` each gets one rank, and a device is the one of the same number on the rank's node.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Workaround:
    """Environment that may help, and in words what it costs."""

    env: Mapping[str, str]
    cost: str


@dataclass(frozen=True, slots=True)
class MpiStack:
    """The MPI of this run: which it is, how its ranks are started, and whether it takes device pointers.

    ``takes`` holds the backends whose device pointers may be given to it. On a simulated node that is every
    backend, since simulated device memory is the host's. ``why_not`` and ``remedy`` are for the others.
    ``ipc_off`` is the environment that turns this MPI's use of GPU IPC off; empty when it has no such switch.
    ``workarounds`` are the settings, right for this version, that may help when it fails, cheapest first.
    ``edges`` are the message sizes, in bytes, at which it changes its protocol.
    """

    family: str
    version: str
    library: str
    launch: Launch
    across: Launch | None = None
    """How ranks are started on several nodes, where that was asked for."""
    takes: frozenset[str] = frozenset()
    why_not: str = ""
    remedy: str = ""
    ipc_off: Mapping[str, str] = field(default_factory=dict)
    workarounds: tuple[Workaround, ...] = ()
    edges: tuple[int, ...] = ()
    louder: Mapping[str, str] = field(default_factory=dict)
    """The environment in which it and what it uses write more into their logs."""
    ucx: str = ""
    """Version of the UCX that moves this MPI's device memory; empty when none does."""

    def with_env(self, env: Mapping[str, str]) -> Launch:
        """The launch with more environment."""
        return replace(self.launch, env={**self.launch.env, **env})


@dataclass(frozen=True, slots=True)
class Probe:
    """One isolated execution that a check asks for.

    ``name`` tells the probes of one check on one subject apart (``destroy-context``). ``roles`` maps a
    role's name to a function of the check's file; each runs in a worker of its own, all at the same time.
    ``devices`` are the GPUs that every worker of the probe can see, in this order: none for a probe of
    the node, one for a probe of a device, two for a pair. ``params`` reaches the roles as
    ``Worker.params``. ``deadline_s`` bounds each single operation, in seconds, not the probe as a whole.
    An ``exclusive`` probe has its devices to itself, because it watches what everybody does there. With
    ``launch`` the roles are the ranks of an MPI job, in order, and talk through `Worker.mpi`.
    """

    name: str
    roles: Mapping[str, Role]
    devices: tuple[Device, ...] = ()
    params: Mapping[str, Json] = field(default_factory=dict)
    deadline_s: float = 10.0
    exclusive: bool = False
    launch: Launch | None = None

    @property
    def subject(self) -> str:
        return subject_label(self.devices)


def subject_label(devices: tuple[Device, ...]) -> str:
    """``node``, ``cuda:0`` or ``cuda:0 > cuda:1`` (exporter's device first)."""
    return " > ".join(device.label for device in devices) or "node"


class Ending(enum.Enum):
    """How a role's worker ended."""

    COMPLETED = "completed"
    DRIVER_ERROR = "driver error"
    EXCEPTION = "exception"
    UNAVAILABLE = "unavailable"
    """Its driver or its GPU could not be used, or no longer."""
    UNFIT = "unfit"
    """Its GPU lacks what the check requires."""
    CRASHED = "crashed"
    HUNG = "hung"
    UNKILLABLE = "unkillable"
    PEER_LOST = "peer lost"
    """Its partner went away first: a casualty, never the culprit."""
    NOT_STARTED = "not started"
    """It did not reach its first journal line within the start-up budget."""
    STOPPED = "stopped"
    """We ended it because another role had ended badly or the run was interrupted."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one operation that returned to one role: how many, and the seconds they took together."""

    operation: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RoleOutcome:
    """What one role left behind.

    ``operation`` is the call that was armed when the worker ended (``cuIpcOpenMemHandle``), ``occurrence``
    its how-manieth call in this worker, counted from 1, ``step`` the check's own words for what it was
    doing. ``records`` is what the role recorded, also when it died later.
    """

    role: str
    ending: Ending
    pid: int = 0
    operation: str = ""
    occurrence: int = 0
    step: str = ""
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
    """Until it began with what it was started for: the interpreter, imports, for a rank its launcher."""
    calls: tuple[Calls, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """How a probe ended: every role's outcome, and which of them is to blame when it did not complete."""

    probe: str
    devices: tuple[Device, ...]
    params: Mapping[str, Json]
    roles: Mapping[str, RoleOutcome]
    blamed: str | None
    elapsed_s: float
    deadline_s: float = 0.0
    logs: str = ""
    stopped: str = ""
    """Why we ended the probe before it was done (``budget``, ``interrupted``); empty otherwise."""
    launch: Launch | None = None
    """As the probe had it."""

    @property
    def completed(self) -> bool:
        return self.blamed is None and not self.stopped

    @property
    def records(self) -> Mapping[str, Mapping[str, Json]]:
        """What each role recorded, by role."""
        return {name: role.records for name, role in self.roles.items()}


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the inventory: a name of the closed set (``nvidia-driver``), its value, where it was read.

    ``value`` is None when it was not found; ``source`` then says where it was looked for.
    """

    name: str
    value: str | None
    source: str


class Effect(enum.Enum):
    """What an environment variable does in the versions found on a node."""

    WORKS = "works"
    UNKNOWN = "cannot tell"
    """Whether this version has it is not known."""
    UNUSED = "unused"
    """The library that would read it was not found."""
    INVALID = "invalid value"
    DEAD = "dead"
    """This version does not know it."""
    MISSPELT = "misspelt"

    @property
    def is_mistake(self) -> bool:
        """Whether somebody believes in an effect that there is not."""
        return self in (Effect.INVALID, Effect.DEAD, Effect.MISSPELT)


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that is set: where, what it does here in words, and what to set instead."""

    name: str
    value: str
    where: str
    effect: Effect
    says: str
    instead: str = ""


class Relation(enum.Enum):
    """A known issue's versions joined with what the probes saw."""

    CONFIRMED = "confirmed"
    """Version in the bad range, probe bad."""
    LATENT = "latent"
    """Version in the bad range, probe fine (or not run)."""
    NEW = "new"
    """Version outside the range, probe bad in this issue's way: a new finding."""
    UNKNOWN = "cannot tell"
    """The version, or the range, is not known; the probe is bad."""


@dataclass(frozen=True, slots=True)
class Join:
    """One known issue that has something to do with this run, and why."""

    issue: str
    title: str
    relation: Relation
    reason: str
    remedy: str = ""
    checks: tuple[str, ...] = ()
    """The checks of this run that speak for or against it."""
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """What the report says of a check that was asked for."""

    id: str
    title: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of a series: a value for each of its points."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """Where on a series' axis something happened."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Series:
    """Bytes over time, or over rounds, as a probe recorded them: what a picture is drawn from.

    ``axis`` says what the points ``at`` are: ``seconds``, ``iteration``.
    """

    title: str
    axis: str
    at: tuple[float, ...]
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One finding in its place: which check, which subject, which probe, and how its roles ended."""

    check: str
    finding: Finding
    devices: tuple[str, ...] = ()
    """Device labels: none for the node, one for a device, two for a pair."""
    probe: str = ""
    elapsed_s: float = 0.0
    roles: tuple[RoleOutcome, ...] = ()
    logs: str = ""
    """Directory of this probe's logs below the kept logs, empty when nothing was kept."""
    repetition: int = 1
    """Which run of its probe it is from, where every probe was run several times."""
    stopped: str = ""
    """Why its probe was not run, or not to its end: ``budget``, ``interrupted``; empty otherwise."""
    series: tuple[Series, ...] = ()
    """What its probe recorded over time, with the first of the probe's results."""

    @property
    def subject(self) -> str:
        return " > ".join(self.devices) or "node"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one run learned; the renderers turn it into text and add nothing."""

    host: str
    started: str
    """ISO 8601 with offset."""
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
    """Probes that ran beyond finding the devices; 0 means that nothing was tested."""

    def worst(self) -> Status:
        return max((r.finding.status for r in self.results), key=lambda s: s.severity, default=Status.SKIP)
