"""Search a block for many fixed texts at once: Hyperscan where it is installed, `re` elsewhere.

benchmarks/diagnose_speed.py compares the candidates; benchmarks/diagnose_speed.md says why it is this one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from gpuipc_doctor.diagnose.literals import trie


class Finder(Protocol):
    """Both kinds find the same; one takes many times as long."""

    name: str

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """Each place where one of the texts is: (the text's number, the offset of its end)."""


def finder(texts: Sequence[bytes]) -> Finder:
    """The fastest that there is for this Python and this processor.

    ``texts`` must not be empty, nor any of them.
    """
    try:
        import hyperscan
    except ImportError:
        return ReFinder(texts)
    try:
        return HyperscanFinder(texts)
    except hyperscan.HyperscanError:  # it needs SSE 4.2, or ARMv8's NEON
        return ReFinder(texts)


class HyperscanFinder:
    """Intel's Hyperscan, or Vectorscan, its portable descendant: SIMD over all texts in one pass."""

    name = "hyperscan"

    def __init__(self, texts: Sequence[bytes]) -> None:
        import hyperscan

        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=list(texts), ids=list(range(len(texts))), flags=[0] * len(texts), literal=True
        )

    def find(self, block: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((number, end))

        self._database.scan(block, match_event_handler=on_match)
        return found


class ReFinder:
    """One expression made of all texts."""

    name = "re"

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._expression = re.compile(trie(texts), re.DOTALL)
        # The expression finds the longest text at a place; those that it begins with are there as well.
        self._there = {
            text: [(number, len(one)) for number, one in enumerate(texts) if text.startswith(one)]
            for text in texts
        }

    def find(self, block: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        match = self._expression.search(block)
        while match:
            start = match.start()
            found += [(number, start + length) for number, length in self._there[match[0]]]
            match = self._expression.search(block, start + 1)  # texts may overlap
        return found
