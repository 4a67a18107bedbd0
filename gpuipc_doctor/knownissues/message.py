"""A message: a text in a log, and what it means. It says nothing of versions and is never CONFIRMED."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.entry import KINDS
from gpuipc_doctor.knownissues.signatures import Signature

LINES = 8
"""Most lines of a message in its file, without its signatures."""
LINES_OF_SIGNATURE = 4


class Severity(enum.Enum):
    """How bad a message is, worst first."""

    FATAL = "fatal"
    """A GPU, node or process is lost."""
    ERROR = "error"
    """A call, a start or a job failed."""
    WARNING = "warning"
    """The program goes on, perhaps slower."""
    CONSEQUENCE = "consequence"
    """Another fault usually causes the message: listed last."""


@dataclass(frozen=True, slots=True)
class Message:
    """An entry of ``messages/COMPONENT.yaml``; ``schema.json`` describes the fields."""

    id: str
    severity: Severity
    says: str
    """What the text means, in one sentence."""
    component: str
    """The program that prints it; the name of its file."""
    signatures: tuple[Signature, ...]
    look: tuple[str, ...]
    """Where to look next."""
    also: tuple[str, ...] = ()
    where: str = ""
    """The entry's place, as ``file:line``."""

    @property
    def title(self) -> str:
        return self.says

    @property
    def kind(self) -> str:
        return self.severity.value

    @property
    def order(self) -> int:
        """Place among messages and known issues, as `KnownIssue.order`."""
        return {Severity.FATAL: 0, Severity.WARNING: KINDS.index("perf")}.get(
            self.severity, KINDS.index("error")
        )

    @property
    def secondary(self) -> bool:
        return self.severity is Severity.CONSEQUENCE

    @property
    def needs(self) -> tuple[Need, ...]:
        return ()
