"""Signatures: how a known issue shows in logs and stacks, and with what confidence."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuipc_doctor.knownissues import stacks
from gpuipc_doctor.knownissues.conditions import NamedFacts, Need
from gpuipc_doctor.model import EvidenceKind, Fact
from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.versions import Verdict, all_of


class Confidence(enum.IntEnum):
    """How surely a signature shows its issue."""

    LOW = 1
    """Other issues cause the same lines: the signature counts only if the version is affected."""
    MEDIUM = 2
    """The issue is the likeliest of several possible issues."""
    HIGH = 3
    """No other known issue causes these lines."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Source:
    """The place in a program's source that prints a message."""

    prints: str
    """The format string, whose ``%`` parts vary."""
    file: str
    """Repository and path."""
    versions: str = ""
    holds: str = ""
    """What the varying parts must be, so that the message shows this issue."""


NOT_PUBLIC = Source(prints="", file="not public")
"""The program's source is not public: the signature is taken from posted messages."""


@dataclass(frozen=True, slots=True)
class Call:
    """How a role of a probe ended in a driver call; each part is a regular expression for all of its text."""

    name: str
    """The call, as `RoleOutcome.operation` has it."""
    ends: str
    """The signal, or the name of the error that the call returned."""
    step: str = ".*"
    role: str = ".*"
    returned: bool = False
    """Whether a thread of the library ended the process after the call."""

    def is_of(self, role: RoleOutcome) -> bool:
        end = role.signal or (role.fault.name if role.fault else "")
        texts = (role.operation, end, role.step, role.role)
        patterns = (self.name, self.ends, self.step, self.role)
        return role.returned is self.returned and all(map(re.fullmatch, patterns, texts))


@dataclass(frozen=True, slots=True)
class Signature:
    """What shows an entry: regular expressions that must all match in one text, a stack, findings or the end
    of a call; and further conditions."""

    match: tuple[str, ...]
    """The expressions as written: a space matches any white space, since long messages are wrapped."""
    confidence: Confidence = Confidence.HIGH
    needs: tuple[Need, ...] = ()
    """Facts without which the text is too common to count: a version, a library, a variable."""
    sample: str = ""
    """A posted log that the patterns must match."""
    unless: str = ""
    """Expression for other programs' lines, which do not count."""
    source: Source | None = None
    stack: tuple[str, ...] = ()
    """Functions of one stack, innermost first, in place of ``match``. Other functions may be between them.
    ``a|b`` are alternatives; a name that ends in ``*`` is a prefix."""
    finding: tuple[str, ...] = ()
    """Keys of findings, in place of ``match``."""
    call: Call | None = None
    """How a probe's role ends, in place of ``match``."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The regular expressions for `re`, without flags and line anchors."""
        return tuple(map(stacks.pattern, self.stack)) or tuple(map(spaced, self.match))

    def is_shown_by(self, result: Result) -> bool:
        """Whether a result shows the entry by its key or its calls; `scanner.Search` says it of its
        texts."""
        called = self.call is not None and any(self.call.is_of(role) for role in result.roles)
        return called or result.key in self.finding

    def applies(self, facts: Iterable[Fact]) -> Verdict:
        """Verdict on the further conditions: BAD if all hold, UNKNOWN if a fact that they need was not
        found."""
        facts = NamedFacts.of(facts)
        return all_of(need.judge(facts) for need in self.needs)


_OF_OURS = (EvidenceKind.TRIAL, EvidenceKind.ISSUE, EvidenceKind.CAUSE, EvidenceKind.RECOGNISED)
"""Evidence whose values are workarounds, causes and known issues, not what a program said."""


def result_text(result: Result) -> str:
    """What programs and drivers left with a result: the roles' errors, stacks, logs and lines of the kernel.

    Also the values of the finding, such as a call and its error, on one line. Our own sentences are not
    searched.
    """
    items = (item for item in result.finding.evidence if item.kind not in _OF_OURS)
    some = (result.finding.values, *(item.values for item in items))
    lines = [" ".join(map(str, values.values())) for values in some]
    for role in result.roles:
        lines += [str(role.fault or ""), role.exception]
        lines += [f"  {frame}" for frame in (*role.python_stack, *role.native_stack)]
        lines += [*role.kernel, *role.log_tail]
    return "\n".join(lines)


def spaced(pattern: str) -> str:
    r"""The pattern with ``\s+`` for spaces outside of character classes, and ``\s*`` for optional spaces."""
    return re.sub(
        r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])| +([?*+]?)",
        lambda found: found[1] or (r"\s*" if found[2] in ("?", "*") else r"\s+"),
        pattern,
        flags=re.DOTALL,
    )
