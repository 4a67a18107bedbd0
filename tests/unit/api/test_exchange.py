"""Data exchanged in both directions through a mapping, and mappings that are correct only at first."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.api import closing_order, exchange_as_exporter, exchange_as_importer, judge_exchange
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import ONE, outcome

NBYTES = 300_000
MIDDLE = 200_000
"""An offset outside all sampled parts."""


class Bytes:
    """Memory of a process, or another process's mapping of it."""

    def __init__(
        self,
        data: bytearray,
        *,
        shows: bytes | None = None,
        loses_writes: bool = False,
        loses_middle: bool = False,
    ) -> None:
        self.data, self.shows = data, shows
        self.loses_writes, self.loses_middle = loses_writes, loses_middle

    def write(self, data: bytes, offset: int = 0) -> None:
        kept = bytes(self.data[MIDDLE : MIDDLE + 1])
        if not self.loses_writes:
            self.data[offset : offset + len(data)] = data
        if self.loses_middle and offset <= MIDDLE < offset + len(data):
            self.data[MIDDLE : MIDDLE + 1] = kept

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        return bytes(self.data if self.shows is None else self.shows)[offset : offset + nbytes]


def exchanged(mapping: Callable[[bytearray], Bytes], offset: int = 0) -> tuple[list[str], list[str]]:
    """The wrong data that the exporter and the importer read."""
    memory, there, back = bytearray(offset + NBYTES), Queue[str](), Queue[str]()
    exporter: Any = SimpleNamespace(peer=SimpleNamespace(send=there.put, recv=back.get))
    importer: Any = SimpleNamespace(peer=SimpleNamespace(send=back.put, recv=there.get))
    found: dict[str, list[str]] = {}

    def own() -> None:
        own_memory: Any = Bytes(memoryview(memory)[offset:])  # type: ignore[arg-type]
        found["exporter"] = exchange_as_exporter(exporter, own_memory, NBYTES, "it")

    thread = Thread(target=own, daemon=True)
    thread.start()
    opened: Any = mapping(memory)
    found["importer"] = exchange_as_importer(importer, opened, NBYTES, "it", offset=offset)
    thread.join(10)
    return found["exporter"], found["importer"]


def turns(lines: list[str]) -> list[int]:
    """The turns in which wrong data was read."""
    return list(dict.fromkeys(int(line.removeprefix("it, turn ").partition(" ")[0]) for line in lines))


@pytest.mark.parametrize("offset", [0, 64])
def test_correct_mapping_passes(offset: int) -> None:
    assert exchanged(Bytes, offset) == ([], [])


def test_lost_byte_in_the_middle_is_found_when_all_is_written() -> None:
    exporter, importer = exchanged(lambda data: Bytes(data, loses_middle=True))
    assert (turns(exporter), turns(importer)) == ([1], [])
    assert "1 of 300000 B wrong" in exporter[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6])
def test_each_mapping_is_closed_once_and_the_others_stay_usable(count: int) -> None:
    order = closing_order(count)
    assert sorted(order) == list(range(count))
    if count > 2:
        first, *later = order
        assert min(later) < first < max(later)


@pytest.mark.parametrize(
    ("exporter", "importer", "keys"),
    [
        ([], [], []),
        (["turn 1"], [], ["writes-lost"]),
        ([], ["turn 2"], ["later-writes-unseen"]),
        (["turn 1"], ["turn 2"], ["later-writes-unseen", "writes-lost"]),
    ],
)
def test_wrong_data_of_each_role_is_a_separate_failure(
    exporter: list[str], importer: list[str], keys: list[str]
) -> None:
    records = {"exporter": {"exchanged": exporter}, "importer": {"exchanged": importer}}
    found = list(judge_exchange(outcome(records, ONE, "")))
    assert [finding.key for finding in found] == keys
    assert {finding.status for finding in found} <= {Status.FAIL}
    told = [line for finding in found for line in sentences.evidence(finding)]
    assert told == [*importer, *exporter]


@pytest.mark.parametrize(
    ("unseen", "keys"), [([], ["wrong-in-use"]), (["turn 2 of 5: wrong"], ["later-writes-unseen"])]
)
def test_what_is_wrong_in_use_is_said_if_the_mapping_is_right(unseen: list[str], keys: list[str]) -> None:
    """Else each use is also wrong."""
    records = {
        "exporter": {"exchanged": [], "uses": ["after cuMemcpyPeerAsync: wrong"]},
        "importer": {"exchanged": unseen, "uses": []},
    }
    assert [finding.key for finding in judge_exchange(outcome(records, ONE, ""))] == keys
