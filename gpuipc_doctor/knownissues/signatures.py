"""Signatures: how a known issue shows in logs and stacks, and with what confidence."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuipc_doctor.knownissues import stacks
from gpuipc_doctor.knownissues.conditions import NamedFacts, Need
from gpuipc_doctor.model import Fact
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
class Signature:
    """Regular expressions that must all match in one log, and further conditions."""

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

    @property
    def patterns(self) -> tuple[str, ...]:
        """The regular expressions for `re`, without flags and line anchors."""
        return tuple(map(stacks.pattern, self.stack)) or tuple(map(spaced, self.match))

    def found_in(self, text: str) -> bool:
        if self.unless:
            text = "\n".join(line for line in text.splitlines() if not re.search(self.unless, line))
        if self.stack:
            return any(stack.lines(self.stack) for stack in stacks.stacks(text))
        return all(re.search(pattern, text) for pattern in self.patterns)

    def applies(self, facts: Iterable[Fact]) -> Verdict:
        """Verdict on the further conditions: BAD if all hold, UNKNOWN if a fact that they need was not
        found."""
        facts = NamedFacts.of(facts)
        return all_of(need.judge(facts) for need in self.needs)


def spaced(pattern: str) -> str:
    r"""The pattern with ``\s+`` for spaces outside of character classes, and ``\s*`` for optional spaces."""
    return re.sub(
        r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])| +([?*+]?)",
        lambda found: found[1] or (r"\s*" if found[2] in ("?", "*") else r"\s+"),
        pattern,
        flags=re.DOTALL,
    )
