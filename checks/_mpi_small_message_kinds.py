"""The kinds of message that `mpi-small-message` sends, and which of them are given up after failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from gpuipc_doctor.api import Evidence
from gpuipc_doctor.api.message_sizes import ENOUGH

PLACES = (("device", "device"), ("host", "device"), ("device", "host"))
"""Source and destination of the message."""

MODES = ("blocking", "non-blocking")

MOST_FAILED = 9
"""After this many failures, one failure suffices to leave out a way or a size. Otherwise a library that
always hangs would cost 36 deadlines."""


class Message(NamedTuple):
    """One combination of size, way and mode."""

    size: int
    source: str
    target: str
    mode: str
    sender: int

    @property
    def way(self) -> str:
        ranks = f"rank {self.sender} to rank {1 - self.sender}"
        return f"{self.source} to {self.target}, {self.mode}, {ranks}"

    def __str__(self) -> str:
        return f"{self.size} B, {self.way}"


def messages(sizes: Sequence[int]) -> Iterator[Message]:
    for size, (source, target), mode, sender in product(sizes, PLACES, MODES, (0, 1)):
        yield Message(size, source, target, mode, sender)


Failed = Sequence[tuple[Message, str]]
"""The failed messages, and how the probe of each message ended."""


def mapped(failed: Failed) -> Iterator[Evidence]:
    """For each way and each ending, one line with the sizes of failed messages."""
    for way, ending in dict.fromkeys((message.way, ending) for message, ending in failed):
        sizes = [message.size for message, other in failed if (message.way, other) == (way, ending)]
        values = {"way": way, "sizes": [f"{size} B" for size in sizes], "ending": ending}
        if len(sizes) < ENOUGH and len(failed) < MOST_FAILED:
            yield Evidence.seen("{way}: {sizes}: {ending}", **values)
        else:
            yield Evidence.seen("{way}: {sizes}: {ending}; further sizes were not tried", **values)


def given_up(message: Message, failed: Failed) -> bool:
    """Whether to omit a message, because it or `ENOUGH` messages of its way failed. After `MOST_FAILED`
    failures, one failure of its way or its size is enough."""
    sizes = [other.size for other, _ in failed if other.way == message.way]
    if len(failed) >= MOST_FAILED:
        return bool(sizes) or message.size in [other.size for other, _ in failed]
    return message.size in sizes or len(sizes) >= ENOUGH
