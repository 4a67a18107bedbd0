"""Find patterns in a log that comes in blocks: linear in its length, bounded in memory, whole at block edges.

A pattern is searched in one line. Where it is not in the line that holds its fixed text, the line is read
together with its neighbours: messages are wrapped by terminals, editors and gdb, sometimes inside a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpuipc_doctor.diagnose.finder import finder
from gpuipc_doctor.diagnose.literals import LONGEST as LONGEST_TEXT
from gpuipc_doctor.diagnose.literals import bare, dense, dense_text, fixed_text

REACH = 6
"""Lines before and after that a line is read with."""
LONGEST = 4096
"""Bytes. A longer line is taken for several that belong together."""
BLOCK = 1 << 18
"""Bytes read at a time: little enough to stay in the cache, and enough lines of a kind. A line that does not
end within as many is read in parts."""

_SAMPLE = 3
"""Lines that say the same, in one block, that are looked at one by one."""
_MOST_KNOWN = 50_000
"""Pairs of lines that are remembered, in some 5 MB; of a log with more forms than that, all is forgotten."""
_MOSTLY = 0.3
"""The part of a block's lines that are new from which on it is dearer to remember them than to look again."""
_FEW = 200
"""Lines of a block that tell nothing of how many will be new."""
_UNREMEMBERED = 24
"""Blocks after which it is tried again."""

_WIDTHS = {79, 80, 100, 120, 132, LONGEST}
"""Columns at which one full line is enough to think that it was wrapped; at others it takes two."""
_NARROWEST = 60
"""Bytes. Whoever reads logs has at least as many columns."""
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
"""Colours and the like, ECMA-48; they may stand inside a message."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """``wrapped``: also look for it across line ends. ``unless``: lines that this finds do not count."""

    regex: re.Pattern[str]
    wrapped: bool = False
    unless: re.Pattern[str] | None = None

    @property
    def reads_figures(self) -> bool:
        r"""Whether it may tell lines apart that are the same but for figures: ``-22`` does, ``\d+`` not."""
        return bool(re.search(r"\d|\\d(?!\+)", _ANY_FIGURES.sub("", self.regex.pattern)))


_ANY_FIGURES = re.compile(r"0x|\[0-9a-f\]\+|\{[\d,]+\}")


@dataclass(frozen=True, slots=True)
class Hit:
    """A line, or the lines that a wrapped one takes, and the patterns in it."""

    number: int
    """Of the first line, counted from 1."""
    text: str
    kind: bytes
    """The bare line: the same in all lines that say the same."""
    matches: tuple[tuple[int, re.Match[str]], ...]
    """Number of the pattern and what it matched, in ``text`` or in more than it."""
    again: Sequence[bytes] = ()
    """Further lines that say the same, soon after."""
    numbers: Sequence[int] = ()
    """Theirs."""


def spanned(match: re.Match[str]) -> tuple[str, int, int]:
    """The lines that a match is in, and from where to where."""
    begin = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    text = match.string[begin : end if end >= 0 else None]
    return text, match.start() - begin, match.end() - begin


class Patterns:
    """What to look for, prepared once and shared by the scanners of all logs."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        """Raises `ValueError` for a pattern without fixed text: each line would have to be tried."""
        self.patterns = patterns
        self.read_figures = frozenset(n for n, pattern in enumerate(patterns) if pattern.reads_figures)
        numbers: dict[bytes, list[int]] = {}
        for number, pattern in enumerate(patterns):
            texts = fixed_text(pattern.regex.pattern)
            if not texts:
                raise ValueError(f"{pattern.regex.pattern!r} has no fixed text to look for")
            for text in texts:
                numbers.setdefault(text, []).append(number)
        self.of_text: Sequence[Sequence[int]] = list(numbers.values())
        """The patterns of each text that is looked for."""
        self._find = finder(list(numbers))

    def possible(
        self, befores: Sequence[bytes], lines: Sequence[bytes], awake: Sequence[Sequence[int]]
    ) -> dict[int, set[int]]:
        """The patterns that each line may hold by its bare text, or by that and the end of the line before.

        A text counts where it ends. Lines that hold none are left out. ``awake``: as `of_text`, without the
        patterns that rest.
        """
        tails = [before[-LONGEST_TEXT:] for before in befores]
        texts = [b"%b%b\n" % both for both in zip(tails, lines, strict=True)]
        ends = list(accumulate(map(len, texts)))
        found: dict[int, set[int]] = {}
        for text, end in self._find(b"".join(texts)):
            if numbers := awake[text]:
                at = bisect_right(ends, end - 1)
                if end >= ends[at] - len(lines[at]):
                    found.setdefault(at, set()).update(numbers)
        return found

    def in_block(
        self, before: bytes, lines: Sequence[bytes], awake: Sequence[Sequence[int]]
    ) -> dict[int, set[int]]:
        """As `possible`, of lines that follow each other."""
        tail = before[-LONGEST_TEXT:]
        found: defaultdict[int, set[int]] = defaultdict(set)
        matches = [(end, awake[text]) for text, end in self._find(tail + b"".join(lines)) if awake[text]]
        if matches:
            ends = list(accumulate(map(len, lines), initial=len(tail)))
            for end, numbers in matches:
                found[bisect_right(ends, end - 1) - 1].update(numbers)
            found.pop(-1, None)  # ends in the line before the first
        return found


@dataclass(eq=False, slots=True)
class _Form:
    """Lines that say the same, and may hold the same patterns."""

    kind: int
    """The bare line's hash."""
    numbers: tuple[int, ...]
    is_news: bool = True
    """No two of them were looked at yet."""


class _Memory:
    """Which patterns the lines of a log may hold.

    That depends on the bare line and, for a text that was broken, on the one before. Nearly every line has
    been seen in this company: a log has few forms of lines, and many lines. Of a log whose lines are in words
    of their own nothing is remembered, as long as that is so.
    """

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._form_of: dict[int, _Form | None] = {}
        """By a pair's hash; None for most, which hold nothing."""
        self._forms: dict[tuple[int, tuple[int, ...]], _Form] = {}
        self._resting: set[int] = set()
        self._awake = patterns.of_text
        self._not_remembered = 0
        """So many blocks are looked at without remembering."""

    def groups(self, before: bytes, lines: Sequence[bytes]) -> dict[_Form, list[int]]:
        """The places of the lines that may hold patterns. ``before`` is the bare line before the first."""
        groups: defaultdict[_Form, list[int]] = defaultdict(list)
        if self._not_remembered:
            self._not_remembered -= 1
            for at, numbers in sorted(self._patterns.in_block(before, lines, self._awake).items()):
                if form := self._form(hash(lines[at]), numbers):
                    groups[form].append(at)
            return groups
        befores = [before, *lines]
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
        """Look for this pattern no more."""
        if number in self._resting:
            return
        self._resting.add(number)
        self._look_again()
        for pair, form in self._form_of.items():
            if form and number in form.numbers:
                self._form_of[pair] = self._form(form.kind, form.numbers)

    def wake(self, numbers: Collection[int]) -> None:
        """Look for these again."""
        if not self._resting.isdisjoint(numbers):
            self._resting.difference_update(numbers)
            self._look_again()
            self._forget()

    def _look_again(self) -> None:
        self._awake = [[n for n in some if n not in self._resting] for some in self._patterns.of_text]

    def _learn(self, pairs: Sequence[int], befores: Sequence[bytes], lines: Sequence[bytes]) -> None:
        if len(self._form_of) > _MOST_KNOWN:
            self._forget()
        fresh = {pair: at for at, pair in enumerate(pairs) if pair not in self._form_of}
        if len(fresh) > len(pairs) * _MOSTLY and len(pairs) > _FEW:
            self._not_remembered = _UNREMEMBERED
        self._form_of.update(dict.fromkeys(fresh))
        places = list(fresh.values())
        befores, lines = [befores[at] for at in places], [lines[at] for at in places]
        for index, numbers in self._patterns.possible(befores, lines, self._awake).items():
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
        """The last lines that were looked at: what comes may belong to them."""
        self._waiting = b""
        """Lines that wait for what comes after them, and a line that has not ended."""
        self._ended = 0
        """Lines that have ended."""
        self._open = False
        """Whether the last one has begun only."""

    @property
    def lines(self) -> int:
        """How many have been looked at."""
        return self._ended + self._open

    def feed(self, data: bytes) -> Iterator[Hit]:
        """Look at what has come; the last `REACH` lines of it wait for what follows."""
        self._waiting += data
        end = self._waiting.rfind(b"\n") + 1
        if len(self._waiting) - end >= BLOCK:
            end = len(self._waiting)
        upto = _lines_back(self._waiting, end, REACH)
        if upto or end >= BLOCK:
            yield from self._scan(upto or end, end)

    def flush(self) -> Iterator[Hit]:
        """Look at what is waiting as well: nothing follows, or not soon."""
        if self._waiting:
            yield from self._scan(len(self._waiting), len(self._waiting))

    def _scan(self, upto: int, end: int) -> Iterator[Hit]:
        """Look at ``waiting[:upto]``, with what is known of its surroundings up to ``end``."""
        before, new, after = self._before, self._waiting[:upto], self._waiting[upto:end]
        first = self._ended + 1
        self._waiting = self._waiting[upto:]
        done = before[-REACH * LONGEST :] + new[-REACH * LONGEST :]
        self._before = done[_lines_back(done, len(done), REACH) :]
        self._ended += new.count(b"\n")
        self._open = not new.endswith(b"\n")
        if b"\x1b" in new or b"\x1b" in before or b"\x1b" in after:
            before, new, after = (_ESCAPE.sub(b"", part) for part in (before, new, after))
        bare_before = bare(before).removesuffix(b"\n").rpartition(b"\n")[2]
        bare_lines = _lines(bare(new))
        if not (groups := self._memory.groups(bare_before, bare_lines)):
            return
        numbers, lines = _rows(new, first)
        if len(lines) != len(bare_lines):
            bare_lines = _lines(bare(b"\n".join(lines)))
            groups = self._memory.groups(bare_before, bare_lines)
        surroundings = _rows(before)[1]
        if surroundings and not before.endswith(b"\n"):
            lines[0] = surroundings.pop() + lines[0]
        around = [*surroundings, *lines, *_rows(after)[1]]
        block = _Block(lines, numbers, bare_lines, around, len(surroundings))
        for form, places in groups.items():
            for alike in self._alike(block, places, form.numbers):
                yield from self._look(block, alike, form)

    def _alike(self, block: _Block, places: Sequence[int], wanted: Iterable[int]) -> Iterable[Sequence[int]]:
        """Lines that are the same but for figures, by which of the patterns that read these they hold.

        Most lines hold none of them, and a look for the figures in all lines at once tells that.
        """
        figures = [self._patterns.patterns[n].regex for n in wanted if n in self._patterns.read_figures]
        if not figures or len(places) <= _SAMPLE:
            return [places]
        text = b"\n".join(block.rows(places))
        there = dense(text)
        figures = [one for one in figures if any(some in there for some in dense_text(one.pattern))]
        lines = text.decode("utf-8", "replace").split("\n") if figures else []
        held = [[regex.search(line) is not None for line in lines] for regex in figures]
        if all(map(all, held)):
            return [places]
        alike: defaultdict[tuple[bool, ...], list[int]] = defaultdict(list)
        for place, which in zip(places, zip(*held, strict=True), strict=True):
            alike[which].append(place)
        return alike.values()

    def _look(self, block: _Block, places: Sequence[int], form: _Form) -> Iterator[Hit]:
        """Look at lines that say the same; what the first ones have shown, the others are taken to show."""
        sample = [self._hit(block, place, form.numbers) for place in places[: _SAMPLE if form.is_news else 1]]
        form.is_news &= len(places) == 1
        shown = {tuple(number for number, _ in hit.matches) for hit in sample}
        if len(shown) > 1 or any(match.string is not hit.text for hit in sample for _, match in hit.matches):
            sample += [self._hit(block, place, form.numbers) for place in places[len(sample) :]]
        else:
            again = places[1:]
            numbers = list(map(block.numbers.__getitem__, again))
            first = sample[0]
            sample = [Hit(first.number, first.text, first.kind, first.matches, block.rows(again), numbers)]
        yield from (hit for hit in sample if hit.matches)

    def _hit(self, block: _Block, place: int, wanted: Iterable[int]) -> Hit:
        text = block.lines[place].decode("utf-8", "replace")
        readings: list[tuple[str, int, int]] | None = None
        matches = []
        for number in wanted:
            pattern = self._patterns.patterns[number]
            match = pattern.regex.search(text)
            if match is None and pattern.wrapped:
                readings = _readings(block.around, block.before + place) if readings is None else readings
                match = _across(pattern.regex, readings)
            if match and not (pattern.unless and pattern.unless.search(spanned(match)[0])):
                matches.append((number, match))
        return Hit(block.numbers[place], text, block.kinds[place], tuple(matches))


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that are looked at, and some of those around them."""

    lines: Sequence[bytes]
    numbers: Sequence[int]
    kinds: Sequence[bytes]
    around: Sequence[bytes]
    """``lines`` with those before and after."""
    before: int
    """How many are before."""

    def rows(self, places: Iterable[int]) -> list[bytes]:
        return list(map(self.lines.__getitem__, places))


def _lines_back(text: bytes, end: int, count: int) -> int:
    """Where the last ``count`` lines before ``end`` begin; 0 when there are not as many."""
    for _ in range(count + (text[end - 1 : end] == b"\n")):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _lines(block: bytes) -> list[bytes]:
    """The lines of a block, the last of which may not have ended."""
    lines = block.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _rows(block: bytes, first: int = 1) -> tuple[Sequence[int], list[bytes]]:
    """The lines of a block and their numbers; one that is too long, or overwritten by carriage returns, is
    several of one number."""
    lines = _lines(block)
    numbers: Sequence[int] = range(first, first + len(lines))
    if b"\r" in block or max(map(len, lines), default=0) > LONGEST:
        parts = [(number, part) for number, line in zip(numbers, lines, strict=True) for part in _parts(line)]
        numbers, lines = [number for number, _ in parts], [part for _, part in parts]
    return numbers, lines


def _parts(line: bytes) -> Iterator[bytes]:
    for part in line.rstrip(b"\r").split(b"\r"):
        yield from [part[at : at + LONGEST] for at in range(0, len(part), LONGEST)] or [part]


def _readings(lines: Sequence[bytes], index: int) -> list[tuple[str, int, int]]:
    """A line with those that it was wrapped into, if it was: the text, and where in it the line is.

    Twice where lines are as long as a terminal is wide: as they stand, so that white space in a pattern
    matches a line's end, and with the words put together that the terminal broke.
    """
    low = max(0, index - REACH)
    near = lines[low : index + REACH + 1]
    width = max(map(len, near))
    first = last = index - low
    while first > 0 and _goes_on(near[first - 1], near[first], width):
        first -= 1
    while last + 1 < len(near) and _goes_on(near[last], near[last + 1], width):
        last += 1
    if first == last:
        return []
    hard = width in _WIDTHS or (width >= _NARROWEST and sum(len(line) == width for line in near) > 1)
    run, own = near[first : last + 1], index - low - first
    return [_joined(run, own, full) for full in ([0, width] if hard else [0])]


def _goes_on(line: bytes, following: bytes, width: int) -> bool:
    """Whether a line may go on in the next: that is indented, or its first word had no room before it."""
    word = following.split(maxsplit=1)[:1]
    return bool(word) and (following[:1] in b" \t" or len(line) + len(word[0]) >= max(width, _NARROWEST))


def _joined(lines: Sequence[bytes], index: int, full: int) -> tuple[str, int, int]:
    """``lines`` with a line end after each that is not ``full`` bytes long, and where ``lines[index]`` is."""
    ended = [line if len(line) == full else line + b"\n" for line in lines]
    texts = [text.decode("utf-8", "replace") for text in ended]
    start = sum(map(len, texts[:index]))
    return "".join(texts), start, start + len(texts[index])


def _across(regex: re.Pattern[str], readings: Iterable[tuple[str, int, int]]) -> re.Match[str] | None:
    """A match that is partly in the line itself and partly in its neighbours."""
    for text, start, end in readings:
        for match in regex.finditer(text):
            if match.start() < end and match.end() > start:
                return match
    return None
