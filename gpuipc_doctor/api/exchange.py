"""Both ends of a mapping write in turn, and each must read what the other wrote last.

A mapping that is correct when it is opened may be a copy, or be one from some offset on: it never shows what
the exporter writes later, or what is written through it is lost. So each importer exchanges data through its
mapping: all of it in both directions once, and then where a segment is looked at (`write_glances`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.patterns import write_glances, write_pattern, wrong_glances, wrong_pattern
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Finding, ProbeOutcome

TURNS, WHOLE_TURNS = 5, 2
"""The importer writes in the first turn, when it has looked at what was there, and in every other; so also in
the last, and the exporter has read for the last time when its part returns. In the whole turns, one in each
direction, all of the memory is written and verified."""


def closing_order(count: int) -> list[int]:
    """In which order so many mappings, numbered from 0, exchange data and are closed.

    Every second one goes first. Then some that were opened before it and some that were opened after it are
    used after it was closed, which shows what closing one does to another.
    """
    return [*range(1, count, 2), *range(0, count, 2)]


def exchange_as_exporter(
    w: Worker, memory: Memory, nbytes: int, what: str = "", *, whole: bool = True
) -> list[str]:
    """The exporter's part, over the first ``nbytes`` bytes; what it reads wrong.

    ``what`` names the memory, in the data that is written and in what is returned. Unless ``whole``, the two
    whole turns write and read no more than the others. The importer says the same.
    """
    return list(_exchange(w, memory, nbytes, what, writes_in=1, whole=whole))


def exchange_as_importer(
    w: Worker, memory: Memory, nbytes: int, what: str = "", *, whole: bool = True, offset: int = 0
) -> list[str]:
    """The importer's part, over ``nbytes`` bytes from ``offset`` on; what it reads wrong."""
    return list(_exchange(w, memory, nbytes, what, writes_in=0, whole=whole, offset=offset))


def _exchange(
    w: Worker, memory: Memory, nbytes: int, what: str, *, writes_in: int, whole: bool, offset: int = 0
) -> Iterator[str]:
    for turn in range(TURNS):
        key = (*what.encode(), -1 - turn)  # checks write under keys from 0 on
        write, find_wrong = (
            (write_pattern, wrong_pattern) if whole and turn < WHOLE_TURNS else (write_glances, wrong_glances)
        )
        if turn % 2 == writes_in:
            write(memory, nbytes, *key, offset=offset)
            w.peer.send("written")
        else:
            w.peer.recv()
            where = f"{what}{', ' if what else ''}turn {turn + 1} of {TURNS}"
            yield from find_wrong(where, memory, nbytes, *key, offset=offset)


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
