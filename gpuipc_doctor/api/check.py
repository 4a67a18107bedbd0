"""The check protocol and the types for planning."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import ClassVar

from gpuipc_doctor.api.allocator import installed
from gpuipc_doctor.model import Device, Fact, Finding, Json, MemoryShare, Setting, Subject, Tier, Unexpected
from gpuipc_doctor.probe_types import (
    CollectiveStack,
    FabricStack,
    Launch,
    MpiStack,
    Probe,
    ProbeOutcome,
    Workaround,
)
from gpuipc_doctor.report_types import Join, Series

SEARCH_FRACTION = 0.6
"""Fraction of the remaining time for a search; the rest is for replaying its result."""


@dataclass(frozen=True)
class Context:
    """What a check knows when it plans. ``devices``: the selected devices with the capabilities that it
    requires."""

    devices: tuple[Device, ...] = ()
    inventory: tuple[Fact, ...] = ()
    version_matches: tuple[Join, ...] = ()
    """Known issues whose affected versions include a version found on this node."""
    mpi: MpiStack | None = None
    """For checks with ``needs_mpi``: an MPI that accepts device pointers on all of ``devices``."""
    fabric: FabricStack = field(default_factory=FabricStack)
    collectives: CollectiveStack = field(default_factory=CollectiveStack)
    """For checks with ``uses_collectives``: the node's NCCL and RCCL."""
    across: Launch | None = None
    """For checks with ``across``: how to start two processes on two nodes, if that is requested."""
    settings: tuple[Setting, ...] = ()
    """The environment variables that are set, each with its effect in this node's versions."""
    lacking: tuple[str, ...] = ()
    """Settings missing on this node that would help diagnose a hanging job."""
    unexpected: tuple[Unexpected, ...] = ()
    """Versions of the node that differ from the site config's expectations."""
    unread: tuple[Fact, ...] = ()
    """Versions that are newer than what the database of known issues has read; their sources say so."""
    unmet: tuple[Finding, ...] = ()
    """Findings on the site config's other expectations of this node."""
    states_links: bool = False
    """Whether the site config states the number of NVLinks, which is then judged by that."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """This check's ``options`` of the site config."""
    tier: Tier = Tier.ACCEPTANCE
    """The tier of the run."""
    harmful: frozenset[str] = frozenset()
    """Harmful steps (`Probe.harms`) that must not run on this node, for checks that can omit them."""
    memory: MemoryShare = field(default_factory=MemoryShare)
    """Maximum device memory that a check may hold on one device."""
    simulated: bool = False
    """Whether the node is simulated: no library but the drivers can use its GPUs."""
    time_left_s: float = math.inf
    """Seconds left of the run's budget when the probes are planned."""

    def within_budget(self, seconds: float) -> float:
        """Shorten a search so that time remains to replay its result."""
        return min(seconds, SEARCH_FRACTION * self.time_left_s)

    @property
    def allocators(self) -> tuple[tuple[Device, str], ...]:
        """The allocators to test, as (device, name for `Worker.allocator`).

        Each allocator is tested on one device, in ``soak`` on every device. Different libraries get different
        devices where possible, so that most probes have a device to themselves.
        """
        chosen = [
            (device, name)
            for devices in self.devices_of_each_backend
            for number, names in enumerate(installed(self.inventory, devices[0].backend))
            for name in names
            for device in (devices if self.tier is Tier.SOAK else [devices[number % len(devices)]])
        ]
        return tuple(sorted(chosen, key=lambda one: self.devices.index(one[0])))

    def room(self, devices: Iterable[Device]) -> int:
        """Bytes that a check may hold on each of these devices."""
        return self.memory.of(min(device.total_bytes for device in devices))

    @property
    def devices_of_each_backend(self) -> tuple[tuple[Device, ...], ...]:
        """For each backend, its devices."""
        of_backend: dict[str, list[Device]] = {}
        for device in self.devices:
            of_backend.setdefault(device.backend, []).append(device)
        return tuple(map(tuple, of_backend.values()))

    @property
    def subjects(self) -> tuple[tuple[Device, ...], ...]:
        """The devices and pairs to probe in this tier.

        ``prolog``: no pairs. ``acceptance``: the pairs of `neighbours`. ``soak``: all `pairs`; for eight GPUs
        these are 56 and take minutes.
        """
        pairs = {Tier.PROLOG: (), Tier.ACCEPTANCE: self.neighbours, Tier.SOAK: self.pairs}[self.tier]
        return (*((device,) for device in self.devices), *pairs)

    @property
    def exporters(self) -> tuple[tuple[Device, ...], ...]:
        """For each device, one subject in which it exports: to the next device of its backend that has peer
        access, else to itself. For probes that end processes, of which each costs a driver initialisation;
        in ``soak``, all `subjects`."""
        if self.tier is Tier.SOAK:
            return self.subjects
        chosen: list[tuple[Device, ...]] = []
        for device in self.devices:
            place = self.devices.index(device)
            others = [*self.devices[place + 1 :], *self.devices[:place]]
            to = next((other for other in others if device.label in other.peers), None)
            chosen.append((device, to) if to else (device,))
        return tuple(chosen)

    @property
    def pairs(self) -> tuple[tuple[Device, Device], ...]:
        """Ordered pairs (exporter's device, importer's device) within one backend."""
        return tuple((a, b) for a, b in permutations(self.devices, 2) if a.backend == b.backend)

    @property
    def neighbours(self) -> tuple[tuple[Device, Device], ...]:
        """Pairs of each device with the next one of its backend.

        With three devices or more, the last is paired with the first, so that each exports once and imports
        once.
        """
        rings = self.devices_of_each_backend
        closed = (ring if len(ring) < 3 else (*ring, ring[0]) for ring in rings)
        return tuple(pair for ring in closed for pair in pairwise(ring))

    @property
    def rank_pairs(self) -> tuple[tuple[Device, Device], ...]:
        """Pairs of a backend's devices shown to the two ranks, each pair once; rank 0's device is the
        first."""
        chosen: dict[frozenset[str], tuple[Device, Device]] = {}
        for pair in self.pairs:
            if self.mpi is None or self.mpi.launch.can_use(pair):
                chosen.setdefault(frozenset(device.label for device in pair), pair)
        return tuple(chosen.values())

    @property
    def a_pair_or_device_of_each_backend(self) -> tuple[tuple[Device, ...], ...]:
        """For each backend, its first pair or, without a pair, its first device: enough to test a library."""
        chosen: dict[str, tuple[Device, ...]] = {}
        for devices in (*self.rank_pairs, *((device,) for device in self.devices)):
            chosen.setdefault(devices[0].backend, devices)
        return tuple(chosen.values())


@dataclass(frozen=True, slots=True)
class Control:
    """Value of `Check.control`: the check repeats the check ``of`` without the suspected part.

    The failures of ``of`` get the sentence ``right`` if the control passed, and ``wrong`` if it failed. Both
    checks must have run within a node, or both between nodes. ``{check}`` stands for the control's id.
    """

    of: str
    right: str
    wrong: str


class Check(ABC):
    """One question about a node.

    Most checks have an id, a title, what they require, `probes` and `judge`. Each other attribute is what the
    engine must know before the check plans, or what it does after the check has judged.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    tier: ClassVar[Tier] = Tier.ACCEPTANCE
    subject: ClassVar[Subject | None] = Subject.MEMORY
    """What the verdict on the node calls tested after this check; None: none of these."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that a device must have for this check."""
    needs_mpi: ClassVar[bool] = False
    """Whether the check needs ``Context.mpi``; without an MPI that accepts device pointers, it is skipped."""
    uses_fabric: ClassVar[bool] = False
    """Whether the check plans with ``Context.fabric``, which is looked for only if a requested check does."""
    uses_collectives: ClassVar[bool] = False
    """Whether the check plans with ``Context.collectives``, looked for only if a requested check does."""
    workarounds: ClassVar[tuple[Workaround, ...]] = ()
    """Settings to try if the check fails, cheapest first: a failure that one of them avoids is due to what it
    switches off. No known issue or MPI has them: they belong to the procedure."""
    on_request: ClassVar[bool] = False
    """Whether the check runs only if it is named, or an option asks for it."""
    across: ClassVar[bool] = False
    """Whether the check also tests between two nodes: with ``needs_mpi`` by ranks, else by processes without
    MPI. With ``--nodes 2``, a request without such a check is refused."""
    control: ClassVar[Control | None] = None
    """Makes this check the control of another check, whose failures then say what it found; None if it is no
    control."""
    options: ClassVar[Mapping[str, Json]] = {}
    """The options that a site config may set: name → JSON Schema of the value."""
    curable_warnings: ClassVar[frozenset[str]] = frozenset()
    """Keys of WARN findings for which workarounds are tried, as for a FAIL: they are a fault with a cure."""
    disturbed: ClassVar[frozenset[str]] = frozenset()
    """Keys of findings that may pass by themselves, such as slowness that another program causes: before one
    is reported, the probe is made again at the end, with nothing of this run beside it."""
    searches: ClassVar[bool] = False
    """Whether follow-up probes search for a cause, or repeat a run, so that only the last one has the result.

    `again` is then also called after completed probes, and each probe has its own deadline. `judge` is called
    for the last probe only, whether or not it completed.
    """
    explains_losses: ClassVar[frozenset[str]] = frozenset()
    """Keys of findings that explain why a process lost descriptors, threads or memory: such losses, which are
    looked for in every check, are then not reported."""
    needs_allocators: ClassVar[bool] = False
    """Whether the check needs an allocator for a device; without an installed array library, it is
    skipped."""

    @abstractmethod
    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        """Plan the probes. A finding that is yielded instead of a probe is about the node."""

    def again(self, failed: ProbeOutcome) -> Iterable[Probe]:
        """Plan follow-up probes, for example for the cases that ``failed`` left untested.

        With ``searches``, this method is also called after completed probes.
        """
        return ()

    def replay(self, failed: ProbeOutcome, without: Collection[str] = ()) -> Probe | None:
        """A short probe that repeats a completed probe's failure without the operations ``without``; None if
        there is none."""
        return None

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        """Conclude from one completed probe. A check that yields nothing is reported as an ERROR."""
        raise NotImplementedError(f"check {self.id} plans probes but does not judge them")

    def series(self, done: ProbeOutcome) -> Iterable[Series]:
        """The time series of one completed probe, for the report and for plots."""
        return ()


class SurveyCheck(Check):
    """A check that judges what the run found out before it planned its checks."""

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        return ()
