"""Text that is safe for a terminal: sanitised, measured, wrapped, with short device lists."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby, permutations

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, PM, APC, SOS
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[ -/]*[0-~]"  # the short ones
)
"""Pattern of a control sequence (ECMA-48, 5.4 and 5.6); as in xterm, BEL may also end a string."""

_UNPRINTABLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that move a cursor, reorder a line, are not text or cannot be encoded."""

_BREAK_AFTER = ("/", ",;:=_&?-.)")
"""Characters after which an overlong word may be broken: those between parts of a path are preferred."""


def sanitise(text: str) -> str:
    """One line of ``text`` without control sequences.

    Escape sequences are removed, white space of any kind becomes single spaces, and remaining control,
    direction and undecodable characters are shown by their number, as ``\\x07``.
    """
    line = " ".join(_ESCAPE_SEQUENCE.sub("", text).split())
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNPRINTABLE else c for c in line
    )


def columns(text: str) -> int:
    """Terminal columns of ``text``: two for an East Asian wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """``text``, truncated to ``width`` columns with an ellipsis if longer."""
    return text if columns(text) <= width else _prefix(text, width - 1) + "…"


def wrap(
    text: str, width: int, first: str = "", rest: str | None = None, *, to_copy: bool = False
) -> list[str]:
    """Wrap words in lines of ``width`` columns. The first line starts with ``first``, all others with
    ``rest``.

    Both prefixes leave at least two columns, for one wide character. A word (a path, a symbol) is broken only
    if a whole line cannot hold it, preferably between its parts. With ``to_copy``, no word is broken and gaps
    keep their width.
    """
    rest = " " * columns(first) if rest is None else rest
    lines: list[str] = []
    line, begun = first, False
    for gap, word in re.findall(r"(\s*)(\S+)", text):
        space = gap if to_copy else " "
        if begun and columns(line) + len(space) + columns(word) <= width:
            line += space + word
            continue
        if begun:
            lines.append(line)
            line = rest
        while not to_copy and columns(line) + columns(word) > width:
            head = _head(word, width - columns(line))
            lines.append(line + head)
            line, word = rest, word[len(head) :]
        line, begun = line + word, True
    return [*lines, line] if begun else lines


def _head(word: str, room: int) -> str:
    """The part of an overlong word that goes on a line with ``room`` columns left."""
    prefix = _prefix(word, room)
    for marks in _BREAK_AFTER:
        cut = max(prefix.rfind(mark) for mark in marks) + 1
        if cut > len(prefix) // 2:
            return prefix[:cut]
    return prefix


def _prefix(text: str, width: int) -> str:
    """The start of ``text`` that fits into ``width`` columns, at least one character."""
    used = 0
    for position, character in enumerate(text):
        used += _columns(character)
        if used > width:
            return text[: max(position, 1)]
    return text


def counted(count: int, what: str) -> str:
    """A number with its noun: ``1 check``, ``2 checks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def quantity(value: float, unit: str) -> str:
    """A value in three significant digits, with its unit: ``1.23 ms``."""
    return f"{value:.3g} {unit}"


def device_key(label: str) -> tuple[str, int]:
    """Sort key of a device label: backend and index."""
    backend, _, index = label.rpartition(":")
    return backend, int(index)


def fold_devices(labels: Iterable[str]) -> str:
    """Device labels in short form: ``cuda:0-3,6, hip:0``."""
    keys = sorted({device_key(label) for label in labels})
    return ", ".join(
        f"{backend}:{ranges(index for _, index in group)}"
        for backend, group in groupby(keys, key=lambda key: key[0])
    )


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in short form, as Slurm and the kernel write them: ``0-3,6`` for 0, 1, 2, 3, 6."""
    runs = groupby(enumerate(sorted({*numbers})), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ends)


def fold_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Pairs (exporter, importer) in the first of these forms that fits.

    ``every pair of cuda:0-3``; ``from each of cuda:0-3 to the next`` (and from the last to the first);
    ``cuda:0-2 > cuda:3; cuda:3 > cuda:0-2``. In the last form, exporters with the same importers share an
    entry.
    """
    wanted = set(pairs)
    devices = sorted({label for pair in wanted for label in pair}, key=device_key)
    if len(devices) > 2 and wanted == set(permutations(devices, 2)):
        return f"every pair of {fold_devices(devices)}"
    if len(devices) > 2 and wanted == set(zip(devices, (*devices[1:], devices[0]), strict=True)):
        return f"from each of {fold_devices(devices)} to the next"
    exporters: dict[str, list[str]] = {}
    for exporter in devices:
        importers = fold_devices(b for a, b in wanted if a == exporter)
        if importers:
            exporters.setdefault(importers, []).append(exporter)
    return "; ".join(f"{fold_devices(group)} > {importers}" for importers, group in exporters.items())


def fold_subjects(subjects: Iterable[Sequence[str]]) -> str:
    """Devices, groups and pairs in short form: ``cuda:0-3``, ``cuda:0 > cuda:1``; empty for the node."""
    subjects = list(subjects)
    pairs = fold_pairs((labels[0], labels[1]) for labels in subjects if len(labels) == 2)
    singles = fold_devices(label for labels in subjects if len(labels) != 2 for label in labels)
    return "; ".join(filter(None, (singles, pairs)))
