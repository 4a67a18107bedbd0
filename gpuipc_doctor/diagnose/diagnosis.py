"""What logs have shown: the known issues that were recognised, and what nobody knows."""

from __future__ import annotations

from dataclasses import dataclass

from gpuipc_doctor.diagnose.occurrences import Occurrences
from gpuipc_doctor.knownissues import Confidence, KnownIssue
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.model import Fact, Relation


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known issue whose signature is in the logs.

    ``confidence`` is that of the ``signature``, one step up where the version is known to be bad, and
    LOW where it is known to be fine; LOW is a hint, no more.
    """

    issue: KnownIssue
    signature: Confidence
    confidence: Confidence
    relation: Relation
    reason: str
    remedy: str
    lines: Occurrences
    """All lines of all signatures."""
    signatures: tuple[Occurrences, ...]
    """The lines of each expression, in the order of their appearance."""
    lookalikes: tuple[Lookalike, ...] = ()
    """Other issues of the same diagnosis that leave the same lines."""

    def rank(self, log: int) -> tuple[bool, int, int, int, int]:
        """Its order in a diagnosis: hints last, then severity, then the first line of the ``log``-th log."""
        is_hint = self.confidence is Confidence.LOW
        return is_hint, self.issue.severity, log, self.lines.first.line, -self.confidence


@dataclass(frozen=True, slots=True)
class Difference:
    """What sets some ranks apart from the others."""

    says: str
    ranks: tuple[str, ...]
    """``rank 17 (nid000004)``; the log's name where nothing tells the rank."""
    log: str
    """That of the first of them."""


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Logs of one rank each."""

    alike: int
    """So many of them say the same."""
    issues: tuple[str, ...]
    """The ids that these have."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class LogRead:
    """What was read of one log. ``trouble`` says why there is no more; ``notes`` what one should know."""

    name: str
    lines: int
    bytes: int
    trouble: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the logs say, gravest first."""

    logs: tuple[LogRead, ...]
    facts: tuple[Fact, ...]
    recognised: tuple[Recognised, ...]
    unknown: tuple[Occurrences, ...]
    """Lines that tell of an error that nothing recognised explains; most telling kind first."""
    unknown_beyond: int = 0
    """At least so many such lines of still other kinds."""
    interrupted: bool = False
    rank_files: tuple[RankFiles, ...] = ()
    flights: tuple[Difference, ...] = ()
    """Where PyTorch's Flight Recorder shows ranks apart, or a collective that did not end."""

    @property
    def found(self) -> tuple[Recognised, ...]:
        return tuple(one for one in self.recognised if one.confidence > Confidence.LOW)

    @property
    def hints(self) -> tuple[Recognised, ...]:
        return tuple(one for one in self.recognised if one.confidence is Confidence.LOW)
