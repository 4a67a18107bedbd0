"""Exporter and importer write through a mapping in turn, and each must read the other's last data.

A mapping that is correct when opened may be a copy, wholly or from some offset on: later writes of the
exporter do not show, or the importer's writes are lost. So each importer exchanges data through its mapping:
first all of it in both directions, then only parts (`write_glances`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.api.data_patterns import write_glances, write_pattern, wrong_glances, wrong_pattern
from gpuipc_doctor.api.gpu import Memory
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Finding
from gpuipc_doctor.probe_types import ProbeOutcome

TURNS, WHOLE_TURNS = 5, 2
"""Number of turns, and number of turns that write and verify all of the memory: one in each direction. The
importer takes the first and the last turn, so the exporter returns after it has read everything."""


def closing_order(count: int) -> list[int]:
    """The order in which this many mappings, numbered from 0, exchange data and are closed.

    Every second mapping is closed first, so that mappings opened before and after it are used afterwards,
    which shows how a close affects other mappings.
    """
    return [*range(1, count, 2), *range(0, count, 2)]


def exchange_as_exporter(
    w: Worker, memory: Memory, nbytes: int, what: str = "", *, whole: bool = True
) -> list[str]:
    """Take the exporter's turns in the first ``nbytes`` bytes; returns the wrong data that it read.

    ``what`` names the memory in the written data and the result. Unless ``whole``, all turns only sample the
    memory. The importer must pass the same arguments.
    """
    return list(_exchange(w, memory, nbytes, what, writes_in=1, whole=whole))


def exchange_as_importer(
    w: Worker, memory: Memory, nbytes: int, what: str = "", *, whole: bool = True, offset: int = 0
) -> list[str]:
    """Take the importer's turns in ``nbytes`` bytes from ``offset`` on; returns the wrong data that it
    read."""
    return list(_exchange(w, memory, nbytes, what, writes_in=0, whole=whole, offset=offset))


def _exchange(
    w: Worker, memory: Memory, nbytes: int, what: str, *, writes_in: int, whole: bool, offset: int = 0
) -> Iterator[str]:
    for turn in range(TURNS):
        key = (*what.encode(), -1 - turn)  # checks write with keys from 0 on
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
    """A finding for each wrong read of either role, as recorded in ``exchanged``; if there is none, one for
    what was wrong in ``uses`` (`memory_uses`)."""
    if unseen := done.records["importer"]["exchanged"]:
        yield Finding.fail(
            "later-writes-unseen",
            "an open mapping shows wrong data after the exporter wrote again",
            *unseen,
        )
    if lost := done.records["exporter"]["exchanged"]:
        yield Finding.fail(
            "writes-lost", "wrong data reached the exporter through a mapping of its memory", *lost
        )
    used = [line for record in done.records.values() for line in record.get("uses", ())]
    if used and not (unseen or lost):
        yield Finding.fail("wrong-in-use", "an open mapping is right, but wrong as programs use it", *used)
