"""Sizes of messages for checks of MPI and for their control without MPI."""

from __future__ import annotations

SIZES_OPTION = {
    "type": "array",
    "minItems": 1,
    "uniqueItems": True,
    "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1},
}
"""JSON Schema of a check's option ``sizes``: bytes of messages, at most what MPI can count as an `int`."""

SMALL_MESSAGES = (0, *(1 << n for n in range(17)))
"""Bytes of small messages, up to 64 KiB."""

LARGE_MESSAGES = (4 << 20, 16 << 20)
"""Bytes of large messages, whose bandwidth is measured: latency says little about bandwidth."""

ENOUGH = 3
"""After this many failures of a way or route, its other sizes are not tried, because each costs a
deadline."""
