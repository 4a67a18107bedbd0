"""Logs of single ranks are compared: lines of most ranks, and ranks that differ."""

from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose import diagnosis_content
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.rank_files import rank_in
from gpuipc_doctor.diagnose.readers import diagnose

ISSUES = [one for one in knownissues.load_messages() if one.id == "nvidia-gpu-lost"]
CLOSED = "{0}:{1}:90 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer\n"
SIGNAL = "[{0}:{1}] Signal: Segmentation fault (11)\n"


def read(texts: list[str], tmp_path: Path, name: str = "out.rank{0}.log") -> Diagnosis:
    for rank, text in enumerate(texts):
        host = f"nid{rank // 4:06}"
        (tmp_path / name.format(rank, host)).write_text(text.format(host, 1000 + rank), encoding="utf-8")
    return diagnose([str(tmp_path)], Examination(ISSUES))


def test_one_rank_of_many_differs(tmp_path: Path) -> None:
    texts = [CLOSED] * 511
    texts.insert(17, SIGNAL)
    diagnosis = read(texts, tmp_path)
    (ranks,) = diagnosis.rank_files
    (difference,) = ranks.differences
    assert (ranks.alike, difference.ranks) == (511, ("rank 17 (nid000004)",))
    page = diagnosis_content.screen(diagnosis, width=200, exit_code=0)
    assert "the error lines are the same on 511 ranks; rank 17 (nid000004) differs" in page
    assert "has “[nid000004:1017] Signal: Segmentation fault (11)”; lacks “nid" in page


def test_debug_files_of_nccl_are_a_family(tmp_path: Path) -> None:
    ranks = read([CLOSED, CLOSED, CLOSED, "fine\n"], tmp_path, "nccl.{1}.{0}").rank_files
    assert [difference.ranks for difference in ranks[0].differences] == [(f"{tmp_path}/nccl.nid000000.3",)]


def test_known_issue_of_one_rank_is_named(tmp_path: Path) -> None:
    lost = "{0} NVRM: Xid (PCI:0000:44:00): 79, pid=7, GPU has fallen off the bus.\n"
    (ranks,) = read(["fine\n", "fine\n", lost + CLOSED], tmp_path).rank_files
    assert ranks.differences[0].says.startswith("has nvidia-gpu-lost, “")


@pytest.mark.parametrize(
    "texts",
    [
        ["fine\n"] * 5,
        [CLOSED, SIGNAL],
        [CLOSED, SIGNAL, "fine\n", "{0} FATAL\n"],
    ],
    ids=["healthy", "two logs", "all differ"],
)
def test_no_comparison_without_a_usual_rank(texts: list[str], tmp_path: Path) -> None:
    assert read(texts, tmp_path).rank_files == ()


def test_logs_of_other_names_are_no_family(tmp_path: Path) -> None:
    for name, text in (("job.out", CLOSED), ("dmesg", CLOSED), ("nccl.txt", SIGNAL)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert diagnose([str(tmp_path)], Examination(ISSUES)).rank_files == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("out.rank17.log", "17"),
        ("rank0/rank-3.txt", "3"),
        ("1/rank.05/stdout", "5"),
        ("nccl_trace_rank_12", "12"),
        ("job/attempt_0/7/stderr.log", "7"),
        ("slurm-4711.out", ""),
        ("franking.log", ""),
    ],
)
def test_rank_is_read_from_a_name(name: str, rank: str) -> None:
    assert rank_in(name) == rank
