"""Search a block for many fixed texts at once: Hyperscan where it is installed, `re` elsewhere.

benchmarks/diagnose_speed.py compares the candidates; benchmarks/diagnose_speed.md says why it is this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gpuipc_doctor.diagnose.literals import trie

Find = Callable[[bytes], list[tuple[int, int]]]
"""Each place in a block where one of the texts is: (the text's number, the offset of its end)."""


def finder(texts: Sequence[bytes]) -> Find:
    """The fastest that there is for this Python and this processor; all find the same.

    ``texts`` must not be empty, nor any of them.
    """
    try:
        import hyperscan
    except ImportError:
        return with_re(texts)
    try:
        return with_hyperscan(texts)
    except hyperscan.HyperscanError:  # it needs SSE 4.2, or ARMv8's NEON
        return with_re(texts)


def with_hyperscan(texts: Sequence[bytes]) -> Find:
    """Intel's Hyperscan, or Vectorscan, its portable descendant: SIMD over all texts in one pass."""
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
    """One expression made of all texts."""
    expression = re.compile(trie(texts), re.DOTALL)
    # The expression finds the longest text at a place; those that it begins with are there as well.
    there = {
        text: [(number, len(one)) for number, one in enumerate(texts) if text.startswith(one)]
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
