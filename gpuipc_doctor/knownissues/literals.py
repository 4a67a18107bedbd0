"""Fixed text in a regular expression, for a fast search before `re` is applied.

All text here is *bare*: without white space, and without digits of decimal and hexadecimal numbers. Lines
that differ only in numbers and wrapping are equal when bare.

Many texts are searched at once, with Hyperscan if installed, else with `re`: benchmarks/diagnose_speed.py
compares the candidates; benchmarks/diagnose_speed.md has the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

SHORTEST = 2
"""Minimum bytes of a text to search for: shorter texts occur in too many lines."""
LONGEST = 32
"""Maximum bytes of a text to search for: longer texts gain nothing."""

Needs = tuple[tuple[bytes, ...], ...]
"""Alternatives: a line that matches contains all texts of at least one of them."""

_FIGURES = b"0123456789abcdef"
_WHITE = b" \t\r\v\f\x1c\x1d\x1e\x1f"
_WIDE_WHITE = re.compile(
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)
"""White space of ``\\s`` that is not ASCII, in UTF-8: text that is copied from a page has no-break spaces."""
_MOST = 128
"""Maximum texts into which one expression is expanded."""
_GAP = "\n"
"""Placeholder for arbitrary text, which ends a fixed text."""

_TOKEN = re.compile(
    r"(?P<atom>\(\?(?:[:=!]|<[=!]|P<\w+>)|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)(?P<times>(?:[?*+]|\{[\d,]+\})?\??)",
    re.DOTALL,
)


def bare(text: bytes) -> bytes:
    """``text`` without digits and white space; line ends are kept."""
    return _stripped(text, _FIGURES + _WHITE)


def dense(text: bytes) -> bytes:
    """``text`` without white space; digits and line ends are kept."""
    return _stripped(text, _WHITE)


def _stripped(text: bytes, unwanted: bytes) -> bytes:
    text = text.translate(None, unwanted)
    return text if text.isascii() else _WIDE_WHITE.sub(b"", text)


@cache
def fixed_text(pattern: str) -> Mapping[bytes, Needs]:
    """Fixed texts with which to search for ``pattern``: bare text → the other texts of each match that
    contains it.

    Each match contains a key. Keys are as long as possible; everyday words are keys only if a match contains
    no other text. The result is empty if a key would be shorter than `SHORTEST` bytes. The pattern is valid
    for `re`, without flags.
    """
    keys = {
        text: _weakest({run for run in runs if run not in text} for runs in ways)
        for text, ways in _keys(
            {runs: max(runs, key=_worth)[:LONGEST] for runs in _runs(pattern, bare)}
        ).items()
    }
    return keys if min(map(len, keys)) >= SHORTEST else {}


@cache
def dense_text(pattern: str) -> Needs:
    """The dense texts in every match of ``pattern``."""
    return _weakest(map(set, _runs(pattern, dense)))


@cache
def dense_ways(pattern: str) -> Needs:
    """For each way to match ``pattern``, its dense texts in order."""
    return tuple({tuple(filter(None, runs)) for runs in _runs(pattern, dense)})


@cache
def dense_keys(pattern: str) -> Mapping[bytes, Needs]:
    """Dense text → the ways to match ``pattern`` that contain it. Every match contains one of these texts."""
    return _keys(
        {runs: max(runs, key=lambda run: (*_worth(bare(run)), len(run))) for runs in dense_ways(pattern)}
    )


def _keys(best: Mapping[tuple[bytes, ...], bytes]) -> Mapping[bytes, Needs]:
    """Text → the ways to match that contain it. ``best``: way to match → its best text to search for."""
    texts: list[bytes] = []
    for text in sorted(set(best.values()), key=len):
        if not any(map(text.__contains__, texts)):
            texts.append(text)
    return {text: tuple(runs for runs, own in best.items() if text in own) for text in texts}


def _weakest(alternatives: Iterable[set[bytes]]) -> Needs:
    """The alternatives, except those that contain all texts of another one. The longest text of each is
    first."""
    ordered = {tuple(sorted(texts - {b""}, key=lambda text: (-len(text), text))) for texts in alternatives}
    weakest: list[tuple[bytes, ...]] = []
    for texts in sorted(ordered, key=lambda texts: (sum(map(len, texts)), texts)):
        if not has(b"\n".join(texts), weakest):
            weakest.append(texts)
    return tuple(weakest)


def has(text: bytes, needed: Iterable[tuple[bytes, ...]]) -> bool:
    """Whether ``text`` contains all texts of at least one alternative."""
    for texts in needed:
        for part in texts:
            if part not in text:
                break
        else:
            return True
    return False


def in_order(text: bytes, ways: Iterable[tuple[bytes, ...]]) -> bool:
    """Whether ``text`` has these fixed texts in order. They may overlap: ``ab+c`` is ``ab`` and ``bc``."""
    for texts in ways:
        at = 0
        for part in texts:
            at = text.find(part, at)
            if at < 0:
                break
        else:
            return True
    return False


def _runs(pattern: str, strip: Callable[[bytes], bytes]) -> set[tuple[bytes, ...]]:
    """For each way to match, the fixed texts in order, after ``strip``."""
    return {tuple(strip(run.encode()) for run in text.split(_GAP)) for text in _ways(pattern)}


@cache
def _ways(pattern: str) -> set[str]:
    """Each way to match, with a gap for text that is not fixed."""
    return _alternatives(_TOKEN.finditer(pattern))[0]


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[set[str], str]:
    """The fixed text of each alternative of a pattern or group, and the group's quantifier."""
    done: set[str] = set()
    now = {""}
    for token in tokens:
        atom, times = token["atom"], token["times"]
        if atom == "|":
            done, now = done | now, {""}
            continue
        if atom == ")":
            return done | now, times
        if atom.startswith("("):
            spelt, times = _alternatives(tokens)
            if atom.endswith(("=", "!")):
                continue  # matches no text
        else:
            spelt = _spelt(atom)
        if times.startswith("?"):
            spelt = spelt | {""}
        elif times.startswith("+") and spelt != {""}:
            spelt = {_GAP.join((text, text)) for text in spelt}
        elif times and spelt != {""}:
            spelt = {_GAP}
        longer = {text + more for text in now for more in spelt}
        now = longer if len(longer) <= _MOST else {text + _GAP for text in now}
    return done | now, ""


@cache
def _spelt(atom: str) -> set[str]:
    if atom in ("^", "$", r"\b", r"\B", r"\A", r"\Z", r"\s"):  # white space is ignored
        return {""}
    if atom.startswith("["):
        members = set(re.sub(r"\\s", " ", atom[1:-1]))
        return {_GAP} if members & set("^-\\") or len(members) > 4 else members
    return {_GAP} if atom == "." or re.fullmatch(r"\\\w", atom) else {atom[-1]}


_EVERYDAY = b"\n".join(
    bare(word.encode())
    for words in (
        "address allocate argument assert attribute bandwidth cannot code context create",
        "cuda debug device driver error errors Error ERROR event exit code export fail failed Failed failure",
        "fatal find found handle import info interface invalid kernel link lost map memory message missing",
        "node not found number open path process queue register return set size status supported",
        "unable unexpected unknown version warn",
    )
    for word in words.split()
)
"""Words that are frequent in logs. Any other text is better to search for."""


def _worth(text: bytes) -> tuple[bool, int]:
    return text not in _EVERYDAY and len(text) >= SHORTEST, len(text)


def trie(texts: Iterable[bytes]) -> bytes:
    """A regular expression that finds the longest of ``texts``, in fewer attempts than ``a|b|c``."""
    alike = groupby(sorted(set(texts)), key=lambda text: text[:1])
    branches = {first: trie(text[1:] for text in some) if first else b"" for first, some in alike}
    ends_here = branches.pop(b"", None) is not None
    spelt = b"|".join(re.escape(first) + rest for first, rest in branches.items())
    return b"(?:%b)%b" % (spelt, b"?" * ends_here) if branches else b""


Find = Callable[[bytes], list[tuple[int, int]]]
"""Returns (index of the text, offset of its end) for each occurrence of a text in a block."""


_FEW_BYTES = 1 << 15
"""To search this many bytes for each text alone takes as long as to prepare one search for all texts."""


def lazy(texts: Sequence[bytes]) -> Find:
    """A `finder` that is prepared only when more than a few lines are searched."""
    left = _FEW_BYTES
    prepared: Find | None = None

    def find(block: bytes) -> list[tuple[int, int]]:
        nonlocal left, prepared
        if prepared is None and len(block) <= left:
            left -= len(block)
            return _each_alone(texts, block)
        prepared = prepared or finder(texts)
        return prepared(block)

    return find


def _each_alone(texts: Sequence[bytes], block: bytes) -> list[tuple[int, int]]:
    found = []
    for number, text in enumerate(texts):
        start = block.find(text)
        while start >= 0:
            found.append((number, start + len(text)))
            start = block.find(text, start + 1)
    return found


def finder(texts: Sequence[bytes]) -> Find:
    """The fastest finder for this Python and processor; all return the same results.

    Neither ``texts`` nor any of them may be empty; all are different.
    """
    try:
        import hyperscan
    except ImportError:
        return with_re(texts)
    try:
        return with_hyperscan(texts)
    except hyperscan.HyperscanError:  # needs SSE 4.2, or ARMv8's NEON
        return with_re(texts)


def with_hyperscan(texts: Sequence[bytes]) -> Find:
    """A finder with Intel's Hyperscan or its portable fork Vectorscan: SIMD over all texts in one pass."""
    import hyperscan

    database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    numbers = list(range(len(texts)))
    database.compile(expressions=list(texts), ids=numbers, flags=[0] * len(texts), literal=True)

    def find(block: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((number, end))

        database.scan(block, match_event_handler=on_match)
        return found

    return find


def with_re(texts: Sequence[bytes]) -> Find:
    """A finder with one expression for all texts."""
    expression = re.compile(trie(texts), re.DOTALL)
    # The expression finds the longest text at a place; its prefixes match too.
    number_of = {text: number for number, text in enumerate(texts)}
    there = {
        text: [(number_of[text[:end]], end) for end in range(1, len(text) + 1) if text[:end] in number_of]
        for text in texts
    }

    def find(block: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        match = expression.search(block)
        while match:
            start = match.start()
            found += [(number, start + length) for number, length in there[match[0]]]
            match = expression.search(block, start + 1)  # texts may overlap
        return found

    return find


cached_finder = lru_cache(maxsize=256)(finder)
