"""Signatures: how a known issue shows in logs and stacks, and how sure one may be that it is that issue."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuipc_doctor.knownissues import stacks
from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict, all_of


class Confidence(enum.IntEnum):
    """What finding a signature is worth."""

    LOW = 1
    """Others leave this, too: it counts only where the versions are known to be bad."""
    MEDIUM = 2
    """This issue is the likeliest of several causes."""
    HIGH = 3
    """Nothing else is known to leave this."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Source:
    """Where a program prints a message, as it was read there."""

    prints: str
    """The format string; what its ``%`` stand for varies."""
    file: str
    """Repository and path."""
    versions: str = ""
    holds: str = ""
    """What must hold of what varies, for the message to mean this issue."""


NOT_PUBLIC = Source(prints="", file="not public")
"""The program's own words are not to be read anywhere: the signature is as its messages were posted."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Regular expressions of which each must be found in one log, and what must hold beside them."""

    match: tuple[str, ...]
    """As written: a space stands for any white space, for long messages are wrapped."""
    confidence: Confidence = Confidence.HIGH
    needs: tuple[Need, ...] = ()
    """Facts without which the text is too common to mean anything: a version, a library, a variable."""
    sample: str = ""
    """What somebody's log said, and what the patterns must find."""
    unless: str = ""
    """Lines that this expression finds are another program's, and do not count."""
    source: Source | None = None
    stack: tuple[str, ...] = ()
    """In place of ``match``: functions of one stack, innermost first, with any others between them; ``a|b``,
    ``a*``."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The regular expressions for `re`, without flags and without anchors to lines."""
        return tuple(map(stacks.pattern, self.stack)) or tuple(map(spaced, self.match))

    def found_in(self, text: str) -> bool:
        if self.unless:
            text = "\n".join(line for line in text.splitlines() if not re.search(self.unless, line))
        if self.stack:
            return any(stack.lines(self.stack) for stack in stacks.stacks(text))
        return all(re.search(pattern, text) for pattern in self.patterns)

    def applies(self, facts: Iterable[Fact]) -> Verdict:
        """BAD: what must hold beside the text holds here; UNKNOWN: a fact for it was not found."""
        facts = tuple(facts)
        return all_of(need.judge(facts) for need in self.needs)


def spaced(pattern: str) -> str:
    r"""The pattern with ``\s+`` for spaces outside of character classes, ``\s*`` for optional ones."""
    return re.sub(
        r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])| +([?*+]?)",
        lambda found: found[1] or (r"\s*" if found[2] in ("?", "*") else r"\s+"),
        pattern,
        flags=re.DOTALL,
    )
