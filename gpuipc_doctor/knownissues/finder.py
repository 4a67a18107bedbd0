"""Search a block for many fixed texts at once: with Hyperscan if installed, else with `re`.

benchmarks/diagnose_speed.py compares the candidates; benchmarks/diagnose_speed.md has the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from gpuipc_doctor.knownissues.literals import trie

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
