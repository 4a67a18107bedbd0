"""Dumps of recorders of collectives are found by the variables of the ranks' processes."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.job import recorder_dumps
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.processes import read_process
from tests.unit.diagnose.test_flight_recorder import HUNG, Hostile


@pytest.fixture(params=recorder_dumps.VARIABLES)
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[int, Process]]:
    environ = {**os.environ, request.param: f"{tmp_path}/trace_"}
    started = [subprocess.Popen(["sleep", "60"], env=environ) for _ in range(3)]
    found = {
        rank: read
        for rank, one in enumerate(started)
        if (read := read_process(one.pid, lambda tid, used_s: 0.0, frozenset()))
    }
    yield found
    for one in started:
        one.kill()
        one.wait()


def test_late_rank_is_named_with_the_age_of_the_dumps(ranks: dict[int, Process], tmp_path: Path) -> None:
    assert recorder_dumps.lines(ranks) == ()
    for rank, dump in enumerate(HUNG):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    head, says = recorder_dumps.lines(ranks)
    assert "written 0 to " in head
    assert says.startswith("rank 1 did not call all_reduce (operation 2)")


def test_what_the_processes_have_not_written_is_not_read(ranks: dict[int, Process], tmp_path: Path) -> None:
    for rank, dump in enumerate(HUNG):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
        os.utime(tmp_path / f"trace_{rank}", (1, 1))  # of a job before
    assert recorder_dumps.lines(ranks) == ()
    for rank in ranks:
        (tmp_path / f"trace_{rank}").rename(tmp_path / f"other_{rank}")
        (tmp_path / f"trace_{rank}").symlink_to(tmp_path / f"other_{rank}")
        (tmp_path / f"other_{rank}").touch()
    assert recorder_dumps.lines(ranks) == ()
    for rank in ranks:
        (tmp_path / f"trace_{rank}").unlink()
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps({"entries": [Hostile()], "version": "2.5"}))
    assert recorder_dumps.lines(ranks) == ()
    assert not Path("executed").exists()
