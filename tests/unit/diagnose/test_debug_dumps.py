"""Dumps and pages of PyTorch's debug server, written by PyTorch 2.14.1: three ranks over gloo, rank 1 late.

The tables are those of its analysis of gloo's recorder, to which the group's members were added."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.diagnose import debug_dumps, exits
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.model import Exit

FIXTURES = Path(__file__).parents[2] / "fixtures/debug_server"
STACKS, LATE, ODD, PAGE = (
    (FIXTURES / name).read_text()
    for name in ("stacks.txt", "fr_trace_late.txt", "fr_trace_odd.txt", "page.html")
)
MOVED = STACKS.replace("line 11 in build_index", "line 10 in build_index")
PYSPY = """\
=== Rank 0: http://n1:1/handler/pyspy_dump? ===
Process 7: python train.py
Thread 7 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4916)
    <module> (/home/u/train.py:9)
Thread 9 (idle): "Timer"
    wait (threading.py:331)
=== Rank 1: http://n1:2/handler/pyspy_dump? ===
Thread 8 (active): "MainThread"
    load (/home/u/train.py:5)
"""


def read(place: Path, *texts: str, name: str = "dump_20261129_08{}331.txt") -> Diagnosis:
    for number, text in enumerate(texts):
        (place / name.format(number)).write_text(text)
    return diagnose([str(place)], Examination([]))


@pytest.mark.parametrize(
    ("texts", "says", "blames"),
    [
        ([STACKS], "rank 1 is in build_index (train.py:11) < <module> (train.py:12), where ranks 0,2", False),
        ([STACKS, STACKS], "rank 1 is in build_index", True),
        ([MOVED, STACKS], "rank 1 is in build_index", False),  # it works
        ([STACKS, MOVED, STACKS], "rank 1 is in build_index", False),
        ([PYSPY, PYSPY], "rank 1 is in load (train.py:5), where rank 0 waits in barrier", True),
        ([LATE], "rank 1 did not call all_reduce (operation 6) of 0 (default_pg), in which ranks", False),
        ([LATE, LATE], "rank 1 did not call all_reduce (operation 6)", True),
        ([ODD], "rank 1 called _all_gather_base, where ranks 0,2 called all_reduce (operation 6)", True),
    ],
)  # fmt: skip
def test_late_or_odd_rank_is_named_and_blamed_if_it_stays(
    texts: list[str], says: str, blames: bool, tmp_path: Path
) -> None:
    diagnosis = read(tmp_path, *texts)
    found = diagnosis.flights[0]
    assert (found.ranks, found.blames) == (("1",), blames)
    assert found.says.startswith(says)
    assert exits.code(diagnosis) == (Exit.FAIL if blames else Exit.OK)


def test_rank_that_stays_for_a_minute_may_work(tmp_path: Path) -> None:
    """It may write a checkpoint, for which the others wait in a barrier."""
    for text in (STACKS, LATE):
        assert not any(
            one.blames for one in read(tmp_path, text, text, name="d_20261129_0843{}0.txt").flights
        )


@pytest.mark.parametrize(
    "text",
    [
        STACKS.replace("in build_index", "in all_reduce").replace(
            "/home/u/train.py", "/x/distributed_c10d.py"
        ),
        STACKS.replace("distributed_c10d.py", "functional.py"),  # nobody waits
        LATE.replace("{1}", ""),  # all have called it
        LATE.replace("started", "completed"),
    ],
)
def test_healthy_ranks_are_not_named(text: str, tmp_path: Path) -> None:
    assert not any(found.quote for found in read(tmp_path, text, text).flights)


def test_saved_page_is_read(tmp_path: Path) -> None:
    (found,) = read(tmp_path, PAGE, name="page{}.html").flights
    assert found.says.startswith("rank 1 is in build_index (train.py:12)")


def test_other_text_is_no_dump() -> None:
    others = (b"<!doctype html><p>=== Rank 0: http", b"step 1\n=== Rank 0: http://", b"=== Rank 0 ===")
    assert not any(map(debug_dumps.is_dump, others))


@pytest.mark.parametrize("text", [STACKS, LATE, ODD, PAGE], ids=["stacks", "late", "odd", "page"])
def test_dump_cut_anywhere_is_read_or_left_out(text: str) -> None:
    for cut in range(0, len(text), 97):
        debug_dumps.dumps(text[:cut], "fr_trace_20261129_084331.txt")
        debug_dumps.dumps(text[cut:], "stacks.txt")
