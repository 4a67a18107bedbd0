"""Values that the packages exchange. They are frozen and do no I/O.

A *check* requests *probes*; a probe runs *roles* in *workers* and ends in an *outcome*; the check concludes
*findings* from it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any

from gpuipc_doctor.vendors import SUPPORTED, SupportedVendor

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
    def vendor(self) -> SupportedVendor:
        return SUPPORTED[self.backend]

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
