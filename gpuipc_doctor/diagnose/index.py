"""All patterns searched in logs, numbered: signatures' expressions, facts, error words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.diagnose import error_lines, log_facts
from gpuipc_doctor.diagnose.literals import fixed_text
from gpuipc_doctor.diagnose.scanner import Pattern, Patterns
from gpuipc_doctor.knownissues import KnownIssue, stacks


@dataclass(frozen=True, slots=True)
class Part:
    """One expression of a signature. ``counts``: whether its lines are counted.

    Only the lines of a signature's expression with the most fixed text are counted. The other expressions
    (such as ``MPI_``) may be in many lines and need only occur.
    """

    issue: int
    signature: int
    numbers: tuple[int, ...]
    """Numbers of all parts of the signature."""
    counts: bool
    stack: tuple[str, ...] = ()
    """Functions of one stack, if the signature's parts are functions."""


class Index:
    """Meaning of pattern numbers: first `parts`, then facts, then error words."""

    def __init__(self, issues: Iterable[KnownIssue]) -> None:
        self.issues = tuple(issue for issue in issues if not issue.withdrawn)
        self.skipped: list[str] = []
        """Signatures that cannot be searched, with the reason."""
        self.parts: list[Part] = []
        self.signatures: dict[int, dict[int, tuple[int, ...]]] = {}
        """Issue number → number of a signature → numbers of its parts."""
        patterns: list[Pattern] = []
        for issue, signature, texts, unless in self._signatures():
            stack = self.issues[issue].signatures[signature].stack
            lengths = [min(map(len, fixed_text(text)), default=0) for text in texts]
            if 0 in lengths:
                says = (
                    f"{texts[lengths.index(0)]!r} has no fixed text except digits, white space and 'a' to 'f'"
                )
                self.skipped.append(f"{self.issues[issue].id}: {says}")
                continue
            first = len(patterns)
            numbers = tuple(range(first, first + len(texts)))
            self.signatures.setdefault(issue, {})[signature] = numbers
            for length, text in zip(lengths, texts, strict=True):
                counts = length == max(lengths) or bool(stack)
                self.parts.append(Part(issue, signature, numbers, counts, stack))
                wrapped = counts and not self.issues[issue].fallback  # whose texts are in every error line
                patterns.append(Pattern(re.compile(text), wrapped, unless))
        fact_patterns = log_facts.patterns(self._facts_asked_for())
        self._facts = [name for name, _ in fact_patterns]
        patterns += [Pattern(regex, wrapped=True) for _, regex in fact_patterns]
        telling = list(map(Pattern, error_lines.patterns()))
        self.patterns = Patterns([*patterns, *telling, Pattern(re.compile(stacks.BEGIN))])
        self.stack_begin = len(self.patterns.patterns) - 1
        """The pattern for lines before a stack."""

    def is_part(self, number: int) -> bool:
        """Whether a pattern belongs to a signature."""
        return number < len(self.parts)

    def fact(self, number: int) -> str | None:
        """The fact whose value is the pattern's first group."""
        number -= len(self.parts)
        return self._facts[number] if 0 <= number < len(self._facts) else None

    def is_error_line(self, number: int) -> bool:
        return len(self.parts) + len(self._facts) <= number < self.stack_begin

    def is_of_stack(self, number: int) -> bool:
        """Whether a pattern's lines are frames of stacks, or precede one."""
        return number == self.stack_begin or (self.is_part(number) and bool(self.parts[number].stack))

    def _signatures(self) -> Iterator[tuple[int, int, tuple[str, ...], re.Pattern[str] | None]]:
        for issue, entry in enumerate(self.issues):
            for signature, one in enumerate(entry.signatures):
                yield issue, signature, one.patterns, re.compile(one.unless) if one.unless else None

    def _facts_asked_for(self) -> list[str]:
        needs = (
            need.fact
            for issue in self.issues
            for some in (issue.needs, *(signature.needs for signature in issue.signatures))
            for need in some
        )
        return list(dict.fromkeys(needs))
