"""The fixed text in a regular expression: what a fast search looks for before `re` is asked.

Everything here is *bare*: without white space, and without figures of decimal and hexadecimal numbers. Lines
that say the same are the same when they are bare, whatever they count and wherever they were wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby

SHORTEST = 2
"""Bytes. Shorter text is in so many lines that looking for it costs more than it saves."""
LONGEST = 32
"""Bytes. More tells nothing more."""

_FIGURES = b"0123456789abcdef"
_WHITE = b" \t\r\v\f"
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
    return text.translate(None, _FIGURES + _WHITE)


def dense(text: bytes) -> bytes:
    """``text`` without white space; the figures and the line ends stay."""
    return text.translate(None, _WHITE)


@cache
def fixed_text(pattern: str) -> frozenset[bytes]:
    """Bare texts of which at least one is in whatever ``pattern`` matches, each as long as can be.

    Empty when there is none of at least `SHORTEST` bytes. The pattern is one that `re` accepts, no flags.
    """
    texts = {text[:LONGEST] for text in _best(pattern, bare, _worth)}
    if min(map(len, texts)) < SHORTEST:
        return frozenset()
    return frozenset(one for one in texts if not any(other != one and other in one for other in texts))


@cache
def dense_text(pattern: str) -> frozenset[bytes]:
    """Dense texts of which at least one is in whatever ``pattern`` matches; with figures if it has any."""
    return _best(pattern, dense, lambda text: (bool(re.search(rb"\d", text)), len(text)))


def _best(
    pattern: str, strip: Callable[[bytes], bytes], worth: Callable[[bytes], tuple[bool, int]]
) -> frozenset[bytes]:
    """Of each of the ways to match, the fixed text that is worth most when it is stripped."""
    spelt, _ = _alternatives(_TOKEN.finditer(pattern))
    return frozenset(max((strip(run.encode()) for run in one.split(_GAP)), key=worth) for one in spelt)


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


_EVERYDAY = frozenset(
    map(bare, b"address cuda debug device error Error failed invalid memory version".split())
)
"""Texts that are in so many lines that any other is better."""


def _worth(text: bytes) -> tuple[bool, int]:
    return text not in _EVERYDAY and len(text) >= SHORTEST, len(text)


def trie(texts: Iterable[bytes]) -> bytes:
    """A regular expression that matches the longest of ``texts`` and, unlike a list of them, tries few."""
    alike = groupby(sorted(set(texts)), key=lambda text: text[:1])
    branches = {first: trie(text[1:] for text in some) if first else b"" for first, some in alike}
    ends_here = branches.pop(b"", None) is not None
    spelt = b"|".join(re.escape(first) + rest for first, rest in branches.items())
    return b"(?:%b)%b" % (spelt, b"?" * ends_here) if branches else b""
