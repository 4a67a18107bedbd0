"""The sizes of messages that are sent through MPI and, as a control, without it."""

from __future__ import annotations

SIZES_OPTION = {
    "type": "array",
    "minItems": 1,
    "uniqueItems": True,
    "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1},
}
"""JSON Schema of the option ``sizes`` of a check: bytes, which MPI counts as `int`."""

SMALL_MESSAGES = (0, *(1 << n for n in range(17)))
"""Bytes, to 64 KiB."""

LARGE_MESSAGES = (4 << 20, 16 << 20)
"""Bytes of large messages, whose bandwidth is measured: a latency says little of what a node can move."""

ENOUGH = 3
"""So many sizes that fail in one way, and no other size is tried in that way: each costs a deadline."""
