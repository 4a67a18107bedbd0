"""Both ends of a mapping write in turn, and each must read what the other wrote last.

A mapping that is right when it is opened may be a copy: it never shows what its owner writes later, or what
is written through it arrives nowhere. So whoever opens memory exchanges data through it, in both directions
and again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.patterns import difference, pattern
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Finding, ProbeOutcome

TURNS = 5
"""The importer writes in the first, when it has looked at what was there, and in every other; so also in the
last, and whoever owns the memory has read for the last time when its part returns."""


def exchange_as_exporter(w: Worker, memory: Memory, nbytes: int, what: str = "") -> list[str]:
    """The owner's part, over the first ``nbytes`` bytes; what it reads wrong.

    ``what`` names the memory, in the data that is written and in what is returned.
    """
    return list(_exchange(w, memory, nbytes, what, writes_in=1))


def exchange_as_importer(
    w: Worker, memory: Memory, nbytes: int, what: str = "", *, offset: int = 0
) -> list[str]:
    """The part of who has it open, over ``nbytes`` bytes from ``offset`` on; what it reads wrong."""
    return list(_exchange(w, memory, nbytes, what, writes_in=0, offset=offset))


def _exchange(
    w: Worker, memory: Memory, nbytes: int, what: str, *, writes_in: int, offset: int = 0
) -> Iterator[str]:
    for turn in range(TURNS):
        expected = pattern(nbytes, *what.encode(), -1 - turn)  # checks write under keys from 0 on
        if turn % 2 == writes_in:
            memory.write(expected, offset)
            w.peer.send("written")
        else:
            w.peer.recv()
            if wrong := difference(memory.read(nbytes, offset), expected):
                yield f"{what}{', ' if what else ''}turn {turn + 1} of {TURNS}: {wrong}"


def judge_exchange(done: ProbeOutcome) -> Iterator[Finding]:
    """What both roles read wrong, all of which they recorded as ``exchanged``."""
    if unseen := done.records["importer"]["exchanged"]:
        yield Finding.fail(
            "later-writes-unseen",
            "an open mapping shows wrong data after the memory's owner wrote again",
            *unseen,
        )
    if lost := done.records["exporter"]["exchanged"]:
        yield Finding.fail(
            "writes-lost", "wrong data reached the memory's owner through a mapping of it", *lost
        )
