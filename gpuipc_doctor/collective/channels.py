"""What NCCL and RCCL say of their transports in their log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_CHANNEL = re.compile(
    r"NCCL INFO Channel (\d+)(?:/\d+)? : (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[\w+\])? via (\S+)"
)
"""``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``, ``Channel 00 : 1[1] -> 0[0] via SHM/direct/direct``: NCCL,
src/transport/p2p.cc, net.cc and shm.cc."""


def by_transport(log: str) -> dict[str, int]:
    """Transport → number of channels that use it."""
    found: dict[str, set[str]] = {}
    for channel, _, _, transport in _CHANNEL.findall(log):
        found.setdefault(transport, set()).add(channel)
    return {transport: len(numbers) for transport, numbers in found.items()}


def most(ranks: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The channels of several ranks: of each transport, the largest number."""
    found: dict[str, int] = {}
    for rank in ranks:
        for transport, count in rank.items():
            found[transport] = max(count, found.get(transport, 0))
    return found


def in_words(found: Mapping[str, int]) -> str:
    """Channels as ``24 channels P2P/CUMEM``; empty without any."""
    return " and ".join(
        f"{count} channel{'s' * (count != 1)} {transport}" for transport, count in sorted(found.items())
    )
