"""All that a check file may import.

A check is one file with one `Check` and its role functions. ``probes`` plans, role functions run in
workers, ``judge`` is pure and sees completed probes only; what did not complete is judged by the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import ClassVar, NoReturn, Protocol

from gpuipc_doctor.allocator import Allocator, Block, Stream, installed
from gpuipc_doctor.data import difference, mib, pattern
from gpuipc_doctor.gpu import (
    REUSES,
    BackendUnavailable,
    Buffer,
    DriverError,
    Gpu,
    GpuContext,
    GpuStream,
    Memory,
    Pool,
    PoolMemory,
)
from gpuipc_doctor.gpu import Mapping as IpcMapping
from gpuipc_doctor.model import (
    Device,
    Fact,
    Finding,
    Join,
    Json,
    Launch,
    Line,
    Mark,
    MemoryShare,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    Setting,
    Status,
    Tier,
)
from gpuipc_doctor.samples import MemorySamples
from gpuipc_doctor.samples import series as memory_series
from gpuipc_doctor.trend import Slope, slope

__all__ = [
    "REUSES",
    "Allocator",
    "BackendUnavailable",
    "Block",
    "Buffer",
    "Check",
    "Context",
    "Device",
    "DriverError",
    "Finding",
    "Gpu",
    "GpuContext",
    "GpuStream",
    "IpcMapping",
    "Json",
    "Launch",
    "Line",
    "Mark",
    "Memory",
    "MemorySamples",
    "MemoryShare",
    "Mpi",
    "MpiStack",
    "Peer",
    "Pool",
    "PoolMemory",
    "Probe",
    "ProbeOutcome",
    "Series",
    "Slope",
    "Status",
    "Stream",
    "Tier",
    "Worker",
    "difference",
    "memory_series",
    "mib",
    "pattern",
    "slope",
]


@dataclass(frozen=True)
class Context:
    """What a check may plan with: the devices that were selected and have what the check requires."""

    devices: tuple[Device, ...] = ()
    inventory: tuple[Fact, ...] = ()
    version_matches: tuple[Join, ...] = ()
    """Known issues whose bad version range holds a version found on this node."""
    mpi: MpiStack | None = None
    """For checks with ``needs_mpi``: an MPI that takes the device pointers of all ``devices``."""
    settings: tuple[Setting, ...] = ()
    """Environment variables that are set, and what each does in the versions of this node."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """This check's ``options`` of the site config."""
    tier: Tier = Tier.ACCEPTANCE
    """How long the run may take."""
    memory: MemoryShare = field(default_factory=MemoryShare)
    """How much device memory a check may come to hold on one device."""

    @property
    def allocators(self) -> tuple[tuple[Device, str], ...]:
        """Each allocator (a name for `Worker.allocator`) with a device to test it on.

        What they do is the library's doing rather than a device's, so it is the first device of each
        backend; in ``soak`` all of them.
        """
        first = {device.backend: device for device in reversed(self.devices)}
        devices = self.devices if self.tier is Tier.SOAK else tuple(first.values())
        return tuple(
            (device, name) for device in devices for name in installed(self.inventory, device.backend)
        )

    @property
    def subjects(self) -> tuple[tuple[Device, ...], ...]:
        """What a check of devices and pairs is to probe in this tier: devices, then pairs of them.

        ``prolog``: no pairs. ``acceptance``: the pairs of `neighbours`, for with eight GPUs all 56 would
        take minutes. ``soak``: all `pairs`.
        """
        pairs = {Tier.PROLOG: (), Tier.ACCEPTANCE: self.neighbours, Tier.SOAK: self.pairs}[self.tier]
        return (*((device,) for device in self.devices), *pairs)

    @property
    def pairs(self) -> tuple[tuple[Device, Device], ...]:
        """Ordered pairs (exporter's device, importer's device) within one backend."""
        return tuple((a, b) for a, b in permutations(self.devices, 2) if a.backend == b.backend)

    @property
    def neighbours(self) -> tuple[tuple[Device, Device], ...]:
        """Of `pairs`, each device with the next of its backend, and of more than two the last with the first.

        Two devices are one such pair; of more, each exports once and imports once.
        """
        rings: dict[str, list[Device]] = {}
        for device in self.devices:
            rings.setdefault(device.backend, []).append(device)
        closed = (ring if len(ring) < 3 else [*ring, ring[0]] for ring in rings.values())
        return tuple(pair for ring in closed for pair in pairwise(ring))

    @property
    def a_pair_or_device_of_each_backend(self) -> tuple[tuple[Device, ...], ...]:
        """For what is the library's doing rather than a device's: the first pair, else the first device."""
        chosen: dict[str, tuple[Device, ...]] = {}
        for devices in (*self.pairs, *((device,) for device in self.devices)):
            chosen.setdefault(devices[0].backend, devices)
        return tuple(chosen.values())


class Check(ABC):
    """One question about a node."""

    id: ClassVar[str]
    title: ClassVar[str]
    tier: ClassVar[Tier] = Tier.ACCEPTANCE
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that a device must have for this check."""
    needs_mpi: ClassVar[bool] = False
    """Whether ``Context.mpi`` must be there; without an MPI that can take device pointers, it is a SKIP."""
    needs_allocators: ClassVar[bool] = False
    """Whether there must be allocators for a device; where no array library is installed, it is a SKIP."""

    @abstractmethod
    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        """Plan the probes, or conclude without one: a finding yielded here speaks of the node."""

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        """What else to probe after ``failed`` did not complete, such as what it had not come to yet."""
        return ()

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        """Conclude from one completed probe. A check that yields nothing is reported as an ERROR."""
        raise NotImplementedError(f"check {self.id} plans probes but does not judge them")

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        """What one completed probe recorded over time, for the report and for pictures."""
        return ()


class Peer(Protocol):
    """The other role of a two-role probe. Losing it ends this role as a casualty, not as a culprit."""

    def send(self, value: Json | bytes) -> None: ...
    def recv(self) -> Json:
        """Wait for the partner's next value (`bytes` arrive as `bytes`)."""

    def wait_gone(self) -> None:
        """Wait until the partner's process has ended."""


class Mpi(Protocol):
    """``MPI_COMM_WORLD`` as a rank sees it. Addresses may be the host's or a GPU's; sizes are bytes.

    An MPI call that fails raises `DriverError`, as a driver call does.
    """

    rank: int
    size: int

    @property
    def node(self) -> str:
        """The name of the node that this rank is on."""

    def library_version(self) -> str: ...
    def send(self, address: int, nbytes: int, to: int, tag: int = 0) -> None: ...
    def recv(self, address: int, nbytes: int, source: int, tag: int = 0) -> None: ...
    def isend(self, address: int, nbytes: int, to: int, tag: int = 0) -> object:
        """Start sending; what it returns goes to ``wait``."""

    def irecv(self, address: int, nbytes: int, source: int, tag: int = 0) -> object: ...
    def wait(self, requests: Sequence[object]) -> None: ...
    def barrier(self) -> None: ...
    def ping_pong(self, address: int, nbytes: int, partner: int, rounds: int) -> list[float]:
        """Blocking messages there and back, armed as one operation; seconds one way for each round."""

    def finalize(self) -> None:
        """End MPI. The worker does it where the role function has not."""


class Worker(Protocol):
    """The process in which a role function runs, as the role function sees it."""

    @property
    def role(self) -> str: ...
    @property
    def gpu(self) -> Gpu:
        """This role's device: the probe's only one, or of several the first role's first, and so on."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All devices of the probe, in the probe's order."""

    def host_memory(self, nbytes: int) -> Memory:
        """Ordinary memory of this process, as zeros."""

    def allocator(self, name: str) -> Allocator:
        """One of `Context.allocators` on ``gpu``; imports its library, which may take seconds."""

    def clock(self) -> float:
        """Seconds since some time before this process began."""

    @property
    def peer(self) -> Peer: ...
    @property
    def mpi(self) -> Mpi:
        """MPI, initialised by the first use, for roles that are ranks."""

    @property
    def params(self) -> Mapping[str, Json]: ...
    def discover(self, backend: str) -> dict[str, Json]:
        """Initialise a backend's driver: its ``devices`` and ``facts``, as JSON.

        ``on_bus`` is the number of its GPUs that the node's PCI bus lists, ``hiding`` the variables that
        hide devices from this process.
        """

    def mpi_facts(self, library: str | None, backends: Sequence[str]) -> dict[str, Json]:
        """Load an MPI library (the one that mpi4py finds, when None) without initialising it: see
        `mpi.awareness.report`. Raises `BackendUnavailable`."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Say in the check's own words what follows; a failure inside names it beside the driver call."""

    def armed(self, operation: str) -> AbstractContextManager[None]:
        """Blame what ends this process inside the block on ``operation``. GPU calls arm themselves."""

    def record(self, **facts: Json) -> None:
        """Keep facts for ``judge``; they survive a later crash of this worker."""

    def tell(self, news: Json) -> None:
        """Tell whoever listens to this probe, now. For one that goes on and on: its journal begins anew."""

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Ask ``condition`` again and again until it holds or ``limit_s`` seconds are over; says which."""

    def die(self, signal_name: str = "SIGKILL") -> NoReturn:
        """End this process by a signal as part of the procedure; the role counts as completed."""
