"""The fixed text in a regular expression: what a fast search looks for before `re` is asked.

Everything here is *squeezed*: without white space and in lower case. Squeezed text is found in squeezed
logs however a terminal, a mail program or gdb has wrapped the line that it was in.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

SHORTEST = 3
"""Bytes. Shorter text is in so many lines that looking for it costs more than it saves."""

_EVERYDAY = frozenset(
    b"address cuda debug device error failed failure invalid memory version warning".split()
)
"""Texts that are in so many lines that any other is better."""

_MOST = 32
"""Texts into which one expression is spelt out."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")

WHITE = b" \t\n\r\v\f"
_LOWER = bytes(range(256)).lower()


def squeeze(text: bytes) -> bytes:
    return text.translate(_LOWER, WHITE)


def squeeze_lines(text: bytes) -> bytes:
    """`squeeze` that leaves the line ends."""
    return text.translate(_LOWER, WHITE.replace(b"\n", b""))


def fixed_text(pattern: str) -> frozenset[bytes]:
    """Squeezed texts of which at least one is in whatever ``pattern`` matches, each as long as can be.

    Empty when there is none of at least `SHORTEST` bytes. Raises `re.error`.
    """
    # There is no public way to a parsed expression; this module has been the same since Python 2.
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    texts = _best(parser.parse(pattern)) or frozenset()
    return frozenset(one for one in texts if not any(other != one and other in one for other in texts))


_Node = tuple[Any, Any]
_NOTHING = frozenset({b""})


def _best(nodes: Iterable[_Node]) -> frozenset[bytes] | None:
    """The best of: the runs of nodes that can be spelt out, and what is inside the nodes between them."""
    candidates: list[frozenset[bytes]] = []
    run = _NOTHING
    for node in nodes:
        spelt = _spelt(node)
        longer = _product(run, spelt) if spelt else None
        if longer is not None:
            run = longer
            continue
        candidates.append(run)
        run = spelt or _NOTHING
        if not spelt and (inner := _inside(node)):
            candidates.append(inner)
    return max(filter(_good, [*candidates, run]), key=_worth, default=None)


def _inside(node: _Node) -> frozenset[bytes] | None:
    """The best fixed text in a node that cannot be spelt out, if the text must be there."""
    name, argument = str(node[0]), node[1]
    if name in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _best(_group(name, argument))
    if name in _REPEATS and argument[0] > 0:
        return _best(argument[2])
    if name == "BRANCH":
        branches = [_best(branch) for branch in argument[1]]
        return None if None in branches else frozenset[bytes]().union(*filter(None, branches))
    return None


def _spelt(node: _Node) -> frozenset[bytes] | None:
    """All that a node can match, squeezed; None when that is too much to spell out."""
    name, argument = str(node[0]), node[1]
    if name in ("AT", "ASSERT", "ASSERT_NOT"):
        return _NOTHING
    if name == "LITERAL":  # beyond ASCII, lower case is a matter of encoding
        return frozenset({squeeze(bytes([argument]))}) if argument < 128 else None
    if name == "CATEGORY":
        return _NOTHING if str(argument) == "CATEGORY_SPACE" else None
    if name == "IN":
        return _union(map(_spelt, argument))
    if name in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _all_spelt(_group(name, argument))
    if name == "BRANCH":
        return _union(map(_all_spelt, argument[1]))
    if name in _REPEATS:
        least, most, inner = argument
        once = _all_spelt(inner)
        if once == _NOTHING or (least, most) == (1, 1):
            return once
        return once | _NOTHING if once and (least, most) == (0, 1) else None
    return None


def _all_spelt(nodes: Iterable[_Node]) -> frozenset[bytes] | None:
    texts: frozenset[bytes] | None = _NOTHING
    for node in nodes:
        spelt = _spelt(node)
        texts = _product(texts, spelt) if texts and spelt else None
    return texts


def _group(name: str, argument: Any) -> Any:
    return argument[-1] if name == "SUBPATTERN" else argument


def _product(left: frozenset[bytes], right: frozenset[bytes]) -> frozenset[bytes] | None:
    return frozenset(a + b for a in left for b in right) if len(left) * len(right) <= _MOST else None


def _union(parts: Iterable[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    texts: set[bytes] = set()
    for part in parts:
        if part is None:
            return None
        texts |= part
    return frozenset(texts) if len(texts) <= _MOST else None


def _good(texts: frozenset[bytes]) -> bool:
    return bool(texts) and min(map(len, texts)) >= SHORTEST


def _worth(texts: frozenset[bytes]) -> tuple[bool, int, int]:
    """Long texts are rare; of two sets as long as each other, the smaller one is better."""
    return texts.isdisjoint(_EVERYDAY), min(map(len, texts)), -len(texts)


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
