"""The supervisor reads everything that a worker wrote before it ended."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest

from gpuipc_doctor.probe_types import Calls
from gpuipc_doctor.supervise.journal import Journal, Progress


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def read(path: Path) -> Progress:
    progress = Progress(path)
    progress.read()
    return progress


def test_armed_operation_is_read_with_its_occurrence(path: Path) -> None:
    journal = Journal(path)
    for _ in range(2):
        with journal.armed("cuInit"):
            pass
    with journal.step("open"), journal.armed("cuInit"):
        seen = read(path)
    assert (seen.operation, seen.occurrences, seen.step) == ("cuInit", {"cuInit": 3}, "open")
    after = read(path)
    assert (after.operation, after.occurrences, after.step) == ("", {"cuInit": 3}, "")


def test_returned_calls_are_counted_and_timed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(100 * 10**9, 10**9)  # each line of the journal is written a second after the previous one
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))
    journal = Journal(path)
    for _ in range(2):
        with journal.armed("open"):
            journal.record({"inside": 1})
    with pytest.raises(KeyError), journal.armed("close"):
        raise KeyError
    seen = read(path)
    assert seen.returned == {"open": Calls("open", 2, 4.0)}
    assert seen.first_at == 100.0


def test_records_are_merged(path: Path) -> None:
    journal = Journal(path)
    journal.record({"a": 1, "b": 1})
    journal.record({"b": 2})
    assert read(path).records == {"a": 1, "b": 2}


def test_waiting_is_seen_while_it_lasts(path: Path) -> None:
    journal = Journal(path)
    with journal.waiting():
        assert read(path).waiting
    assert not read(path).waiting


def test_incomplete_line_is_read_later(path: Path) -> None:
    journal = Journal(path)
    journal.record({"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    progress = read(path)
    assert not progress.started
    path.write_bytes(whole)
    progress.read()
    assert progress.records == {"a": 1}


def test_clock_of_another_node_is_converted(path: Path) -> None:
    """The clock counts from a node's boot: two nodes may differ by months."""
    lines = [
        {"event": "armed", "at": 1e9, "operation": "MPI_Send", "occurrence": 1},
        {"event": "disarmed", "at": 1e9 + 2},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    progress = Progress(path, same_clock=False)
    before = time.monotonic()
    progress.read()
    assert before <= progress.first_at <= time.monotonic()
    assert progress.last_at - progress.first_at == pytest.approx(2)
    assert progress.returned["MPI_Send"].seconds == pytest.approx(2)


def test_restarted_journal_stays_short_and_is_followed(path: Path) -> None:
    journal, progress = Journal(path), Progress(path)
    seen: list[float] = []
    for _ in range(20):
        with journal.armed("read"):
            progress.read()
        journal.begin_anew()  # as long as the last time, to the byte or nearly so
        progress.begin_anew()
        progress.read()
        assert progress.operation == ""
        seen.append(progress.last_at)
    assert seen == sorted(set(seen))
    assert path.stat().st_size < 200
    with pytest.raises(KeyError), journal.armed("another"):
        raise KeyError
    progress.read()
    assert (progress.operation, progress.occurrences["another"]) == ("another", 1)
