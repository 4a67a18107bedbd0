"""The expressions of signatures, numbered, for one search of a text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuipc_doctor.knownissues import stacks
from gpuipc_doctor.knownissues.literals import Needs, fixed_text
from gpuipc_doctor.knownissues.search_patterns import Pattern, Patterns


class Searched(Protocol):
    """What must be in one text: all ``patterns``, or all functions of one ``stack``."""

    @property
    def patterns(self) -> tuple[str, ...]: ...
    @property
    def unless(self) -> str: ...
    @property
    def stack(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One expression of a signature. ``counts``: whether its lines are counted.

    Only the lines of a signature's expression with the most fixed text are counted. The other expressions
    (such as ``MPI_``) may be in many lines and need only occur.
    """

    signature: int
    numbers: tuple[int, ...]
    """Numbers of all parts of the signature."""
    counts: bool
    stack: tuple[str, ...] = ()
    """Functions of one stack, if the signature's parts are functions."""


class Index:
    """Meaning of pattern numbers: first `parts`, then ``more``, then the beginning of a stack."""

    def __init__(
        self,
        signatures: Sequence[Searched],
        *,
        general: Collection[int] = (),
        more: Sequence[Pattern] = (),
        known_texts: Mapping[str, Mapping[bytes, Needs]] | None = None,
    ) -> None:
        """``general``: signatures whose text is in every error line, not searched across line ends and soon
        no longer counted. ``known_texts``: results of `fixed_text`, which take long to compute."""
        self.general = frozenset(general)
        self.skipped: dict[int, str] = {}
        """Signature that cannot be searched → the reason."""
        self.parts: list[Part] = []
        self.signatures: dict[int, tuple[int, ...]] = {}
        """Signature → numbers of its parts."""
        texts = known_texts or {}
        patterns: list[Pattern] = []
        for signature, one in enumerate(signatures):
            expressions = one.patterns
            lengths = [min(map(len, texts.get(text) or fixed_text(text)), default=0) for text in expressions]
            if 0 in lengths:
                what = f"{expressions[lengths.index(0)]!r} has no fixed text"
                self.skipped[signature] = f"{what} except digits, white space and 'a' to 'f'"
                continue
            numbers = tuple(range(len(patterns), len(patterns) + len(expressions)))
            self.signatures[signature] = numbers
            for length, text in zip(lengths, expressions, strict=True):
                counts = length == max(lengths) or bool(one.stack)
                self.parts.append(Part(signature, numbers, counts, one.stack))
                patterns.append(Pattern(text, counts and signature not in self.general, one.unless))
        self.more = range(len(patterns), len(patterns) + len(more))
        self.stack_begin = self.more.stop
        """The pattern for lines before a stack."""
        self.patterns = Patterns([*patterns, *more, Pattern(stacks.BEGIN)], texts)

    def is_part(self, number: int) -> bool:
        """Whether a pattern belongs to a signature."""
        return number < len(self.parts)

    def is_of_stack(self, number: int) -> bool:
        """Whether a pattern's lines are frames of stacks, or precede one."""
        return number == self.stack_begin or (self.is_part(number) and bool(self.parts[number].stack))
