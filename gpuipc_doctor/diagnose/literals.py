"""Fixed text in a regular expression, for a fast search before `re` is applied.

All text here is *bare*: without white space, and without digits of decimal and hexadecimal numbers. Lines
that differ only in numbers and wrapping are equal when bare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby

SHORTEST = 2
"""Bytes. Shorter texts occur in too many lines for a search to pay."""
LONGEST = 32
"""Bytes. Longer texts gain nothing."""

_FIGURES = b"0123456789abcdef"
_WHITE = b" \t\r\v\f"
_MOST = 32
"""Maximum texts into which one expression is expanded."""
_GAP = "\n"
"""Placeholder for arbitrary text, which ends a fixed text."""

_TOKEN = re.compile(
    r"(?P<atom>\(\?(?:[:=!]|<[=!]|P<\w+>)|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)(?P<times>(?:[?*+]|\{[\d,]+\})?\??)",
    re.DOTALL,
)


def bare(text: bytes) -> bytes:
    """``text`` without digits and white space; line ends are kept."""
    return text.translate(None, _FIGURES + _WHITE)


def dense(text: bytes) -> bytes:
    """``text`` without white space; digits and line ends are kept."""
    return text.translate(None, _WHITE)


@cache
def fixed_text(pattern: str) -> frozenset[bytes]:
    """Fixed texts, as long as possible, at least one of which is in every match of ``pattern``.

    Empty if none has at least `SHORTEST` bytes. The pattern is valid for `re`, without flags.
    """
    texts = {text[:LONGEST] for text in _best(pattern, bare, _worth)}
    if min(map(len, texts)) < SHORTEST:
        return frozenset()
    return frozenset(text for text in texts if not any(other != text and other in text for other in texts))


@cache
def dense_text(pattern: str) -> frozenset[bytes]:
    """Dense texts, at least one of which is in every match of ``pattern``; with digits if the pattern has
    any.
    """
    return _best(pattern, dense, lambda text: (bool(re.search(rb"\d", text)), len(text)))


def _best(
    pattern: str, strip: Callable[[bytes], bytes], worth: Callable[[bytes], tuple[bool, int]]
) -> frozenset[bytes]:
    """For each way to match, the most selective fixed text after stripping."""
    spelt, _ = _alternatives(_TOKEN.finditer(pattern))
    return frozenset(max((strip(run.encode()) for run in text.split(_GAP)), key=worth) for text in spelt)


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[set[str], str]:
    """All alternatives of a pattern or group, as far as fixed; and how often the group is repeated."""
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


def _spelt(atom: str) -> set[str]:
    if atom in ("^", "$", r"\b", r"\B", r"\A", r"\Z", r"\s"):  # white space is ignored
        return {""}
    if atom.startswith("["):
        members = set(re.sub(r"\\s", " ", atom[1:-1]))
        return {_GAP} if members & set("^-\\") or len(members) > 4 else members
    return {_GAP} if atom == "." or re.fullmatch(r"\\\w", atom) else {atom[-1]}


_EVERYDAY = frozenset(
    map(bare, b"address cuda debug device error Error failed invalid memory version".split())
)
"""Texts so frequent in lines that any other text is better."""


def _worth(text: bytes) -> tuple[bool, int]:
    return text not in _EVERYDAY and len(text) >= SHORTEST, len(text)


def trie(texts: Iterable[bytes]) -> bytes:
    """A regular expression for the longest of ``texts`` that needs fewer attempts than a list of them."""
    alike = groupby(sorted(set(texts)), key=lambda text: text[:1])
    branches = {first: trie(text[1:] for text in some) if first else b"" for first, some in alike}
    ends_here = branches.pop(b"", None) is not None
    spelt = b"|".join(re.escape(first) + rest for first, rest in branches.items())
    return b"(?:%b)%b" % (spelt, b"?" * ends_here) if branches else b""
