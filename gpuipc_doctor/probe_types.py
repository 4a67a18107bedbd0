"""What a check asks for, a probe, and how it ended. Values without I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuipc_doctor.model import Device, DriverFault, Json

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
    alone_at_first: bool = False
    """Even so, the roles need their devices alone until all of them called `Worker.share_devices`."""
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
    shares: bool = field(default=False, metadata=_UNREPORTED)
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
