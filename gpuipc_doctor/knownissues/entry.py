"""One known issue: component, symptom, affected versions and workarounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.signatures import Signature
from gpuipc_doctor.versions import Range


@dataclass(frozen=True, slots=True)
class Workaround:
    """A workaround: text for the reader, an environment for a program, or both."""

    do: str
    env: Mapping[str, str] = field(default_factory=dict)
    when: Range | None = None
    """Versions of the component to which this workaround applies; None: all versions."""
    cost: str = ""
    risk: str = ""
    """The workaround's risk: wrong results, a hang or a crash."""
    risk_source: str = ""
    """URL of the source for the risk."""
    conflicts: tuple[str, ...] = ()
    """Known issues that this workaround triggers."""
    without: tuple[str, ...] = ()
    """Operations that a program with this workaround leaves out of its history."""
    upgrade: str = ""
    """First version of the component to which the workaround upgrades."""


@dataclass(frozen=True, slots=True)
class Reference:
    type: str
    url: str


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Another issue that causes the same lines in logs."""

    id: str
    decide: str
    """How to distinguish the two issues: by a command, a variable, or a word of the log."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """A site's decision to hide a latent issue until a date."""

    reason: str
    until: date
    """The last day of the suppression."""
    where: str
    """The suppression's place, as ``file:line``."""

    def holds(self, today: date) -> bool:
        return today <= self.until


KINDS = (
    "hardware",
    "elsewhere",
    "corruption",
    "crash",
    "hang",
    "error",
    "leak",
    "config",
    "limitation",
    "perf",
    "probe-harms",
)
"""Classes of issues, most severe first. ``elsewhere``: neither a GPU nor its software is the cause."""


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """An entry of the database, with the fields of its file; ``schema.json`` describes them."""

    id: str
    title: str
    component: str
    kind: str
    """The file's ``class``, one of `KINDS`."""
    status: str
    symptom: str
    references: tuple[Reference, ...]
    affected: tuple[Range, ...] = ()
    """Affected ranges: a version in any of them is affected. Empty if versions do not matter; then ``needs``
    decide."""
    needs: tuple[Need, ...] = ()
    """Further conditions, which must all hold."""
    signatures: tuple[Signature, ...] = ()
    """How the issue appears in logs and stacks; one matching signature is enough."""
    silent: str = ""
    """Why no log can show the issue, although the symptom quotes a message."""
    harms: tuple[str, ...] = ()
    """Steps of probes that must not run with this issue; see `Probe.harms`."""
    detected_by: tuple[str, ...] = ()
    """Checks that show the issue, or keys of their findings."""
    history: tuple[str, ...] = ()
    """The operations of the failing history, in order; the last one fails. For ipc-histories, these are only
    the operations of the failing process; for mpi-histories, those of all ranks."""
    workarounds: tuple[Workaround, ...] = ()
    resembles: tuple[Lookalike, ...] = ()
    """Issues with similar symptoms. Of two such issues, only one has to name the other."""
    trigger: str = ""
    secondary: bool = False
    """Whether another fault usually causes the message. Such issues are listed after primary ones."""
    also: tuple[str, ...] = ()
    evidence: str = ""
    inferred: tuple[str, ...] = ()
    """Our own conclusions, not stated by any source."""
    notes: str = ""
    withdrawn: str = ""
    """Why this entry no longer counts; the entry stays so that its id is not reused."""
    overrides: str = ""
    """A site's reason for replacing the shipped entry."""
    suppression: Suppression | None = None
    where: str = ""
    """The entry's place, as ``file:line``."""

    @property
    def order(self) -> int:
        """Place among other entries: 0 is the most severe."""
        return KINDS.index(self.kind)

    @property
    def bad_versions(self) -> str:
        return ", ".join(map(str, self.affected)) or "any, as far as is known"

    @property
    def is_bound(self) -> bool:
        """Whether the issue is tied to a version, a condition or a check; else it is a message."""
        return bool(self.affected or self.needs or self.detected_by or self.harms)

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks that show the issue, named directly or through keys of their findings."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.detected_by))

    @property
    def harmless_first(self) -> tuple[Workaround, ...]:
        """The workarounds; harmful ones last."""
        return tuple(sorted(self.workarounds, key=lambda workaround: bool(workaround.risk)))

    @property
    def has_cure(self) -> bool:
        """Whether the issue is known to be fixed in later versions."""
        return any(range_.fixed not in ("", "unknown", None) for range_ in self.affected)
