"""What a check is, and what it plans with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import ClassVar

from gpuipc_doctor.api.allocator import installed
from gpuipc_doctor.model import (
    Device,
    FabricStack,
    Fact,
    Finding,
    Join,
    Json,
    Launch,
    MemoryShare,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    Setting,
    Tier,
    Unexpected,
)


@dataclass(frozen=True)
class Context:
    """What a check may plan with: the devices that were selected and have what the check requires."""

    devices: tuple[Device, ...] = ()
    inventory: tuple[Fact, ...] = ()
    version_matches: tuple[Join, ...] = ()
    """Known issues whose bad version range holds a version found on this node."""
    mpi: MpiStack | None = None
    """For checks with ``needs_mpi``: an MPI that takes the device pointers of all ``devices``."""
    fabric: FabricStack = field(default_factory=FabricStack)
    across: Launch | None = None
    """For checks that go ``across``: how two processes start on two nodes, where that was asked for."""
    settings: tuple[Setting, ...] = ()
    """Environment variables that are set, and what each does in the versions of this node."""
    unexpected: tuple[Unexpected, ...] = ()
    """What of the node is not as its site expects it."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """This check's ``options`` of the site config."""
    tier: Tier = Tier.ACCEPTANCE
    """How long the run may take."""
    harmful: frozenset[str] = frozenset()
    """Steps (`Probe.harms`) that must not be done on this node, for checks that can leave out some."""
    memory: MemoryShare = field(default_factory=MemoryShare)
    """How much device memory a check may come to hold on one device."""

    @property
    def allocators(self) -> tuple[tuple[Device, str], ...]:
        """Each allocator (a name for `Worker.allocator`) with a device to test it on.

        What they do is the library's doing rather than a device's, so each has one device, and the devices of
        a backend share the libraries: most of their probes have a device to themselves. In ``soak`` each has
        all.
        """
        of_backend: dict[str, list[Device]] = {}
        for device in self.devices:
            of_backend.setdefault(device.backend, []).append(device)
        chosen = [
            (device, name)
            for backend, devices in of_backend.items()
            for number, names in enumerate(installed(self.inventory, backend))
            for name in names
            for device in (devices if self.tier is Tier.SOAK else [devices[number % len(devices)]])
        ]
        return tuple(sorted(chosen, key=lambda one: self.devices.index(one[0])))

    def room(self, devices: Iterable[Device]) -> int:
        """Bytes that a check may come to hold on each of these devices."""
        return self.memory.of(min(device.total_bytes for device in devices))

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
    def rank_pairs(self) -> tuple[tuple[Device, Device], ...]:
        """Each two devices of a backend once, rank 0's first, that the launcher shows to the two ranks."""
        chosen: dict[frozenset[str], tuple[Device, Device]] = {}
        for pair in self.pairs:
            if self.mpi is None or self.mpi.launch.can_use(pair):
                chosen.setdefault(frozenset(device.label for device in pair), pair)
        return tuple(chosen.values())

    @property
    def a_pair_or_device_of_each_backend(self) -> tuple[tuple[Device, ...], ...]:
        """For what is the library's doing rather than a device's: the first pair, else the first device."""
        chosen: dict[str, tuple[Device, ...]] = {}
        for devices in (*self.rank_pairs, *((device,) for device in self.devices)):
            chosen.setdefault(devices[0].backend, devices)
        return tuple(chosen.values())


@dataclass(frozen=True, slots=True)
class Control:
    """That a check leaves out what another one tests, so that what it finds tells where to look.

    ``right`` and ``wrong`` are said to that one's failures of the same reach, within a node or between nodes,
    where this check has passed, and where it has failed; ``{check}`` stands for its id.
    """

    of: str
    right: str
    wrong: str


class Check(ABC):
    """One question about a node."""

    id: ClassVar[str]
    title: ClassVar[str]
    tier: ClassVar[Tier] = Tier.ACCEPTANCE
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that a device must have for this check."""
    needs_mpi: ClassVar[bool] = False
    """Whether ``Context.mpi`` must be there; without an MPI that can take device pointers, it is a SKIP."""
    uses_fabric: ClassVar[bool] = False
    """Whether it plans with ``Context.fabric``, which is empty for all others."""
    across: ClassVar[bool] = False
    """Whether it asks about two nodes, too, by processes that need no MPI."""
    control: ClassVar[Control | None] = None
    """The check that this one is a control of, if it is one."""
    options: ClassVar[Mapping[str, Json]] = {}
    """The options that a site config may give: by name, the JSON Schema of the value."""
    curable_warnings: ClassVar[frozenset[str]] = frozenset()
    """Keys of its warnings for which workarounds are tried as for a failure."""
    explains_losses: ClassVar[frozenset[str]] = frozenset()
    """Keys of its findings that also explain what processes lose: what is kept of others costs them that."""
    needs_allocators: ClassVar[bool] = False
    """Whether there must be allocators for a device; where no array library is installed, it is a SKIP."""

    @abstractmethod
    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        """Plan the probes, or conclude without one: a finding yielded here speaks of the node."""

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        """Plan follow-up probes after ``failed``, for example the cases that it did not reach."""
        return ()

    def replay(self, failed: ProbeOutcome, without: Collection[str] = ()) -> Probe | None:
        """A short probe of what a completed one found to fail, less these operations; None: it has none."""
        return None

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        """Conclude from one completed probe. A check that yields nothing is reported as an ERROR."""
        raise NotImplementedError(f"check {self.id} plans probes but does not judge them")

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        """What one completed probe recorded over time, for the report and for pictures."""
        return ()
