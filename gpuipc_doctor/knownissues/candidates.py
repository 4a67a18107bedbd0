"""Which patterns the lines of a block may contain: by their fixed texts, without regular expressions.

The answer is remembered by the form of a line, since a log has few forms of lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from operator import itemgetter
from typing import NamedTuple

from gpuipc_doctor.knownissues.lines import REACH
from gpuipc_doctor.knownissues.literals import LONGEST as LONGEST_TEXT
from gpuipc_doctor.knownissues.literals import bare, cached_finder, dense, dense_ways, has, in_order, lazy
from gpuipc_doctor.knownissues.patterns import FEW_PATTERNS, Candidate, Pattern, Patterns


class Way(NamedTuple):
    """One of the ways in which a pattern may match."""

    texts: tuple[bytes, ...]
    """The dense texts in a match, in order."""
    figures: Sequence[bytes]
    """The ``texts`` that have decimal digits."""


def ways_to_match(patterns: Mapping[int, Pattern], kind: bytes) -> dict[int, list[Way]]:
    """Digit-sensitive pattern → the ways in which it may match lines whose bare text is ``kind``."""
    ways = {}
    for number, pattern in patterns.items():
        if pattern.reads_figures:
            ways[number] = [
                Way(texts, [text for text in texts if _has_digits(text)])
                for texts in dense_ways(pattern.text)
                if has(kind, [tuple(map(bare, texts))])
            ]
    return ways


def _has_digits(text: bytes) -> bool:
    return any(map(str.isdecimal, text.decode()))


def matching_rows(
    patterns: Sequence[Pattern], ways: Mapping[int, Iterable[Way]], rows: Sequence[bytes]
) -> dict[int, list[int]]:
    """Digit-sensitive pattern → indexes of the rows that it matches; no entry if it matches none."""
    text = b"\n".join(rows)
    lines = text.decode("utf-8", "replace").split("\n")
    matching: dict[int, list[int]] = {}
    for number, possible in _possible(ways, dense(text)).items():
        search = patterns[number].regex.search
        if found := [row for row in possible if search(lines[row])]:
            matching[number] = found
    return matching


def group_by_matches(
    matching: Mapping[int, Sequence[int]], places: Sequence[int]
) -> dict[tuple[int, ...], list[int]]:
    """Digit-sensitive patterns that match a row → the places of these rows."""
    numbers: list[tuple[int, ...]] = [()] * len(places)
    for number, rows in matching.items():
        for row in rows:
            numbers[row] += (number,)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, found in zip(places, numbers, strict=True):
        groups[found].append(place)
    return groups


def _possible(figures: Mapping[int, Iterable[Way]], text: bytes) -> dict[int, Collection[int]]:
    """Digit-sensitive pattern → the lines of a dense text that it may match."""
    lines = text.split(b"\n")
    every = range(len(lines))
    parts = tuple(dict.fromkeys(part for ways in figures.values() for way in ways for part in way.figures))
    if len(parts) <= FEW_PATTERNS:
        return {
            number: every if any(has(text, [way.texts]) for way in ways) else ()
            for number, ways in figures.items()
        }
    having: dict[bytes, set[int]] = {part: set() for part in parts}
    ends = list(accumulate(len(line) + 1 for line in lines))
    for index, end in cached_finder(parts)(text):
        having[parts[index]].add(bisect_right(ends, end - 1))
    return {
        number: {
            row
            for way in ways
            if has(text, [way.texts])
            for row in set(every).intersection(*map(having.__getitem__, way.figures))
            if in_order(lines[row], [way.texts])
        }
        for number, ways in figures.items()
    }


_MOST_KNOWN = 50_000
"""Maximum pairs of lines remembered, about 5 MB. When a log has more, all are forgotten."""
_MOSTLY = 0.3
"""If more than this fraction of a block's lines is new, remembering lines takes longer than examining
them."""
_FEW = 200
"""Minimum lines in a block for its fraction of new lines to count."""
_OFTEN = 20
"""If a block contains a text more often than this, the block is first searched for the patterns' other
texts."""
_UNREMEMBERED = 96
"""Number of blocks without remembering before it is tried again."""
_WASTED = 200_000
"""Preparing a search without the paused patterns takes as long as this many useless matches."""


@dataclass(eq=False, slots=True)
class Form:
    """Equal lines, which may contain the same patterns."""

    kind: int
    """Hash of the bare line."""
    numbers: tuple[int, ...]
    is_news: bool = True
    """Whether none of the lines was examined yet."""
    figures: dict[int, list[Way]] | None = None
    """Digit-sensitive patterns that may match some of the lines → the ways to match; None if not yet
    known."""


class Memory:
    """Which patterns the lines of a log may contain.

    This depends on the bare line and, if a line end breaks a text, on the line before. Nearly every pair of
    lines recurs, since a log has few forms of lines. If most lines of a log are new, nothing is remembered.
    """

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._form_of: dict[int, Form | None] = {}
        """Hash of a pair of lines → form. Most pairs contain no pattern and have None."""
        self._forms: dict[tuple[int, tuple[int, ...]], Form] = {}
        self._paused: set[int] = set()
        self._search = _Search(patterns)
        self._not_remembered = 0
        """Number of blocks examined without remembering."""

    def groups(
        self, lines: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]
    ) -> dict[Form, list[int]]:
        """Form of equal lines → positions of such lines, if they may contain patterns. All arguments are bare
        lines."""
        groups: defaultdict[Form, list[int]] = defaultdict(list)
        if self._not_remembered:
            self._not_remembered -= 1
            for at, numbers in sorted(self._search.in_block(lines, before, after).items()):
                if form := self._form(hash(lines[at]), numbers):
                    groups[form].append(at)
            return groups
        befores = [before[-1] if before else b"", *lines]
        pairs = list(map(hash, zip(befores, lines, strict=False)))
        try:
            forms = list(map(self._form_of.__getitem__, pairs))
        except KeyError:
            self._learn(pairs, befores, lines)
            forms = list(map(self._form_of.__getitem__, pairs))
        if any(forms):
            for at, form in enumerate(forms):
                if form:
                    groups[form].append(at)
        return groups

    def pause(self, number: int) -> None:
        """Pause the search for this pattern."""
        if number in self._paused:
            return
        self._paused.add(number)
        self._search.pause(number)
        for pair, form in self._form_of.items():
            if form and number in form.numbers:
                self._form_of[pair] = self._form(form.kind, form.numbers)

    def resume(self, numbers: Collection[int]) -> None:
        """Resume the search for these patterns."""
        if not self._paused.isdisjoint(numbers):
            self._paused.difference_update(numbers)
            self._search = _Search(self._patterns, self._paused)
            self._forget()

    def _learn(self, pairs: Sequence[int], befores: Sequence[bytes], lines: Sequence[bytes]) -> None:
        if len(self._form_of) > _MOST_KNOWN:
            self._forget()
        fresh = {pair: at for at, pair in enumerate(pairs) if pair not in self._form_of}
        if len(fresh) > len(pairs) * _MOSTLY and len(pairs) > _FEW:
            self._not_remembered = _UNREMEMBERED
        self._form_of.update(dict.fromkeys(fresh))
        places = list(fresh.values())
        befores, lines = [befores[at] for at in places], [lines[at] for at in places]
        for index, numbers in self._search.possible(befores, lines).items():
            self._form_of[pairs[places[index]]] = self._form(hash(lines[index]), numbers)

    def _form(self, kind: int, numbers: Iterable[int]) -> Form | None:
        active = tuple(sorted(number for number in numbers if number not in self._paused))
        if not active:
            return None
        if len(self._forms) > _MOST_KNOWN:
            self._forms.clear()
        return self._forms.setdefault((kind, active), Form(kind, active))

    def _forget(self) -> None:
        self._form_of.clear()
        self._forms.clear()


class _Search:
    """Searches for the fixed texts of the patterns that are not paused."""

    def __init__(self, patterns: Patterns, paused: Collection[int] = ()) -> None:
        self._texts: Sequence[bytes] = list(patterns.candidates)
        self._find = patterns.find
        self._active: list[Sequence[Candidate]] = list(patterns.candidates.values())
        """Index of a text → the patterns that may match where it occurs, without paused patterns."""
        self._places: Mapping[int, Sequence[int]] | None = patterns.places
        """Pattern → indexes of its texts; None after texts were left out."""
        self._wasted = 0
        """Number of texts found whose patterns are all paused."""
        for number in paused:
            self.pause(number)

    def pause(self, number: int) -> None:
        for index in range(len(self._active)) if self._places is None else self._places[number]:
            active = self._active[index]
            self._active[index] = [candidate for candidate in active if candidate.number != number]

    def _matches(self, text: bytes) -> tuple[list[tuple[int, int]], Counter[int]]:
        """The fixed texts found, as (index, offset of the end), and how often each text was found."""
        if self._wasted > _WASTED and any(self._active):
            self._texts = list(compress(self._texts, self._active))
            self._active = list(filter(None, self._active))
            self._places = None
            self._find, self._wasted = lazy(self._texts), 0
        found = self._find(text)
        times = Counter(map(itemgetter(0), found))
        self._wasted += sum(count for index, count in times.items() if not self._active[index])
        return found, times

    def possible(self, befores: Sequence[bytes], lines: Sequence[bytes]) -> dict[int, set[int]]:
        """Index of a line → the patterns that it may contain, alone or after the end of the line before.

        A text belongs to the line in which it ends. Lines without a pattern are left out.
        """
        tails = [before[-LONGEST_TEXT:] for before in befores]
        texts = [b"%b%b\n" % both for both in zip(tails, lines, strict=True)]
        ends = list(accumulate(map(len, texts)))
        found: defaultdict[int, set[int]] = defaultdict(set)
        for index, end in self._matches(b"".join(texts))[0]:
            candidates, at = self._active[index], bisect_right(ends, end - 1)
            if candidates and end >= ends[at] - len(lines[at]):
                for candidate in candidates:
                    if candidate.wrapped or has(lines[at], candidate.needs):
                        found[at].add(candidate.number)
        return found

    def in_block(
        self, lines: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]
    ) -> dict[int, set[int]]:
        """The result of `possible` for consecutive lines, which are searched together with their
        neighbours."""
        around = [*before, *lines, *after]
        text = b"".join(around)
        starts = list(accumulate(map(len, around), initial=0))
        found: defaultdict[int, set[int]] = defaultdict(set)
        matches, times = self._matches(text)
        possible = {
            index: _present(self._active[index], text) if count > _OFTEN else self._active[index]
            for index, count in times.items()
        }
        own = range(starts[len(before)] + 1, starts[len(before) + len(lines)] + 1)
        for index, end in matches:
            if not (candidates := possible[index]) or end not in own:
                continue
            at = bisect_right(starts, end - 1) - 1
            last = min(at + REACH + 2, len(around))  # one more, since the first line may be a line's end
            near = text[starts[max(0, at - REACH - 1)] : starts[last]]
            for candidate in candidates:
                if has(near if candidate.wrapped else around[at], candidate.needs):
                    found[at - len(before)].add(candidate.number)
        return found


def _present(candidates: Sequence[Candidate], text: bytes) -> Sequence[Candidate]:
    """The candidates whose other texts are also in the bare ``text``."""
    ways = [texts for candidate in candidates for texts in candidate.needs]
    parts = tuple(dict.fromkeys(chain.from_iterable(ways)))
    if not parts:
        return candidates
    found = {parts[index] for index, _ in cached_finder(parts)(text)}
    return [
        candidate for candidate in candidates if any(found.issuperset(texts) for texts in candidate.needs)
    ]
