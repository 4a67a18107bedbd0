"""Find patterns in a log read in blocks, in linear time and bounded memory, also across block ends.

A pattern is searched in single lines that contain its fixed text. If such a line does not match, it is joined
with its neighbours, since messages are wrapped by terminals, editors and gdb, sometimes inside a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate, compress
from operator import itemgetter
from typing import NamedTuple

from gpuipc_doctor.texts.finder import Find, finder, lazy
from gpuipc_doctor.texts.literals import LONGEST as LONGEST_TEXT
from gpuipc_doctor.texts.literals import (
    Needs,
    bare,
    dense,
    dense_keys,
    dense_text,
    dense_ways,
    fixed_text,
    has,
    in_order,
)

REACH = 6
"""Number of neighbouring lines on each side that are joined with a line."""
LONGEST = 4096
"""Maximum bytes of a line; a longer line is treated as several lines."""
BLOCK = 1 << 18
"""Bytes read at a time: few enough for the processor's cache, enough for many equal lines. A line that is
longer than this is examined in parts."""

_SAMPLE = 3
"""Equal lines per block that are examined individually."""
_MOST_KNOWN = 50_000
"""Maximum pairs of lines remembered, about 5 MB. When a log has more, all are forgotten."""
_MOSTLY = 0.3
"""If more than this fraction of a block's lines is new, remembering lines takes longer than examining
them."""
_FEW = 200
"""Minimum lines in a block for its fraction of new lines to count."""
_FEW_PATTERNS = 8
"""Up to this many patterns, trying each is faster than one search for all their texts."""
_PREPARED = 4_000
"""To try this many patterns takes as long as to prepare one search for all their texts."""
_OFTEN = 20
"""If a block contains a text more often than this, the block is first searched for the patterns' other
texts."""
_UNREMEMBERED = 96
"""Number of blocks without remembering before it is tried again."""
_WASTED = 200_000
"""Preparing a search without the paused patterns takes as long as this many useless matches."""

_WIDTHS = {79, 80, 100, 120, 132, LONGEST}
"""Usual widths of terminals, at which one full line counts as wrapped. At other widths two full lines are
needed."""
_NARROWEST = 60
"""Minimum columns of a reader's terminal."""
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""Colours and other ECMA-48 sequences, which may occur inside a message."""

_TYPESET = re.compile(rb"\xe2\x80[\x90-\x95\x98-\x9f]")
"""Dashes and quotation marks in UTF-8 that web pages and word processors put in place of ``-``, ``'`` and
``"``."""


def _plain(text: bytes) -> bytes:
    """The text without escape sequences and typeset marks."""
    if b"\x1b" in text:
        text = _ESCAPE.sub(b"", text)
    return _TYPESET.sub(_typewritten, text) if b"\xe2\x80" in text else text


def _typewritten(typeset: re.Match[bytes]) -> bytes:
    last = typeset[0][-1]
    return b"-" if last < 0x98 else b"'" if last < 0x9C else b'"'


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


class Patterns:
    """Prepared patterns, shared by the scanners of all logs."""

    def __init__(
        self, patterns: Sequence[Pattern], known_texts: Mapping[str, Mapping[bytes, Needs]] | None = None
    ) -> None:
        """``known_texts``: results of `fixed_text`. Raises `ValueError` for a pattern without fixed text,
        which would have to be tried on each line."""
        self.patterns = patterns
        known = known_texts or {}
        self.of_text: dict[bytes, list[_Candidate]] = {}
        """Fixed text → the patterns that may match where it occurs."""
        for number, pattern in enumerate(patterns):
            texts = known.get(pattern.text) or fixed_text(pattern.text)
            if not texts:
                raise ValueError(f"{pattern.text!r} has no fixed text to look for")
            for text, rest in texts.items():
                self.of_text.setdefault(text, []).append(_Candidate(number, pattern.wrapped, rest))
        self.places: defaultdict[int, list[int]] = defaultdict(list)
        """Pattern → indexes of its texts."""
        for index, candidates in enumerate(self.of_text.values()):
            for one in candidates:
                self.places[one.number].append(index)
        self.find = lazy(list(self.of_text))
        self._tried = 0
        """Number of patterns tried one by one although they were many: see `_PREPARED`."""

    def in_text(self, text: bytes, numbers: Sequence[int]) -> list[int]:
        """The patterns that may match in a dense text."""
        if len(numbers) <= _FEW_PATTERNS:
            return [n for n in numbers if _may_match(text, self.patterns[n].text)]
        different = {self.patterns[n].text for n in numbers}
        self._tried += len(different)
        if self._tried < _PREPARED:
            likely = {pattern for pattern in different if _may_match(text, pattern)}
            return [n for n in numbers if self.patterns[n].text in likely]
        find, of_text = self._dense_finder
        found = {
            n for index in {at for at, _ in find(text)} for n, ways in of_text[index] if in_order(text, ways)
        }
        return [number for number in numbers if number in found]

    @cached_property
    def _dense_finder(self) -> tuple[Find, list[list[tuple[int, Needs]]]]:
        of_text: defaultdict[bytes, list[tuple[int, Needs]]] = defaultdict(list)
        for number, pattern in enumerate(self.patterns):
            for text, ways in dense_keys(pattern.text).items():
                of_text[text].append((number, ways))
        return finder(list(of_text)), list(of_text.values())


def _may_match(text: bytes, pattern: str) -> bool:
    """Whether a dense text may contain a match of ``pattern``."""
    return any(map(text.__contains__, dense_keys(pattern))) and has(text, dense_text(pattern))


class _Candidate(NamedTuple):
    number: int
    wrapped: bool
    rest: Needs
    """The other bare texts that a match must contain."""


class _Search:
    """Searches for the fixed texts of the patterns that are not paused."""

    def __init__(self, patterns: Patterns, resting: Collection[int] = ()) -> None:
        self._texts: Sequence[bytes] = list(patterns.of_text)
        self._find = patterns.find
        self._awake: list[Sequence[_Candidate]] = list(patterns.of_text.values())
        """Index of a text → the patterns that may match where it occurs, without paused patterns."""
        self._places: Mapping[int, Sequence[int]] | None = patterns.places
        """Pattern → indexes of its texts; None after texts were left out."""
        self._wasted = 0
        """Number of texts found whose patterns are all paused."""
        for number in resting:
            self.rest(number)

    def rest(self, number: int) -> None:
        for index in range(len(self._awake)) if self._places is None else self._places[number]:
            self._awake[index] = [one for one in self._awake[index] if one.number != number]

    def _matches(self, text: bytes) -> tuple[list[tuple[int, int]], Counter[int]]:
        """The fixed texts found, as (index, offset of the end), and how often each text was found."""
        if self._wasted > _WASTED and any(self._awake):
            self._texts = list(compress(self._texts, self._awake))
            self._awake = list(filter(None, self._awake))
            self._places = None
            self._find, self._wasted = lazy(self._texts), 0
        found = self._find(text)
        times = Counter(map(itemgetter(0), found))
        self._wasted += sum(count for index, count in times.items() if not self._awake[index])
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
            candidates, at = self._awake[index], bisect_right(ends, end - 1)
            if candidates and end >= ends[at] - len(lines[at]):
                found[at].update(one.number for one in candidates if one.wrapped or has(lines[at], one.rest))
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
        there = {
            index: _there(self._awake[index], text) if count > _OFTEN else self._awake[index]
            for index, count in times.items()
        }
        own = range(starts[len(before)] + 1, starts[len(before) + len(lines)] + 1)
        for index, end in matches:
            if not (candidates := there[index]) or end not in own:
                continue
            at = bisect_right(starts, end - 1) - 1
            last = min(at + REACH + 2, len(around))  # one more, since the first line may be a line's end
            near = text[starts[max(0, at - REACH - 1)] : starts[last]]
            for one in candidates:
                if has(near if one.wrapped else around[at], one.rest):
                    found[at - len(before)].add(one.number)
        return found


def _there(candidates: Sequence[_Candidate], text: bytes) -> Sequence[_Candidate]:
    """The candidates whose other texts are also in the bare ``text``."""
    parts = tuple(dict.fromkeys(part for one in candidates for texts in one.rest for part in texts))
    if not parts:
        return candidates
    found = {parts[index] for index, _ in _finder_of(parts)(text)}
    return [one for one in candidates if any(found.issuperset(texts) for texts in one.rest)]


class _Way(NamedTuple):
    """One of the ways in which a pattern may match."""

    texts: tuple[bytes, ...]
    """The dense texts in a match, in order."""
    figures: Sequence[bytes]
    """The ``texts`` that have decimal digits."""


@dataclass(eq=False, slots=True)
class _Form:
    """Equal lines, which may contain the same patterns."""

    kind: int
    """Hash of the bare line."""
    numbers: tuple[int, ...]
    is_news: bool = True
    """Whether none of the lines was examined yet."""
    figures: dict[int, list[_Way]] | None = None
    """Digit-sensitive patterns that may match some of the lines → the ways to match; None if not yet
    known."""


class _Memory:
    """Which patterns the lines of a log may contain.

    This depends on the bare line and, if a line end breaks a text, on the line before. Nearly every pair of
    lines recurs, since a log has few forms of lines. If most lines of a log are new, nothing is remembered.
    """

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._form_of: dict[int, _Form | None] = {}
        """Hash of a pair of lines → form. Most pairs contain no pattern and have None."""
        self._forms: dict[tuple[int, tuple[int, ...]], _Form] = {}
        self._resting: set[int] = set()
        self._search = _Search(patterns)
        self._not_remembered = 0
        """Number of blocks examined without remembering."""

    def groups(
        self, lines: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]
    ) -> dict[_Form, list[int]]:
        """Form of equal lines → positions of such lines, if they may contain patterns. All arguments are bare
        lines."""
        groups: defaultdict[_Form, list[int]] = defaultdict(list)
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

    def rest(self, number: int) -> None:
        """Pause the search for this pattern."""
        if number in self._resting:
            return
        self._resting.add(number)
        self._search.rest(number)
        for pair, form in self._form_of.items():
            if form and number in form.numbers:
                self._form_of[pair] = self._form(form.kind, form.numbers)

    def wake(self, numbers: Collection[int]) -> None:
        """Resume the search for these patterns."""
        if not self._resting.isdisjoint(numbers):
            self._resting.difference_update(numbers)
            self._search = _Search(self._patterns, self._resting)
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

    def _form(self, kind: int, numbers: Iterable[int]) -> _Form | None:
        awake = tuple(sorted(number for number in numbers if number not in self._resting))
        if not awake:
            return None
        if len(self._forms) > _MOST_KNOWN:
            self._forms.clear()
        return self._forms.setdefault((kind, awake), _Form(kind, awake))

    def _forget(self) -> None:
        self._form_of.clear()
        self._forms.clear()


class Scanner:
    """Reads one log."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._memory = _Memory(patterns)
        self.rest, self.wake = self._memory.rest, self._memory.wake
        self._before = b""
        """The last examined lines, in case new lines continue them."""
        self._waiting = b""
        """Lines held back until following lines arrive, and an unfinished line."""
        self._ended = 0
        """Number of finished lines."""
        self._open = False
        """Whether the last line is unfinished."""

    @property
    def lines(self) -> int:
        """Number of examined lines."""
        return self._ended + self._open

    def feed(self, data: bytes) -> Iterator[Hit]:
        """Examine new lines; the last `REACH` lines are held back until more lines arrive."""
        self._waiting += data
        end = self._waiting.rfind(b"\n") + 1
        if len(self._waiting) - end >= BLOCK:
            end = len(self._waiting)
        upto = _lines_back(self._waiting, end, REACH)
        if upto or end >= BLOCK:
            yield from self._scan(upto or end, end)

    def flush(self) -> Iterator[Hit]:
        """Also examine the lines held back, because no more lines arrive soon."""
        if self._waiting:
            yield from self._scan(len(self._waiting), len(self._waiting))

    def _scan(self, upto: int, end: int) -> Iterator[Hit]:
        """Examine ``waiting[:upto]``, with neighbours up to ``end``."""
        before, new, after = self._before, self._waiting[:upto], self._waiting[upto:end]
        first = self._ended + 1
        self._waiting = self._waiting[upto:]
        done = before[-REACH * LONGEST :] + new[-REACH * LONGEST :]
        self._before = done[_lines_back(done, len(done), REACH) :]
        self._ended += new.count(b"\n")
        self._open = not new.endswith(b"\n")
        before, new, after = map(_plain, (before, new, after))
        beside = _lines(bare(before)), _lines(bare(after))
        bare_lines = _lines(bare(new))
        if not (groups := self._memory.groups(bare_lines, *beside)):
            return
        numbers, lines = _rows(new, first)
        if len(lines) != len(bare_lines):
            bare_lines = _lines(bare(b"\n".join(lines)))
            groups = self._memory.groups(bare_lines, *beside)
        surroundings = _rows(before)[1]
        if surroundings and not before.endswith(b"\n"):
            lines[0] = surroundings.pop() + lines[0]
        around = [*surroundings, *lines, *_rows(after)[1]]
        block = _Block(lines, numbers, bare_lines, around, len(surroundings))
        for form, places in groups.items():
            for alike, absent in self._alike(block, places, form):
                yield from self._look(block, alike, form, absent)

    def _figures(self, form: _Form, kind: bytes) -> dict[int, list[_Way]]:
        if form.figures is None:
            form.figures = {
                number: [
                    _Way(texts, [text for text in texts if any(map(str.isdecimal, text.decode()))])
                    for texts in dense_ways(self._patterns.patterns[number].text)
                    if has(kind, [tuple(map(bare, texts))])
                ]
                for number in form.numbers
                if self._patterns.patterns[number].reads_figures
            }
        return form.figures

    def _alike(
        self, block: _Block, places: Sequence[int], form: _Form
    ) -> Iterable[tuple[Sequence[int], Collection[int]]]:
        """Group lines that differ only in digits by the digit-sensitive patterns that they match. Each group
        comes with the patterns that none of its lines matches."""
        if len(places) == 1:
            return [(places, ())]
        figures = self._figures(form, block.kinds[places[0]])
        if not any(figures.values()):
            return [(places, figures)]
        if len(places) <= _SAMPLE:
            return [([place], ()) for place in places]
        rows = b"\n".join(block.rows(places))
        lines = rows.decode("utf-8", "replace").split("\n")
        held: dict[int, list[int]] = {}
        for number, possible in _possible(figures, dense(rows)).items():
            search = self._patterns.patterns[number].regex.search
            if found := [row for row in possible if search(lines[row])]:
                held[number] = found
        if all(len(found) == len(lines) for found in held.values()):
            return [(places, figures.keys() - held)]
        numbers: list[tuple[int, ...]] = [()] * len(lines)
        for number, found in held.items():
            for row in found:
                numbers[row] += (number,)
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, some in zip(places, numbers, strict=True):
            alike[some].append(place)
        return [(equal, figures.keys() - set(some)) for some, equal in alike.items()]

    def _look(
        self, block: _Block, places: Sequence[int], form: _Form, absent: Collection[int]
    ) -> Iterator[Hit]:
        """Examine lines that are equal when bare. If the first few give the same result, it is that of all.

        ``absent``: patterns that can only match a line together with its neighbours.
        """
        look_at = partial(self._hit, block, wanted=form.numbers, absent=absent)
        sample = list(map(look_at, places[: _SAMPLE if form.is_news else 1]))
        form.is_news &= len(places) == 1
        if len(places) > 1:
            shown = {tuple(number for number, _ in hit.matches) for hit in sample}
            if len(shown) > 1 or any(m.string is not hit.text for hit in sample for _, m in hit.matches):
                sample += map(look_at, places[len(sample) :])
            else:
                numbers = list(map(block.numbers.__getitem__, places[1:]))
                sample = [sample[0]._replace(again=block.rows(places[1:]), numbers=numbers)]
        yield from (hit for hit in sample if hit.matches)

    def _hit(self, block: _Block, place: int, wanted: Sequence[int], absent: Collection[int]) -> Hit:
        patterns = self._patterns.patterns
        line = block.lines[place]
        text = line.decode("utf-8", "replace")
        likely = [number for number in wanted if number not in absent]
        if len(likely) > _FEW_PATTERNS:
            likely = self._patterns.in_text(dense(line), likely)
        found = {number: match for number in likely if (match := patterns[number].regex.search(text))}
        others = [number for number in wanted if number not in found and patterns[number].wrapped]
        if others and (run := block.run(place)):
            for number in self._patterns.in_text(dense(b"".join(run.lines)), others):
                if match := _across(patterns[number].regex, run.readings):
                    found[number] = match
        matches = [
            (number, match)
            for number, match in sorted(found.items())
            if patterns[number].counts(spanned(match)[0])
        ]
        return Hit(block.numbers[place], text, block.kinds[place], tuple(matches))


@dataclass(frozen=True, slots=True)
class _Block:
    lines: Sequence[bytes]
    numbers: Sequence[int]
    kinds: Sequence[bytes]
    around: Sequence[bytes]
    """``lines`` with neighbours."""
    before: int
    """Number of lines in the block before ``lines``."""

    def rows(self, places: Iterable[int]) -> list[bytes]:
        return list(map(self.lines.__getitem__, places))

    def run(self, place: int) -> _Run | None:
        """The message that a line may be a part of."""
        index = self.before + place
        reach = 1 if len(self.lines[place]) >= LONGEST else REACH  # not a terminal's wrapping
        first = max(0, index - reach)
        return _run(self.around[first : index + reach + 1], index - first)


def _possible(figures: Mapping[int, Iterable[_Way]], text: bytes) -> dict[int, Collection[int]]:
    """Digit-sensitive pattern → the lines of a dense text that it may match."""
    lines = text.split(b"\n")
    every = range(len(lines))
    parts = tuple(dict.fromkeys(part for ways in figures.values() for way in ways for part in way.figures))
    if len(parts) <= _FEW_PATTERNS:
        return {
            number: every if any(has(text, [way.texts]) for way in ways) else ()
            for number, ways in figures.items()
        }
    having: dict[bytes, set[int]] = {part: set() for part in parts}
    ends = list(accumulate(len(line) + 1 for line in lines))
    for index, end in _finder_of(parts)(text):
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


_finder_of = lru_cache(maxsize=256)(finder)


def _lines_back(text: bytes, end: int, count: int) -> int:
    """Start of the last ``count`` lines before ``end``; 0 if there are fewer."""
    for _ in range(count + (text[end - 1 : end] == b"\n")):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _lines(block: bytes) -> list[bytes]:
    """The lines of a block; the last one may be unfinished."""
    lines = block.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _rows(block: bytes, first: int = 1) -> tuple[Sequence[int], list[bytes]]:
    """(line, number) of each line of a block; a line that is too long or overwritten by carriage returns
    becomes several."""
    lines = _lines(block)
    numbers: Sequence[int] = range(first, first + len(lines))
    if b"\r" in block or max(map(len, lines), default=0) > LONGEST:
        parts = [(number, part) for number, line in zip(numbers, lines, strict=True) for part in _parts(line)]
        numbers, lines = [number for number, _ in parts], [part for _, part in parts]
    return numbers, lines


def _parts(line: bytes) -> Iterator[bytes]:
    for part in line.rstrip(b"\r").split(b"\r"):
        yield from [part[at : at + LONGEST] for at in range(0, len(part), LONGEST)] or [part]


@dataclass(frozen=True)
class _Run:
    """Lines that may be one message, wrapped."""

    lines: Sequence[bytes]
    index: int
    """Position of the line that is examined."""
    width: int
    """Length in bytes of lines that may be cut inside a word; 0 if no line is."""

    @cached_property
    def readings(self) -> list[tuple[str, int, int]]:
        """Possible original texts, each with the position of the line in it.

        The lines are joined with line ends, which white space in a pattern matches. If the lines look cut at
        a terminal's width, a second text has the broken words joined.
        """
        return [_joined(self.lines, self.index, full) for full in dict.fromkeys((0, self.width))]


def _run(near: Sequence[bytes], index: int) -> _Run | None:
    """The lines that may form one wrapped message with the line at ``index``; None if no neighbour does."""
    longest = max(near, key=len)
    if _is_drawn(longest):
        longest = max((line for line in near if not _is_drawn(line)), key=len, default=b"")
    width = len(longest)
    first = last = index
    while first > 0 and _goes_on(near[first - 1], near[first], width):
        first -= 1
    while last + 1 < len(near) and _goes_on(near[last], near[last + 1], width):
        last += 1
    if first == last:
        return None
    hard = width in _WIDTHS or (width >= _NARROWEST and sum(len(line) == width for line in near) > 1)
    return _Run(near[first : last + 1], index - first, width if hard else 0)


def _is_drawn(line: bytes) -> bool:
    """Whether the line is blank or one character repeated, as around the messages of Open MPI."""
    text = line.strip()
    return not text.strip(text[:1])


def _goes_on(line: bytes, following: bytes, width: int) -> bool:
    """Whether ``following`` may continue ``line``: it is indented, or its first word did not fit on the
    line."""
    word = following.split(maxsplit=1)[:1]
    return bool(word) and (following[:1] in b" \t" or len(line) + len(word[0]) >= max(width, _NARROWEST))


def _joined(lines: Sequence[bytes], index: int, full: int) -> tuple[str, int, int]:
    """``lines`` as one text, and the position of ``lines[index]`` in it. Lines that are ``full`` bytes long
    have no line end, since they may end inside a word."""
    ended = [line if len(line) == full else line + b"\n" for line in lines]
    texts = [text.decode("utf-8", "replace") for text in ended]
    start = sum(map(len, texts[:index]))
    return "".join(texts), start, start + len(texts[index])


def _across(regex: re.Pattern[str], readings: Iterable[tuple[str, int, int]]) -> re.Match[str] | None:
    """A match that is partly in the line and partly in its neighbours."""
    for text, start, end in readings:
        for match in regex.finditer(text):
            if match.start() < end and match.end() > start:
                return match
    return None
