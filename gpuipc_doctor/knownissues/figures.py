"""Distinguish lines that differ only in digits, for the patterns that need it: ``-22`` is not ``-12``."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from gpuipc_doctor.knownissues.finder import cached_finder
from gpuipc_doctor.knownissues.literals import bare, dense, dense_ways, has, in_order
from gpuipc_doctor.knownissues.search_patterns import FEW_PATTERNS, Pattern


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
