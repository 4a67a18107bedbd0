"""A run's results, as its report has them. Values without I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuipc_doctor.model import Device, Fact, Finding, Status, Subject, Tier
from gpuipc_doctor.probe_types import RoleOutcome, subject_label
from gpuipc_doctor.vendors import untried


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

    @property
    def untried(self) -> str:
        """What every rendering says of GPUs whose backend was never run on one; empty for others."""
        return untried(device.backend for device in self.devices)

    def worst(self) -> Status:
        return max((r.finding.status for r in self.results), key=lambda s: s.severity, default=Status.SKIP)
