"""The file in which a job's error counters wait for its epilog."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.prolog import job_counters
from gpuipc_doctor.report.error_counters import Look

GPU, OTHER = "0000:11:00.0", "0000:19:00.0"
BOOT = "b"


def look(at: float, *gpus: str, log: int = 7) -> Look:
    return Look(at, log, {gpu: {"nvlink-replay": [0, None, int(at)]} for gpu in gpus})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "state"


def test_job_is_kept_until_its_end(place: Path) -> None:
    assert job_counters.recall(place, BOOT, "1") == (None, None)
    job_counters.begin(place, BOOT, "1", look(1, GPU))
    job_counters.begin(place, BOOT, "2", look(2, OTHER))
    assert job_counters.recall(place, BOOT, "1") == (look(1, GPU), None)
    job_counters.end(place, BOOT, "1", look(3, GPU, log=9))
    job_counters.end(place, BOOT, "3", look(4, OTHER))
    before, latest = job_counters.recall(place, BOOT, "1")
    assert before is None
    assert latest == Look(3, 9, {GPU: look(3, GPU).gpus[GPU], OTHER: look(4, OTHER).gpus[OTHER]})
    assert job_counters.recall(place, BOOT, "2")[0] == look(2, OTHER)


def test_counters_of_another_boot_do_not_count(place: Path) -> None:
    job_counters.begin(place, BOOT, "1", look(1, GPU))
    assert job_counters.recall(place, "another", "1") == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 1}',
        "[" * 100_000,
        '{"format": 1, "boot": "b", "looks": {"1": [0, 7, {"g": {"x": ["y"]}}]}}',
    ],
    ids=range(6),
)
def test_what_we_did_not_write_is_replaced(place: Path, text: str) -> None:
    job_counters.begin(place, BOOT, "1", look(1, GPU))
    (place / job_counters.FILE).write_text(text)
    assert job_counters.recall(place, BOOT, "1") == (None, None)
    job_counters.begin(place, BOOT, "2", look(2, GPU))
    assert job_counters.recall(place, BOOT, "2")[0] == look(2, GPU)


def test_file_of_others_does_not_count(place: Path) -> None:
    job_counters.begin(place, BOOT, "1", look(1, GPU))
    (place / job_counters.FILE).chmod(0o644)
    assert job_counters.recall(place, BOOT, "1") == (None, None)


def test_file_is_bounded(place: Path) -> None:
    gpus = [f"0000:{number:02x}:00.0" for number in range(16)]
    many = Look(0, 7, {gpu: {name: [10**14] * 18 for name in ("a", "b", "c")} for gpu in gpus})
    for job in range(40):
        job_counters.begin(place, BOOT, str(job), many._replace(at=job))
    assert (place / job_counters.FILE).stat().st_size <= job_counters.MAX_BYTES
    assert job_counters.recall(place, BOOT, "39")[0] == many._replace(at=39)
    assert job_counters.recall(place, BOOT, "0")[0] is None
