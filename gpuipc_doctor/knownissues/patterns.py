"""Patterns of signatures, numbered and prepared so that most lines need no regular expression."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, Protocol

from gpuipc_doctor.knownissues import stacks
from gpuipc_doctor.knownissues.literals import (
    Find,
    Needs,
    dense_keys,
    dense_text,
    finder,
    fixed_text,
    has,
    in_order,
    lazy,
)

FEW_PATTERNS = 8
"""Up to this many patterns, trying each is faster than one search for all their texts."""
_PREPARED = 4_000
"""To try this many patterns takes as long as to prepare one search for all their texts."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, compiled when a text may match. ``wrapped``: whether it is also searched across
    line ends. A line that matches ``unless`` does not count."""

    text: str
    wrapped: bool = False
    unless: str = ""

    @property
    def regex(self) -> re.Pattern[str]:
        return _compiled(self.text)

    def counts(self, line: str) -> bool:
        return not (self.unless and _compiled(self.unless).search(line))

    @property
    def reads_figures(self) -> bool:
        r"""Whether the pattern can distinguish lines that differ only in digits: ``-22`` does, ``\d+`` does
        not."""
        return bool(re.search(r"\d|\\d(?!\+)", _ANY_FIGURES.sub("", self.text)))


_compiled = cache(re.compile)
_ANY_FIGURES = re.compile(r"0x|\[0-9a-f\]\+|\{[\d,]+\}")


class Candidate(NamedTuple):
    """A pattern that may match where one of its fixed texts occurs."""

    number: int
    wrapped: bool
    needs: Needs
    """The other bare texts that a match must contain."""


class Patterns:
    """Prepared patterns, shared by the scanners of all logs."""

    def __init__(
        self, patterns: Sequence[Pattern], known_texts: Mapping[str, Mapping[bytes, Needs]] | None = None
    ) -> None:
        """``known_texts``: results of `fixed_text`. Raises `ValueError` for a pattern without fixed text,
        which would have to be tried on each line."""
        self.patterns = patterns
        known = known_texts or {}
        self.candidates: dict[bytes, list[Candidate]] = {}
        """Fixed text → the patterns that may match where it occurs."""
        for number, pattern in enumerate(patterns):
            texts = known.get(pattern.text) or fixed_text(pattern.text)
            if not texts:
                raise ValueError(f"{pattern.text!r} has no fixed text to look for")
            for text, needs in texts.items():
                self.candidates.setdefault(text, []).append(Candidate(number, pattern.wrapped, needs))
        self.places: defaultdict[int, list[int]] = defaultdict(list)
        """Pattern → indexes of its texts."""
        for index, candidates in enumerate(self.candidates.values()):
            for candidate in candidates:
                self.places[candidate.number].append(index)
        self.find = lazy(list(self.candidates))
        self._tried = 0
        """Number of patterns tried one by one although they were many: see `_PREPARED`."""

    def in_text(self, text: bytes, numbers: Sequence[int]) -> list[int]:
        """The patterns that may match in a dense text."""
        if len(numbers) <= FEW_PATTERNS:
            return [n for n in numbers if _may_match(text, self.patterns[n].text)]
        different = {self.patterns[n].text for n in numbers}
        self._tried += len(different)
        if self._tried < _PREPARED:
            likely = {pattern for pattern in different if _may_match(text, pattern)}
            return [n for n in numbers if self.patterns[n].text in likely]
        find, patterns_by_text = self._dense_finder
        found: set[int] = set()
        for index in {at for at, _ in find(text)}:
            found.update(n for n, ways in patterns_by_text[index] if in_order(text, ways))
        return [number for number in numbers if number in found]

    @cached_property
    def _dense_finder(self) -> tuple[Find, list[list[tuple[int, Needs]]]]:
        by_text: defaultdict[bytes, list[tuple[int, Needs]]] = defaultdict(list)
        for number, pattern in enumerate(self.patterns):
            for text, ways in dense_keys(pattern.text).items():
                by_text[text].append((number, ways))
        return finder(list(by_text)), list(by_text.values())


def _may_match(text: bytes, pattern: str) -> bool:
    """Whether a dense text may contain a match of ``pattern``."""
    return any(map(text.__contains__, dense_keys(pattern))) and has(text, dense_text(pattern))


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
        more: Sequence[Pattern] = (),
        known_texts: Mapping[str, Mapping[bytes, Needs]] | None = None,
    ) -> None:
        """``known_texts``: results of `fixed_text`, which take long to compute."""
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
                patterns.append(Pattern(text, counts, one.unless))
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
