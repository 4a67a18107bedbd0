"""The fixed text in a regular expression: what a fast search looks for before `re` is asked.

Everything here is *bare*: without white space, and without figures of decimal and hexadecimal numbers. Lines
that say the same are the same when they are bare, whatever they count and wherever they were wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

SHORTEST = 2
"""Bytes. Shorter text is in so many lines that looking for it costs more than it saves."""
LONGEST = 32
"""Bytes. More tells nothing more."""

_FIGURES = b"0123456789abcdef"
_BARE = _FIGURES + b" \t\r\v\f"
_MOST = 32
"""Texts into which one expression is spelt out."""
_GAP = "\n"
"""Stands where anything may be; no fixed text goes on across it."""

_TOKEN = re.compile(
    r"(?P<atom>\(\?(?:[:=!]|<[=!]|P<\w+>)|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)(?P<times>(?:[?*+]|\{[\d,]+\})?\??)",
    re.DOTALL,
)


def bare(text: bytes) -> bytes:
    """``text`` without figures and white space; the line ends stay."""
    return text.translate(None, _BARE)


@cache
def fixed_text(pattern: str) -> frozenset[bytes]:
    """Bare texts of which at least one is in whatever ``pattern`` matches, each as long as can be.

    Empty when there is none of at least `SHORTEST` bytes. The pattern is one that `re` accepts, no flags.
    """
    spelt, _ = _alternatives(_TOKEN.finditer(pattern))
    texts = frozenset(max(map(_text, one.split(_GAP)), key=_worth)[:LONGEST] for one in spelt)
    if min(map(len, texts)) < SHORTEST:
        return frozenset()
    return frozenset(one for one in texts if not any(other != one and other in one for other in texts))


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[set[str], str]:
    """All that a pattern, or a group, can be, as far as it is fixed; and how often the group is repeated."""
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
                continue  # takes no text
        else:
            spelt = _spelt(atom)
        if times.startswith("?"):
            spelt = spelt | {""}
        elif times.startswith("+") and spelt != {""}:
            spelt = {_GAP.join((one, one)) for one in spelt}
        elif times and spelt != {""}:
            spelt = {_GAP}
        longer = {one + more for one in now for more in spelt}
        now = longer if len(longer) <= _MOST else {one + _GAP for one in now}
    return done | now, ""


def _spelt(atom: str) -> set[str]:
    if atom in ("^", "$", r"\b", r"\B", r"\A", r"\Z", r"\s"):  # white space is not looked at
        return {""}
    if atom.startswith("["):
        members = set(re.sub(r"\\s", " ", atom[1:-1]))
        return {_GAP} if members & set("^-\\") or len(members) > 4 else members
    return {_GAP} if atom == "." or re.fullmatch(r"\\\w", atom) else {atom[-1]}


def _text(run: str) -> bytes:
    return bare(run.encode())


_EVERYDAY = frozenset(
    map(
        _text,
        ("address", "cuda", "debug", "device", "error", "Error", "failed", "invalid", "memory", "version"),
    )
)
"""Texts that are in so many lines that any other is better."""


def _worth(text: bytes) -> tuple[bool, int]:
    return text not in _EVERYDAY and len(text) >= SHORTEST, len(text)


def trie(texts: Sequence[bytes]) -> bytes:
    """A regular expression that matches the longest of ``texts`` and, unlike a list of them, tries few."""
    tree: dict[int, Any] = {}
    for text in texts:
        node = tree
        for byte in text:
            node = node.setdefault(byte, {})
        node[-1] = True
    return _branches(tree)


def _branches(node: dict[int, Any]) -> bytes:
    ends_here = -1 in node
    branches = [re.escape(bytes([byte])) + _branches(rest) for byte, rest in node.items() if byte >= 0]
    if not branches:
        return b""
    if len(branches) == 1 and not ends_here:
        return branches[0]
    return b"(?:" + b"|".join(branches) + b")" + (b"?" if ends_here else b"")
