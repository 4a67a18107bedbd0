"""What a job left, of what a node's processes, GPUs and shared memory show."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.model import Node
from gpuipc_doctor.node.gpus import JobGpus, ListedGpu
from gpuipc_doctor.node.memory_usage import DeviceUser, GpuUse, GpuUsers, Holder, LeftFile, ProcessUse
from gpuipc_doctor.prolog import after_job, node_identity
from gpuipc_doctor.report.error_counters import Look

PCI, OTHER = "0000:11:00.0", "0000:19:00.0"
GPU = ListedGpu("cuda", 0, frozenset({0}), "GPU-0", PCI, "")
GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("ada:x:1000:1000::/:\nbob:x:1001:1001::/:\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_UID", "1000")
    return tmp_path


def left(root: Path, *processes: Holder, gpus: tuple[GpuUse, ...] = (), **users: object) -> list[str]:
    base = Look(node_identity.now() - 60, -1, {})
    others = tuple(DeviceUser(process, ("/dev/nvidia0",)) for process in processes)
    seen = GpuUsers(others=others, **users)  # type: ignore[arg-type]
    return list(after_job._left(Node(root=str(root)), JobGpus((GPU,), (GPU,)), gpus, seen, base))


@pytest.mark.parametrize(
    ("process", "is_told"),
    [
        (Holder(5, None, "python3", user="ada", job="7", age_s=9), True),
        (Holder(5, None, "python3", user="bob", job="7", age_s=900), True),  # its cgroup says so
        (Holder(5, None, "python3", user="ada", age_s=9), True),
        (Holder(5, None, "python3", user="ada", job="8", age_s=9), False),
        (Holder(5, None, "python3", user="ada", age_s=900), False),  # a login before the job
        (Holder(5, None, "dcgm-exporter", user="root", age_s=9), False),
        (Holder(5, None, "bash", user="bob", age_s=9), False),
        (Holder(5, None, "", is_alive=False), False),
        (Holder(5, None, "?"), False),
    ],
)
def test_processes_of_the_job(root: Path, process: Holder, is_told: bool) -> None:
    assert left(root, process) == (["process 5 (python3)"] if is_told else [])


@pytest.mark.parametrize(
    ("gpu", "hidden", "says"),
    [
        (GpuUse("cuda:0", PCI, "", 3 * GIB, 80 * GIB, ()), "", ["3.00 GiB of nobody on cuda:0"]),
        (GpuUse("cuda:0", PCI, "", 3 * GIB, 80 * GIB, ()), "not root", []),
        (GpuUse("cuda:0", PCI, "", 500 << 20, 80 * GIB, ()), "", []),  # the driver's own
        (GpuUse("cuda:0", PCI, "", 3 * GIB, 80 * GIB, None), "", []),
        (GpuUse("cuda:0", PCI, "", None, None, ()), "", []),
        (GpuUse("cuda:0", PCI, "", 3 * GIB, 80 * GIB, (ProcessUse(9, "x", None),)), "", []),
        (GpuUse("cuda:1", OTHER, "", 3 * GIB, 80 * GIB, ()), "", []),  # not the job's
    ],
)
def test_memory_of_nobody(root: Path, gpu: GpuUse, hidden: str, says: list[str]) -> None:
    assert left(root, gpus=(gpu,), hidden=hidden) == says


def test_memory_that_is_a_numa_node_is_the_kernels(root: Path) -> None:
    (root / f"proc/driver/nvidia/gpus/{PCI}").mkdir(parents=True)
    (root / f"proc/driver/nvidia/gpus/{PCI}/numa_status").write_text("Status: online\n")
    assert left(root, gpus=(GpuUse("cuda:0", PCI, "", 30 * GIB, 80 * GIB, ()),)) == []


def test_files_may_be_in_use_by_who_is_not_seen(root: Path) -> None:
    files = (LeftFile("/dev/shm/nccl-1", GIB, "ada", None),)
    process = Holder(5, None, "python3", user="ada", job="7", age_s=9)
    assert left(root, process, left=files, hidden="not root") == ["process 5 (python3)"]


def test_files_of_the_jobs_user(root: Path) -> None:
    files = (LeftFile("/dev/shm/nccl-1", GIB, "ada", None), LeftFile("/dev/shm/nccl-2", GIB, "bob", None))
    assert left(root, left=files) == ["1 file of ada in /dev/shm (1.00 GiB)"]
