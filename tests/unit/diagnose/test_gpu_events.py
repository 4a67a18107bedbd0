"""Events of a GPU, its driver and its node precede errors that libraries report afterwards."""

from pathlib import Path

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose import exits
from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.model import Exit

ISSUES = [*knownissues.load(), *knownissues.load_messages()]
LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n{0}NVRM: (PCI ID: 10de:26b5) installed in this system has\n{0}NVRM: "
)
LOST += "fallen off the bus and is not responding to commands.\n"


def read(text: str, tmp_path: Path) -> Diagnosis:
    log = tmp_path / "node.log"
    log.write_text(text, encoding="utf-8")
    return diagnose([str(log)], Examination(ISSUES))


def xid(number: int) -> str:
    return f"[ 4711.123456] NVRM: Xid (PCI:0000:44:00): {number}, pid=7, name=python3, Ch 00000008\n"


@pytest.mark.parametrize(
    "line",
    [
        xid(79),
        "Nov 24 01:02:03 n1 kernel: NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.\n",
        LOST.format(""),
        LOST.format("               "),
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b06) installed in this system has\n"
        "       fallen off the bus and is not responding to commands.\n",
        "NVRM: The NVIDIA GPU 0000:0e:00.0 (PCI ID: 10de:1b06) installed in this system has fallen off the "
        "bus and is not responding to commands.\n",
    ],
)
def test_lost_gpu_is_found_in_every_form(line: str, tmp_path: Path) -> None:
    diagnosis = read(line, tmp_path)
    assert [seen.issue.id for seen in diagnosis.found] == ["nvidia-gpu-lost"]
    assert exits.code(diagnosis) == Exit.FAIL


def test_lost_gpu_precedes_earlier_reports_of_libraries(tmp_path: Path) -> None:
    library = (
        "n1:1:2 [0] transport/p2p.cc:355 NCCL WARN failed to peer with device 1(=65000): 217 peer access\n"
    )
    diagnosis = read(library * 5 + "step\n" * 90 + xid(79) + library, tmp_path)
    assert diagnosis.recognised[0].issue.id == "nvidia-gpu-lost"
    assert len(diagnosis.recognised) > 1


def test_first_event_of_a_severity_comes_first(tmp_path: Path) -> None:
    diagnosis = read(xid(64) + xid(79) + xid(64) * 3, tmp_path)
    assert [seen.issue.id for seen in diagnosis.found] == ["nvidia-row-remapping-failed", "nvidia-gpu-lost"]


@pytest.mark.parametrize(
    ("number", "issue"),
    [
        *((number, "nvidia-application-fault") for number in (13, 31, 43, 69)),
        (32, "nvidia-push-buffer-corrupt"),
        (45, "nvidia-channel-removed"),
        *((number, "nvidia-uncorrected-memory-error") for number in (48, 95, 140)),
        *((number, "nvidia-engine-timeout") for number in (61, 62)),
        (63, "nvidia-row-remapping-pending"),
        (64, "nvidia-row-remapping-failed"),
        *((number, "nvidia-application-fault") for number in (68, 139)),
        *((number, "nvidia-nvlink-error") for number in (74, 136)),
        (92, "nvidia-row-remapping-pending"),
        (94, "nvidia-contained-memory-error"),
        (109, "nvidia-engine-timeout"),
        *((number, "nvidia-gsp-timeout") for number in (119, 120)),
        (121, "nvidia-nvlink-error"),
        (137, "nvidia-nvlink-error"),
        (141, "nvidia-channel-removed"),
        (143, "nvidia-gpu-not-initialised"),
        *((number, "nvidia-nvlink-error") for number in (144, 145, 146, 147, 148, 149, 150)),
        (154, "nvidia-gpu-needs-recovery"),
    ],
)
def test_each_xid_has_one_row(number: int, issue: str, tmp_path: Path) -> None:
    assert [seen.issue.id for seen in read(xid(number), tmp_path).found] == [issue]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error\n",
        "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block\n",
        "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block\n",
        "amdgpu 0000:c3:00.0: amdgpu: 3 correctable hardware errors detected in umc block\n",
        "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n",
        "amdgpu: Freeing queue vital buffer 0x7fc107400000, queue evicted\n",  # at the end of any process
        "fs-OST0015-osc-ffff3000: Connection restored to  (at 172.28.1.43@tcp)\n",
        "a.out[4711]: page fault (user) at 0\n",
        "oom_reaper is idle; Out of memory is far away\n",
    ],
)
def test_other_line_is_no_event(line: str, tmp_path: Path) -> None:
    assert not read(line, tmp_path).recognised


def test_unknown_xid_is_an_error_line_that_nothing_explains(tmp_path: Path) -> None:
    diagnosis = read("NVRM: Xid (PCI:0000:44:00): 179, pid=7\n", tmp_path)
    assert (diagnosis.recognised, len(diagnosis.unknown)) == ((), 1)


@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup out of memory: Killed process 15617 (python3) total-vm:11892kB, anon-rss:4292kB",
        "[ 1.000000] Out of memory: Kill process 24572 (java) score 0 or sacrifice child",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.",
    ],
)
def test_oom_killer_is_not_a_gpus_fault(line: str, tmp_path: Path) -> None:
    (seen,) = read(f"{line}\n", tmp_path).found
    assert seen.issue.kind == "fatal"
    assert seen.issue.title.startswith("not a GPU's fault")
