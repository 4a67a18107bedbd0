"""Find patterns in a log read in blocks, in linear time and bounded memory, also across block ends.

A pattern is searched in single lines that contain its fixed text (`candidates`). If such a line does not
match, it is joined with its neighbours, since messages are wrapped (`lines`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter
from typing import NamedTuple

from gpuipc_doctor.knownissues.candidates import Form, Memory, group_by_matches, matching_rows, ways_to_match
from gpuipc_doctor.knownissues.lines import Block, Blocks, find_across, split, split_rows, wrapped_lines
from gpuipc_doctor.knownissues.literals import bare, dense
from gpuipc_doctor.knownissues.patterns import FEW_PATTERNS, Index, Patterns, Searched
from gpuipc_doctor.knownissues.stacks import Stack, Stacks

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
            form.figures = ways_to_match(sensitive, rows.kinds[places[0]])
        if not any(form.figures.values()):
            return [(places, form.figures)]
        if len(places) <= _SAMPLE:
            return [([place], ()) for place in places]
        matching = matching_rows(patterns, form.figures, rows.at(places))
        absent = form.figures.keys() - matching
        if all(len(found) == len(places) for found in matching.values()):
            return [(places, absent)]
        groups = group_by_matches(matching, places)
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


MANY = 1000
"""After this many lines with one part of a signature, the search for the part pauses until the other parts
are found. For example, libfabric's function names are in stacks and in every line of its debug log."""

ENOUGH = 100
"""After this many lines outside stacks, the search for a stack's function pauses."""

StackLine = tuple[int, str, tuple[int, ...]]
"""A line that is a frame: (line number, text, parts of signatures in it)."""


class Reading:
    """Reading of one text, which must contain all parts of a signature. Subclasses learn what is found."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._scanner = Scanner(index.patterns)
        self._seen: Counter[int] = Counter()
        self._stacks: Stacks[StackLine] = Stacks()
        self._framed: Counter[int] = Counter()
        """Signature part → number of stacks in which it was found."""
        self.complete: set[int] = set()
        """The signatures that the text shows."""

    @property
    def lines(self) -> int:
        return self._scanner.lines

    def feed(self, block: bytes) -> None:
        self._add(self._scanner.feed(block))

    def flush(self) -> None:
        """Examine the lines that are held back until following lines arrive."""
        self._add(self._scanner.flush(), ended=True)

    def saw(self, hit: Hit, numbers: Sequence[int], parts: Sequence[int]) -> None:
        """Called for lines with the patterns ``numbers``, of which ``parts`` are news of signatures."""

    def saw_frame(self, at: int, text: str, part: int) -> None:
        """Called for each line of a stack that shows a signature."""

    def completed(self, signature: int) -> None:
        """Called when the text shows a signature, perhaps several times."""
        self.complete.add(signature)

    def lost_count(self, part: int) -> None:
        """Called when further lines with this part are not counted."""

    def _add(self, hits: Iterable[Hit], *, ended: bool = False) -> None:
        frames: list[tuple[int, bytes | str, tuple[int, ...]]] = []
        for hit in hits:
            numbers = tuple(number for number, _ in hit.matches)
            of_stack = tuple(filter(self._index.is_of_stack, numbers))
            if awake := tuple(n for n in of_stack if self._framed[n] or self._seen[n] < ENOUGH):
                frames.append((hit.number, hit.text, awake))
                frames += [(n, text, awake) for n, text in zip(hit.numbers, hit.again, strict=True)]
            if of_stack == numbers:
                continue
            parts = [number for number in numbers if number not in of_stack and self._is_news(number)]
            self.saw(hit, numbers, parts)
            for number in parts:
                self._count(number, 1 + len(hit.again))
        self._add_frames(sorted(frames, key=itemgetter(0)), ended)

    def _add_frames(self, frames: Iterable[tuple[int, bytes | str, tuple[int, ...]]], ended: bool) -> None:
        """Add lines that may be frames, in order, and examine the stacks that they complete."""
        for at, line, numbers in frames:
            text = line if isinstance(line, str) else line.decode("utf-8", "replace")
            for stack in self._stacks.add(at, text, (at, text, numbers)):
                self._look_at(stack)
            for number in numbers:
                self._seen[number] += 1
                if self._seen[number] == ENOUGH and not self._framed[number]:
                    self._scanner.pause(number)  # in lines of a debug log, not in stacks
        for stack in self._stacks.end() if ended else ():
            self._look_at(stack)

    def _look_at(self, stack: Stack[StackLine]) -> None:
        numbers = {number for (_, _, some), _ in stack.frames for number in some}
        self._framed.update(numbers)
        named = sorted(number for number in numbers if self._index.is_part(number))
        signatures = {self._index.parts[n].numbers: self._index.parts[n] for n in named}
        for parts, one in signatures.items():
            for number, (at, text, _) in zip(parts, stack.lines(one.stack), strict=False):
                self.saw_frame(at, text, number)
                self.completed(one.signature)

    def _is_news(self, number: int) -> bool:
        """Whether a line with this part must be examined: the part's first line, and later ones if they are
        counted."""
        return self._index.is_part(number) and (self._index.parts[number].counts or not self._seen[number])

    def _count(self, number: int, lines: int) -> None:
        part = self._index.parts[number]
        begins = not self._seen[number]
        self._seen[number] += lines
        complete = all(self._seen[part_number] for part_number in part.numbers)
        if complete and begins:
            self.completed(part.signature)
            self._scanner.resume(
                [part_number for part_number in part.numbers if self._index.parts[part_number].counts]
            )
        if not part.counts and begins:
            self._scanner.pause(number)
        elif part.counts and self._seen[number] >= (inf if complete else MANY) > self._seen[number] - lines:
            self._scanner.pause(number)
            self.lost_count(number)


class Search:
    """Says of short texts which of these signatures they show, as `Reading` does of logs."""

    def __init__(self, signatures: Sequence[Searched]) -> None:
        self._index = Index(signatures)

    def shown(self, text: str) -> set[int]:
        """Numbers of the signatures that the text shows."""
        reading = Reading(self._index)
        reading.feed(text.encode("utf-8", "replace"))
        reading.flush()
        return reading.complete
