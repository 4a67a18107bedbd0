"""Find patterns in a log read in blocks, in linear time and bounded memory, also across block ends.

A pattern is searched in single lines that contain its fixed text (`candidates`). If such a line does not
match, it is joined with its neighbours, since messages are wrapped (`wrapping`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gpuipc_doctor.knownissues import figures
from gpuipc_doctor.knownissues.candidates import Form, Memory
from gpuipc_doctor.knownissues.lines import Block, Blocks, split, split_rows
from gpuipc_doctor.knownissues.literals import bare, dense
from gpuipc_doctor.knownissues.search_patterns import FEW_PATTERNS, Patterns
from gpuipc_doctor.knownissues.wrapping import find_across, wrapped_lines

_SAMPLE = 3
"""Equal lines per block that are examined individually."""


class Hit(NamedTuple):
    """A line, or the lines of a wrapped message, with the patterns found."""

    number: int
    """Number of the first line, from 1."""
    text: str
    kind: bytes
    """The bare line, which is the same in all equal lines."""
    matches: tuple[tuple[int, re.Match[str]], ...]
    """Index of the pattern, and its match, in or near ``text``."""
    again: Sequence[bytes] = ()
    """Further equal lines of the block."""
    numbers: Sequence[int] = ()
    """Numbers of the lines in ``again``."""


def spanned(match: re.Match[str]) -> tuple[str, int, int]:
    """The lines that a match spans, with start and end."""
    begin = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    text = match.string[begin : end if end >= 0 else None]
    return text, match.start() - begin, match.end() - begin


class Scanner:
    """Reads one log."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._blocks = Blocks()
        self._memory = Memory(patterns)
        self.pause, self.resume = self._memory.pause, self._memory.resume

    @property
    def lines(self) -> int:
        """Number of examined lines."""
        return self._blocks.lines

    def feed(self, data: bytes) -> Iterator[Hit]:
        """Examine new lines; the last few are held back until more lines arrive."""
        if block := self._blocks.feed(data):
            yield from self._scan(block)

    def flush(self) -> Iterator[Hit]:
        """Also examine the lines held back, because no more lines arrive soon."""
        if block := self._blocks.flush():
            yield from self._scan(block)

    def _scan(self, block: Block) -> Iterator[Hit]:
        kinds = split(bare(block.new))
        beside = split(bare(block.before)), split(bare(block.after))
        groups = self._memory.groups(kinds, *beside)
        if not groups:
            return
        numbers, lines = split_rows(block.new, block.first)
        if len(lines) != len(kinds):
            kinds = split(bare(b"\n".join(lines)))
            groups = self._memory.groups(kinds, *beside)
        before, after = split_rows(block.before)[1], split_rows(block.after)[1]
        if before and not block.before.endswith(b"\n"):
            lines[0] = before.pop() + lines[0]
        rows = _Rows(lines, numbers, kinds, [*before, *lines, *after], len(before))
        for form, places in groups.items():
            for alike, absent in self._group_by_figures(rows, places, form):
                yield from self._examine(rows, alike, form, absent)

    def _group_by_figures(
        self, rows: _Rows, places: Sequence[int], form: Form
    ) -> Iterable[tuple[Sequence[int], Collection[int]]]:
        """Group lines that differ only in digits by the digit-sensitive patterns that they match. Each group
        comes with the patterns that none of its lines matches."""
        if len(places) == 1:
            return [(places, ())]
        patterns = self._patterns.patterns
        if form.figures is None:
            sensitive = {number: patterns[number] for number in form.numbers}
            form.figures = figures.ways_to_match(sensitive, rows.kinds[places[0]])
        if not any(form.figures.values()):
            return [(places, form.figures)]
        if len(places) <= _SAMPLE:
            return [([place], ()) for place in places]
        matching = figures.matching_rows(patterns, form.figures, rows.at(places))
        absent = form.figures.keys() - matching
        if all(len(found) == len(places) for found in matching.values()):
            return [(places, absent)]
        groups = figures.group_by_matches(matching, places)
        return [(alike, form.figures.keys() - set(found)) for found, alike in groups.items()]

    def _examine(
        self, rows: _Rows, places: Sequence[int], form: Form, absent: Collection[int]
    ) -> Iterator[Hit]:
        """Examine lines that are equal when bare. If the first few give the same result, it is that of all.

        ``absent``: patterns that can only match a line together with its neighbours.
        """
        examine = partial(self._examine_line, rows, wanted=form.numbers, absent=absent)
        hits = list(map(examine, places[: _SAMPLE if form.is_news else 1]))
        form.is_news &= len(places) == 1
        if len(places) > 1:
            shown = {tuple(number for number, _ in hit.matches) for hit in hits}
            is_wrapped = any(match.string is not hit.text for hit in hits for _, match in hit.matches)
            if len(shown) > 1 or is_wrapped:
                hits += map(examine, places[len(hits) :])
            else:
                numbers = list(map(rows.numbers.__getitem__, places[1:]))
                hits = [hits[0]._replace(again=rows.at(places[1:]), numbers=numbers)]
        yield from (hit for hit in hits if hit.matches)

    def _examine_line(self, rows: _Rows, place: int, wanted: Sequence[int], absent: Collection[int]) -> Hit:
        patterns = self._patterns.patterns
        line = rows.lines[place]
        text = line.decode("utf-8", "replace")
        likely = [number for number in wanted if number not in absent]
        if len(likely) > FEW_PATTERNS:
            likely = self._patterns.in_text(dense(line), likely)
        found = {number: match for number in likely if (match := patterns[number].regex.search(text))}
        others = [number for number in wanted if number not in found and patterns[number].wrapped]
        if others and (wrapped := wrapped_lines(rows.around, rows.before + place)):
            for number in self._patterns.in_text(dense(b"".join(wrapped.lines)), others):
                if match := find_across(patterns[number].regex, wrapped):
                    found[number] = match
        matches = [
            (number, match)
            for number, match in sorted(found.items())
            if patterns[number].counts(spanned(match)[0])
        ]
        return Hit(rows.numbers[place], text, rows.kinds[place], tuple(matches))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The lines of a block, cut where they are too long or overwritten."""

    lines: Sequence[bytes]
    numbers: Sequence[int]
    kinds: Sequence[bytes]
    """The bare lines."""
    around: Sequence[bytes]
    """``lines`` with neighbours."""
    before: int
    """Number of lines in ``around`` before ``lines``."""

    def at(self, places: Iterable[int]) -> list[bytes]:
        return list(map(self.lines.__getitem__, places))
