"""`diagnose` names the rank that differs, by one log of all ranks or by a directory of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.diagnose import diagnosis_content
from gpuipc_doctor.diagnose.collectives import Collectives
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import load, load_messages
from tests import nccl_recordings
from tests.unit.collective.test_logs import joins, nccl, timeout

LOG = nccl_recordings.FIXTURES / "watchdog-mismatch.log"


@pytest.fixture(scope="module")
def issues() -> list[object]:
    return [*load(()), *load_messages()]


def diagnosed(issues: list[object], *paths: Path) -> Diagnosis:
    return diagnose([str(path) for path in paths], Examination(issues))  # type: ignore[arg-type]


def screen(diagnosis: Diagnosis) -> str:
    return diagnosis_content.screen(diagnosis, width=100, exit_code=12)


def by_rank(place: Path, without: int | None = None) -> Path:
    for rank in range(8):
        lines = [line for line in LOG.read_text().splitlines() if line.startswith(f"[rank{rank}]")]
        if rank != without:
            (place / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
    return place


@pytest.mark.parametrize("one_log", [True, False])
def test_rank_that_differs_is_named_first_and_advice_to_find_it_is_left_out(
    issues: list[object], tmp_path: Path, one_log: bool
) -> None:
    text = screen(diagnosed(issues, LOG if one_log else by_rank(tmp_path)))
    assert text.index("rank 3 called ALLGATHER") < text.index("FOUND")
    assert "if SeqNum or OpType differ" not in " ".join(text.split())
    assert "the same on 8 ranks" not in text
    assert "OpType=ALLGATHER" in text


def test_rank_without_a_log_line_is_named(issues: list[object], tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "\n".join(line for line in LOG.read_text().splitlines() if not line.startswith("[rank5]"))
    )
    text = " ".join(screen(diagnosed(issues, tmp_path / "job.log")).split())
    assert "rank 5 did not call ALLREDUCE" in text


def test_rank_whose_log_is_empty_is_named(issues: list[object], tmp_path: Path) -> None:
    place = by_rank(tmp_path, without=7)
    (place / "rank7.log").write_text("step 20 done\n")
    text = " ".join(screen(diagnosed(issues, place)).split())
    assert "rank 7 did not call ALLREDUCE" in text


@pytest.mark.parametrize("size", [1, 7, 100, 4096, 1 << 20])
def test_blocks_may_end_within_a_line(size: int) -> None:
    found = Collectives()
    log = found.log("job.log")
    data = LOG.read_bytes()
    for begin in range(0, len(data), size):
        log.feed(data[begin : begin + size])
    log.end()
    assert [(one.ranks, one.line) for one in found.findings()] == [((3,), 8)]


def test_attempts_in_directories_of_torchrun_are_told_in_their_order(
    issues: list[object], tmp_path: Path
) -> None:
    line = LOG.read_text().splitlines()[1]  # of rank 2
    for attempt, absent in ((0, 2), (1, 1)):
        for rank in range(4):
            log = tmp_path / f"attempt_{attempt}/{rank}/stderr.log"
            log.parent.mkdir(parents=True)
            own = line.replace("[rank2]", f"[rank{rank}]").replace("[Rank 2]", f"[Rank {rank}]")
            log.write_text(own if rank != absent else "ready")
    flights = diagnosed(issues, tmp_path).flights
    assert [found.ranks for found in flights] == [("2",), ("1",)]


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_calls_of_attempts_in_one_block_are_kept_apart(size: int) -> None:
    """Within a block, calls are read apart from other lines, and in their order with them."""
    first = [*map(joins, range(8)), *(nccl(rank, n) for n in range(9) for rank in range(8))]
    again = [
        *map(joins, range(8)),
        *(nccl(rank, n) for n in range(5) for rank in range(8) if (rank, n) != (6, 4)),
    ]
    data = "\n".join([*first, *map(timeout, range(8)), *again, "x"]).encode()
    found = Collectives()
    log = found.log("job.log")
    for begin in range(0, len(data), size):
        log.feed(data[begin : begin + size])
    log.end()
    (one,) = found.findings()
    assert (one.ranks, one.line) == ((6,), 8 + 72 + 8 + 8 + 3 * 8 + 7)
    assert one.says.endswith("[attempt 2 of 2]")
