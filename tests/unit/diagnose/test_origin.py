"""Time, host and rank of a line, from real lines of libraries."""

import pytest

from gpuipc_doctor.diagnose.origin import Writers, time
from gpuipc_doctor.knownissues.literals import bare

LINES = [
    (
        "libfabric:11521:1701985650::cxi:mr:cxip_do_map():90<warn> nid001097: cxil_map() failed: -22",
        ("2023-12-07T21:47:30Z", "nid001097", ""),
    ),
    (
        "3: libfabric:11521:1701985650::core:mr:search():90<debug> search 0x15",
        ("2023-12-07T21:47:30Z", "", "3"),
    ),
    ("[1795177535.207638] [vm:22855:0]   cpu.c:338  UCX  DEBUG measured", ("2026-11-20T12:25:35Z", "vm", "")),
    (
        "[1,0]<stdout>: [1795177535.207638] [vm:22855:0]  cpu.c:338  UCX  DEBUG",
        ("2026-11-20T12:25:35Z", "vm", "0"),
    ),
    ("kolyoz1:27224:27909 [2] NCCL INFO Channel 02/0 : 2[2] -> 0[0] via P2P/CUMEM", ("", "kolyoz1", "")),
    (
        "MPICH ERROR [Rank 519] [job id 947981.0] [Tue Jun 11 15:11:42 2024] [c1207] - Abort(539602063)",
        ("Tue Jun 11 15:11:42 2024", "c1207", "519"),
    ),
    ("srun: error: nid001097: task 1: Terminated", ("", "nid001097", "1")),
    (
        "slurmstepd: error: *** STEP 8442.0 ON nid006672 CANCELLED AT 2024-06-11T15:11:42 ***",
        ("2024-06-11T15:11:42", "nid006672", ""),
    ),
    (
        "Nov 18 08:01:19 nid001012 kernel: NVRM: Xid (PCI:0009:01:00): 119, pid=1",
        ("Nov 18 08:01:19", "nid001012", ""),
    ),
    ("[ 1234.567890] NVRM: Xid (PCI:0009:01:00): 31", ("1234.567890 s after boot", "", "")),
    ("[Tue Jun 11 15:11:42 2024] NVRM: Xid", ("Tue Jun 11 15:11:42 2024", "", "")),
    (
        "[rank3]:[W1120 10:00:00.000 ProcessGroupNCCL.cpp:1] CUDA error",
        ("", "", "3"),
    ),
    ("2026-11-20 10:00:00,123 ERROR worker failed", ("2026-11-20 10:00:00,123", "", "")),
    ("rank: 12, iteration 4", ("", "", "12")),
    ("[gpu07:mpi_rank_5][error_sighandler] Caught error", ("", "gpu07", "5")),
    ("nothing of the kind 12:34", ("", "", "")),
]


@pytest.mark.parametrize(("line", "told"), LINES)
def test_time_host_and_rank_come_from_the_line(line: str, told: tuple[str, str, str]) -> None:
    assert (time(line), *Writers().writer(line, bare(line.encode()))) == told


def test_lines_of_one_kind_are_distinguished_by_host_and_rank() -> None:
    writers = Writers()
    for number in (1, 22, 333):
        line = f"srun: error: nid{number:06}: task {number}: Terminated"
        assert writers.writer(line, bare(line.encode())) == (f"nid{number:06}", str(number))


def test_kinds_of_lines_differ_in_words_not_figures() -> None:
    first = b"nid001097: Failed to acquire mapping (0x151242400000, 256): -22"
    assert bare(first) == bare(b"nid000003: Failed to acquire mapping (0x7fe, 4096): -12")
    assert bare(first) != bare(first.replace(b"acquire", b"release"))
