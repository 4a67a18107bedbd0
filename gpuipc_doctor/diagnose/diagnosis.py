"""The diagnosis of logs: recognised known issues, and unknown error lines."""

from __future__ import annotations

from dataclasses import dataclass

from gpuipc_doctor.diagnose.occurrences import Occurrences
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Message
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report_types import Relation


@dataclass(frozen=True, slots=True)
class Recognised:
    """An entry whose signature is in the logs.

    A message has the relation UNKNOWN, and what to look at as ``remedies``. Of a known issue, ``confidence``
    is that of the ``signature``, but one step higher if the version is affected, and LOW (only a hint) if the
    version is known not to be affected.
    """

    issue: KnownIssue | Message
    signature: Confidence
    confidence: Confidence
    relation: Relation
    reason: str
    remedies: tuple[str, ...]
    lines: Occurrences
    """Lines of all signatures of the issue."""
    signatures: tuple[Occurrences, ...]
    """For each expression of the signature, the lines that match it."""
    lookalikes: tuple[Lookalike, ...] = ()
    """Other issues of this diagnosis that cause the same lines."""

    def rank(self, log: int) -> tuple[bool, bool, int, int, int, int]:
        """Sort key in a diagnosis: primary issues, secondary issues, hints; each by severity and first line.

        ``log``: the number of the log with the first line.
        """
        is_hint = self.confidence is Confidence.LOW
        severity = self.issue.order
        return is_hint, self.issue.secondary, severity, log, self.lines.first.line, -self.confidence


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between some ranks and the others."""

    says: str
    ranks: tuple[str, ...]
    """The ranks as text, such as ``rank 17 (nid000004)``; the log's name if the rank is unknown."""
    log: str
    """Log of the first rank in ``ranks``."""
    quote: str = ""
    """A line that shows the difference."""
    do: str = ""
    blames: bool = False
    """Whether the ranks keep others waiting, or failed first; else they may also be of a job that ran."""


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Logs that have one rank each."""

    alike: int
    """Number of logs with the same contents."""
    issues: tuple[str, ...]
    """Ids of the issues in these logs."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class LogRead:
    """How far one log was read. ``trouble`` says what was not read, and why; ``notes`` are remarks."""

    name: str
    lines: int
    bytes: int
    trouble: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Conclusions from the logs, most severe first."""

    logs: tuple[LogRead, ...]
    facts: tuple[Fact, ...]
    recognised: tuple[Recognised, ...]
    unknown: tuple[Occurrences, ...]
    """Error lines that no recognised issue explains; most relevant kind first."""
    unknown_beyond: int = 0
    """Lower bound of the number of error lines whose kind is not listed."""
    interrupted: bool = False
    rank_files: tuple[RankFiles, ...] = ()
    flights: tuple[Difference, ...] = ()
    """Ranks that differ in their collectives, by the lines of logs and by PyTorch's Flight Recorder; or a
    collective that did not end."""

    @property
    def found(self) -> tuple[Recognised, ...]:
        return tuple(issue for issue in self.recognised if issue.confidence > Confidence.LOW)

    @property
    def hints(self) -> tuple[Recognised, ...]:
        return tuple(issue for issue in self.recognised if issue.confidence is Confidence.LOW)
