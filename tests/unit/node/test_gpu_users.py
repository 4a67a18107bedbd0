"""Who uses GPUs: figures that a driver tells badly, open device files, and files left in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gpuipc_doctor.node import gpu_users, memory_content
from gpuipc_doctor.node.memory_sampling import Nvidia
from gpuipc_doctor.node.memory_usage import GpuUse, ProcessUse
from gpuipc_doctor.stacks import open_files, rights
from gpuipc_doctor.worker.nvml import GpuMemory, Nvml

GIB, MIB = 1 << 30, 1 << 20
DEAD = 4_000_001
"""Larger than any pid that Linux gives."""


@pytest.fixture
def worker() -> Any:
    worker = MagicMock()
    worker.armed.side_effect = lambda _operation: contextlib.nullcontext()
    return worker


# Figures


def listed(*processes: tuple[int, int | None, int]) -> Nvml:
    """NVML that lists these: (pid, bytes, number of the MIG instance)."""
    nvml = Nvml.__new__(Nvml)
    found = [SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=of) for pid, used, of in processes]
    calls = {"nvmlDeviceGetComputeRunningProcesses": found, "nvmlDeviceGetGraphicsRunningProcesses": []}
    nvml.call = lambda name, *_: calls[name]  # type: ignore[method-assign]
    for name, value in {"name": "H200", "pci": "0000:01:00.0", "by_index": 0}.items():
        setattr(nvml, name, lambda *_, value=value: value)
    nvml.memory = lambda _: GpuMemory(100 * GIB, 50 * GIB, 50 * GIB)  # type: ignore[method-assign]
    return nvml


@pytest.mark.parametrize(
    ("processes", "told", "of_no_process"),
    [
        ([(DEAD, 20 * GIB, 0), (DEAD + 1, 10 * GIB, 0)], [20 * GIB, 10 * GIB], "20.00 GiB"),
        ([(DEAD, None, 0), (DEAD + 1, 10 * GIB, 0)], [None, 10 * GIB], "unknown"),  # N/A for one
        ([(DEAD, None, 0), (DEAD + 1, None, 0)], [None, None], "unknown"),  # N/A for all
        ([(DEAD, (1 << 64) - 1, 0)], [None], "unknown"),  # garbage
        ([(DEAD, 101 * GIB, 0)], [None], "unknown"),
        ([(DEAD, 40 * GIB, 0), (DEAD + 1, 40 * GIB, 0)], [40 * GIB, 40 * GIB], "unknown"),  # more than in use
        ([(DEAD, 20 * GIB, 0), (DEAD, 20 * GIB, 0)], [20 * GIB], "30.00 GiB"),  # one listed twice
        ([(DEAD, 20 * GIB, 0), (DEAD, None, 0)], [20 * GIB], "30.00 GiB"),
        ([(DEAD, 20 * GIB, 1), (DEAD, 5 * GIB, 2)], [25 * GIB], "25.00 GiB"),  # of two MIG instances
        ([], [], "50.00 GiB"),
    ],
)
def test_figures_that_the_driver_tells_badly_are_unknown(
    processes: list[tuple[int, int | None, int]], told: list[int | None], of_no_process: str
) -> None:
    gpu = Nvidia(listed(*processes))._gpu(0)
    assert [process.used for process in gpu.processes or ()] == told
    sample = SimpleNamespace(gpus=(gpu,))
    *_, last = memory_content.rows(sample, lambda _: None)  # type: ignore[arg-type]
    assert last[1:3] == ("(no process)", of_no_process)


# Processes


def process(root: Path, pid: int, *files: str, parent: int = 1) -> None:
    directory = root / f"proc/{pid}"
    (directory / "fd").mkdir(parents=True)
    (directory / "stat").write_text(f"{pid} (app) S {parent} " + "0 " * 30)
    (directory / "maps").write_text("")
    for number, file in enumerate(files):
        (directory / f"fd/{number}").symlink_to(file)


DEVICES = {
    # files that a process has open → those that are told
    ("/dev/nvidia0", "/dev/nvidiactl", "/dev/null"): ("/dev/nvidia0", "/dev/nvidiactl"),
    ("/dev/kfd", "/dev/dri/renderD128"): ("/dev/dri/renderD128", "/dev/kfd"),
    ("/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap12"): (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-uvm",
    ),
    ("/dev/nvidia-nvswitchctl", "/dev/dri/card0", "/home/dev/nvidia0"): (),
    ("/dev/nvidia0 (deleted)",): (),
    (): (),
}


@pytest.mark.parametrize("files", DEVICES)
@pytest.mark.parametrize("holds_memory", [False, True])
def test_processes_without_memory_on_a_gpu_are_told_with_their_device_files(
    files: tuple[str, ...], holds_memory: bool, worker: Any, tmp_path: Path
) -> None:
    process(tmp_path, DEAD, *files)
    (tmp_path / f"proc/{DEAD + 1}").mkdir()  # it ended between two looks
    (tmp_path / "proc/self").symlink_to(str(DEAD))
    users = gpu_users.look(worker, tmp_path, {DEAD} if holds_memory else ())
    others = {other.process.pid: other.files for other in users.others}
    assert others == ({} if holds_memory or not DEVICES[files] else {DEAD: DEVICES[files]})
    assert [holder.has_parent for holder in users.holders] == [False] * holds_memory


@pytest.mark.parametrize(
    ("hidden", "words"),
    [("", "it has ended"), ("a pid namespace of its own", "of a user that cannot be seen from here")],
)
def test_holder_that_proc_does_not_show_has_ended_unless_processes_are_hidden(
    hidden: str, words: str, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "hiding", lambda unread: hidden)
    users = gpu_users.look(worker, Path("/"), {DEAD})
    assert list(users.holders[0].about) == [words]
    gpu = GpuUse("cuda:0", "", "H200", GIB, GIB, (ProcessUse(DEAD, "", GIB),))
    rows = list(memory_content.rows(SimpleNamespace(gpus=(gpu,)), lambda _: None, users))  # type: ignore[arg-type]
    assert rows[1][1] == f"{DEAD}, {words}"
    assert any(hidden in line for line in memory_content.beside(users)) or not hidden


def test_process_whose_files_may_not_be_read_is_counted(worker: Any, tmp_path: Path) -> None:
    process(tmp_path, DEAD, "/dev/nvidia0")
    worker.armed.side_effect = PermissionError(13, "Permission denied")
    seen = open_files.look(tmp_path / "proc", "/dev/shm", arm=worker.armed)
    assert (seen.unread, seen.devices) == (1, {})


def test_owner_of_a_file_is_not_said_to_have_ended_where_processes_are_hidden(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(f"/dev/shm/torch_{DEAD}_{os.getpid()}_0")
    file.touch()
    try:
        for hidden in ("", "a pid namespace of its own"):
            monkeypatch.setattr(rights, "hiding", lambda unread, hidden=hidden: hidden)
            users = gpu_users.look(worker, Path("/"), ())
            (pid,) = [left.pid for left in users.left if left.name == str(file)]
            assert pid == (None if hidden else DEAD)
            assert any("no visible process" in line for line in memory_content.beside(users)) is bool(hidden)
    finally:
        file.unlink()


def test_no_file_is_left_where_the_kernel_shows_no_open_files(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "shows_own", lambda proc: False)
    users = gpu_users.look(worker, Path("/"), ())
    assert (users.left, "does not show" in users.hidden) == ((), True)


# Files

LEFT = {
    f"cuda.shm.0.{DEAD:x}.1": True,
    f"cuda.shm.0.{os.getpid():x}.1": False,  # its owner lives
    "cuda.shm.0.nothex.1": True,  # without a pid, that nobody has it open is enough
    f"torch_{DEAD}_77_0": True,
    f"torch_{os.getpid()}_77_0": False,
    "nccl-Ab12Cd": True,
    "vllm_shm_0": True,
    "ucx_shm_posix_1": True,
    "sem.other": False,
    "nccl": False,
}


@pytest.mark.parametrize("name", LEFT, ids=map(str, range(len(LEFT))))
@pytest.mark.parametrize("use", ["", "mapped", "link"])
def test_files_are_left_if_no_process_has_them_and_no_owner_lives(
    name: str, use: str, worker: Any, tmp_path: Path
) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    path = tmp_path / "dev/shm" / name
    if use == "link":
        path.symlink_to("/dev/null")
    else:
        path.write_bytes(b"x" * 8192)
    inode = path.lstat().st_ino
    process(tmp_path, DEAD + 7)
    if use == "mapped":
        maps = f"7f0000000000-7f0000002000 rw-s 00000000 00:19 {inode} /dev/shm/{name}\n"
        (tmp_path / f"proc/{DEAD + 7}/maps").write_text(maps)
    users = gpu_users.look(worker, tmp_path, ())
    expected = [f"/dev/shm/{name}"] if LEFT[name] and not use else []
    assert [left.name for left in users.left] == expected


def test_open_file_of_a_living_process_is_not_left(worker: Any) -> None:
    """The kernel's own /proc: a descriptor leads to the file; then it is closed."""
    file = Path(f"/dev/shm/ucx-gpuipc-test-{os.getpid()}")
    hold = f"f = open('{file}', 'wb'); f.write(b'x'); f.flush(); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=-1, stdout=-1) as holder:
        try:
            assert holder.stdout
            holder.stdout.readline()
            assert str(file) not in {left.name for left in gpu_users.look(worker, Path("/"), ()).left}
            holder.communicate(b"\n")
            assert str(file) in {left.name for left in gpu_users.look(worker, Path("/"), ()).left}
        finally:
            file.unlink()
