"""The values that the rooms hand to each other: frozen, free of I/O, importing nothing of ours.

The words are those of the design: a *check* asks for *probes*; a probe runs *roles* in
*workers* and ends in an *outcome*; the check concludes *findings* from it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any, NamedTuple

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


@total_ordering
class Tier(enum.Enum):
    """How long a run may take. A tier includes the ones below it."""

    PROLOG = "prolog"
    ACCEPTANCE = "acceptance"
    SOAK = "soak"

    def __lt__(self, other: Tier) -> bool:
        tiers = list(Tier)
        return tiers.index(self) < tiers.index(other)

    @property
    def label(self) -> str:
        return self.value


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

    @property
    def identity(self) -> str:
        """By what processes find it, however they number it: its uuid, or else its PCI address."""
        return self.uuid or self.pci

    @property
    def has_credible_size(self) -> bool:
        return 0 < self.total_bytes < 2**50


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


class EvidenceKind(enum.Enum):
    """What an item of evidence is."""

    SEEN = "seen"
    """What was seen, more of it or more closely."""
    CONTROL = "control"
    """What was seen where the thing in question was left out."""
    MEASURED = "measured"
    """A figure, and what it would have shown."""
    BEFORE = "before"
    """What a role had recorded before its probe ended early."""
    HOLDER = "holder"
    """Who holds device memory."""
    RERUN = "rerun"
    """What the same probe did when it was run again."""
    TRIAL = "trial"
    """What became of it under a workaround, ``env`` or ``without`` of its values; ``outcome``: a `Trial`."""
    ISSUE = "issue"
    """A known issue that has to do with it; ``values["issue"]`` is its id."""


class Trial(enum.Enum):
    """What became of a failure under a workaround."""

    HELPS = "helps"
    DOES_NOT_HELP = "does not help"
    WORSE = "worse"
    UNKNOWN = "cannot tell"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that speaks for a finding, as data; ``says`` and ``values`` as in `Finding`.

    The kinds that checks make most have a way of their own: ``Evidence.seen("{count} of them", count=3)``.
    """

    kind: EvidenceKind
    says: str
    values: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def seen(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.SEEN, says, values)

    @classmethod
    def control(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.CONTROL, says, values)

    @classmethod
    def measured(cls, says: str, /, **values: Json) -> Evidence:
        return cls(EvidenceKind.MEASURED, says, values)


PLACES = frozenset({"device", "from_device", "to_device", "host", "step"})
"""Names of values that say where something was found: they group findings rather than tell them apart."""

ORDINALS = frozenset({"occurrence"})
"""Names of numbers that are no figures: a call that hung the second time did not hang the third time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check concludes about one subject, as data; `report.sentences` puts it in words.

    ``key`` names what it says, in words of a to z and 0 to 9 joined by hyphens; with the check's id before it
    (`Result.key`) it is the stable name by which findings are grouped, suppressed, compared and matched.
    ``says`` is the sentence with its ``values`` left open: ``"{missing:mib} did not come back after {end}"``.
    ``evidence`` has the most telling first; ``remedy`` says what to do. A SKIP says its reason.
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
        """What findings of one check share that say the same of different places or at different times.

        The key, and the texts among the values: numbers and lists are figures, except `ORDINALS`, and
        `PLACES` say where. What was read from a report of before there were keys has its sentence alone.
        """
        texts = (
            f"{name}={value}"
            for name, value in sorted(self.values.items())
            if (isinstance(value, str) and name not in PLACES) or name in ORDINALS
        )
        return (self.status.value, self.key or self.says, *texts)

    @property
    def issues(self) -> frozenset[str]:
        """The known issues that its evidence names."""
        return frozenset(
            str(item.values.get("issue")) for item in self.evidence if item.kind is EvidenceKind.ISSUE
        )

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
    """Plain text is what was seen."""
    return tuple(Evidence(EvidenceKind.SEEN, one) if isinstance(one, str) else one for one in evidence)


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
    preload: tuple[str, ...] = ()
    """Libraries that the ranks load first, and the launcher does not."""
    ends_badly: bool = False
    """Whether it was seen not to end with its ranks, or not with exit code 0; that is reported once."""
    shows: tuple[frozenset[str], ...] = ()
    """By rank, the labels of the devices that the launcher shows it; empty where each rank sees them all."""

    def can_use(self, devices: Sequence[Device]) -> bool:
        """Whether the launcher shows each rank its device: the first rank the first, and so on."""
        return all(devices[rank % len(devices)].label in shown for rank, shown in enumerate(self.shows))


@dataclass(frozen=True, slots=True)
class Workaround:
    """Environment that may help, or operations to leave out, and in words what it costs.

    ``without`` names operations of a history; who does as ``do`` says has none of these.
    """

    env: Mapping[str, str]
    cost: str
    without: tuple[str, ...] = ()
    do: str = ""


@dataclass(frozen=True, slots=True)
class MpiStack:
    """The MPI of this run: which it is, how its ranks are started, and whether it takes device pointers.

    ``takes`` holds the backends whose device pointers may be given to it. On a simulated node that is every
    backend, since simulated device memory is the host's. ``why_not`` and ``remedy`` are for the others.
    ``ipc_off`` is the environment that turns this MPI's use of GPU IPC off; empty when it has no such switch.
    ``cache_bound`` is the variable that bounds its cache of others' device memory; empty when none is known.
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
    has_gpu_path: bool = False
    """Whether it moves device memory by a way of its own, rather than take a simulated one for the host's."""
    why_not: str = ""
    remedy: str = ""
    ipc_off: Mapping[str, str] = field(default_factory=dict)
    cache_bound: str = ""
    cache_buffers: int | None = None
    """The number of buffers to which that variable is set; None where it is not."""
    cache_in_bytes: bool = False
    """Whether that variable counts bytes."""
    workarounds: tuple[Workaround, ...] = ()
    edges: tuple[int, ...] = ()
    louder: Mapping[str, str] = field(default_factory=dict)
    """Environment that raises the log level of this MPI and its libraries."""
    starts: bool = True
    """Whether its ranks could be started and initialised, where that was tried."""
    ucx: str = ""
    """Version of the UCX that moves this MPI's device memory; empty when none does."""

    def with_env(self, env: Mapping[str, str]) -> Launch:
        """The launch with more environment."""
        return replace(self.launch, env={**self.launch.env, **env})


@dataclass(frozen=True, slots=True)
class Program:
    """A program on the node: its path, and who led to it, in words."""

    file: str
    via: str


@dataclass(frozen=True, slots=True)
class StatedFabric:
    """The fabric that a site says its nodes have, and ``file:line`` of that."""

    name: str
    """``cxi``, ``verbs``, ``tcp`` or ``none``."""
    where: str


@dataclass(frozen=True, slots=True)
class FabricStack:
    """What there is to test libfabric and UCX with, without MPI."""

    programs: Mapping[str, Program] = field(default_factory=dict)
    """By name: ``fi_info``, ``fi_pingpong``, ``ucx_info``, ``ucx_perftest``."""
    why_not: str = ""
    """Where none was looked for."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the site adds to the environment of whoever uses them."""
    stated: StatedFabric | None = None
    adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By fabric (``cxi``, ``verbs``, ``efa``, ``opa``), those that the kernel lists."""


class AtRest(NamedTuple):
    """A device that nobody uses: bytes in use then, None where nobody knows, and how long to wait for it."""

    used: int | None
    patience_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """One isolated execution that a check asks for.

    ``name`` tells the probes of one check on one subject apart (``destroy-context``). ``roles`` maps a
    role's name to a function in the check's file, its own or one of the api's; each runs in a worker of its
    own, all at the same time.
    ``devices`` are the GPUs that every worker of the probe can see, in this order: none for a probe of
    the node, one for a probe of a device, two for a pair, more for a group that is tested as a whole.
    ``params`` reaches the roles as ``Worker.params``. ``deadline_s`` bounds each single operation, in
    seconds, not the probe as a whole.
    An ``exclusive`` probe has its devices to itself, because it watches what everybody does there. In one of
    roles that are ``together``, as ranks are, they spin while they wait for each other. With
    ``launch`` the roles are the ranks of an MPI job, in order, and talk through `Worker.mpi`. ``imports`` are
    the Python modules that the roles will import, or backends whose bindings they will, beside those of the
    devices' backend: they are then imported once for many workers, where that is safe. Roles are
    ``concurrent`` where work in several streams has to run at the same time; the others' contexts have a
    single queue to the device, which costs less. Roles that are ``starters`` start processes of their own
    and load no driver, since no process may be forked from one that has.
    """

    name: str
    roles: Mapping[str, Role]
    devices: tuple[Device, ...] = ()
    params: Mapping[str, Json] = field(default_factory=dict)
    deadline_s: float = 10.0
    exclusive: bool = False
    together: bool = False
    concurrent: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    launch: Launch | None = None
    harms: frozenset[str] = frozenset()
    """What it does that harms nodes of some versions, as known issues of class ``probe-harms`` name it."""
    imports: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of its workers, where no launcher starts them."""

    @property
    def subject(self) -> str:
        return subject_label([device.label for device in self.devices])


def subject_label(labels: Sequence[str]) -> str:
    """``node``, ``cuda:0``, ``cuda:0 > cuda:1`` (exporter's device first), or ``cuda:0,1,2`` for a group."""
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
    UNRECORDED = "unrecorded"
    """It could not write down what it did, so nothing is known of what it found."""
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
    which call of that name in this worker it was, counted from 1, ``step`` the check's own words for what it
    was doing. ``records`` is what the role recorded, also when it died later.
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
class LauncherEnd:
    """How an MPI launcher ended whose ranks had all ended with exit code 0, where not so itself.

    ``exit_code`` is None where it had not ended after ``waited_s`` seconds.
    """

    exit_code: int | None
    waited_s: float
    log_tail: tuple[str, ...] = ()


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
    launcher: LauncherEnd | None = None

    @property
    def completed(self) -> bool:
        return self.blamed is None and not self.stopped

    @property
    def suspects(self) -> tuple[str, ...]:
        """Who is blamed, and after it those that hung with it: of ranks in one call nobody can tell which."""
        if self.blamed is None:
            return ()
        hung = [name for name, role in self.roles.items() if role.ending is Ending.HUNG]
        return tuple(dict.fromkeys((self.blamed, *hung)))

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


@dataclass(frozen=True, slots=True)
class Unexpected:
    """Something on the node is not as its site expects it, and ``file:line`` of what that says."""

    name: str
    found: str
    wanted: str
    where: str
    why: str = ""


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
    component: str = ""
    """What it is an issue of: the name of the facts whose version decides."""


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
    """Device labels: none for the node, one for a device, two for a pair, more for a group."""
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
    def key(self) -> str:
        """``ipc-release.not-returned``: the stable name of what the finding says."""
        return f"{self.check}.{self.finding.key}"

    @property
    def subject(self) -> str:
        return subject_label(self.devices)


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
    """Probes that ran beyond finding the devices."""
    needs_gpu: bool = True
    """Whether what was asked takes a GPU to answer."""
    stack: tuple[Fact, ...] = ()
    """The MPI library that messages went through, and the fabric's libraries that its ranks had loaded."""
    known_issues: str = ""
    """The edition of the known issues that were joined: two reports of one edition knew the same."""

    @property
    def nothing_tested(self) -> bool:
        """Whether GPUs were asked about, and no probe ran on any."""
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
