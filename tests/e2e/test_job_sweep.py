"""`gpuipc-doctor job --sweep` on simulated GPUs, read by NVIDIA's own binding of NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.cli import options
from gpuipc_doctor.supervise import tree
from tests.e2e.test_job import job

pytestmark = pytest.mark.cuda

READ = """
from gpuipc_doctor.node.gpu_loads import NotRead, read
try:
    print(*read(1.0), sep="\\n")
except NotRead as why:
    print(why)
"""


def node(place: Path, *devices: str, fault: str = "") -> str:
    """A profile of GPUs."""
    lines = [f"  - {{backend: cuda, name: NVIDIA H200, memory: 139 GiB, {device}}}\n" for device in devices]
    text = f"description: ours\nextends: healthy-cuda\ndevices:\n{''.join(lines)}"
    file = place / "ours.yaml"
    file.write_text(text + (f"faults: [{fault}]\n" if fault else ""))
    return str(file)


def run(profile: str, *command: str) -> subprocess.CompletedProcess[str]:
    with options.node(profile) as simulated:
        environment = {**os.environ, **simulated.env}
        return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)


def load(busy: int, watts: int, holder: int) -> str:
    nvml = f"nvml: {{busy: {busy}, watts: {watts}, watts-limit: 700}}"
    return f"held: 100 GiB, holder: {holder}, {nvml}"


def test_figures_are_nvmls_and_none_is_made_up(tmp_path: Path) -> None:
    profile = node(tmp_path, load(98, 315, os.getpid()), "held: 1 GiB, holder: -1", "nvml: {watts: 70}")
    first, second, third = run(profile, "-c", READ).stdout.splitlines()
    assert first.endswith("busy=98, watts=315.0, limit=700.0)")
    assert f"pid={os.getpid()}, name=" in first
    assert second.endswith("processes=None, trouble='', busy=None, watts=None, limit=None)")
    assert third.endswith("processes=(), trouble='', busy=None, watts=70.0, limit=None)")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("{call: nvml-init, do: hang}", "nvmlInit did not return in 1 s"),
        (
            "{call: nvml-device-load, nth: 2, do: hang-ignore-term}",
            "nvmlDeviceGetPowerUsage did not return in 1 s",
        ),
        ("{call: nvml-device-processes, do: segv}", "nvmlDeviceGetComputeRunningProcesses crashed"),
        (
            "{call: nvml-device-memory, do: lose-device}",
            "NVIDIA: nvmlDeviceGetMemoryInfo returned GPU is lost (15)",
        ),
    ],
)
def test_driver_that_does_not_answer_is_named(tmp_path: Path, fault: str, says: str) -> None:
    assert run(node(tmp_path, load(50, 300, 0), fault=fault), "-c", READ).stdout == f"{says}\n"


def test_gpu_that_is_lost_hides_no_other(tmp_path: Path) -> None:
    fault = "{call: nvml-device-memory, do: lose-device}"
    first, second = run(node(tmp_path, *[load(50, 300, 0)] * 2, fault=fault), "-c", READ).stdout.splitlines()
    assert "trouble='nvmlDeviceGetMemoryInfo returned GPU is lost (15)'" in first
    assert "busy=50" in second


def sweep(place: Path, profile: str) -> tuple[int, str]:
    site = place / "site.yaml"
    site.write_text(f"sweep: {{over_s: 0.01, state_dir: {place / 'state'}}}\n")
    ended = run(profile, "-I", "-m", "gpuipc_doctor", "job", "--sweep", "--config", str(site))
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


@pytest.mark.mpi
def test_stuck_job_is_found_beside_healthy_gpus(tmp_path: Path) -> None:
    """Eight GPUs: seven of a process that trains, and one of a rank that waits for another."""
    healthy = [load(97, 610, os.getpid())] * 7
    with job("openmpi", "one-late", 4, tmp_path / "log") as launcher:
        ranks = [process.pid for process in tree.descendants(launcher) if "python" in process.name]
        profile = node(tmp_path, *healthy, load(100, 178, ranks[0]))
        calls = [sweep(tmp_path, profile) for _ in range(4)]
    assert [code for code, _ in calls] == [0, 0, 12, 12]
    assert calls[2] == calls[3]
    late = "gpuipc-doctor: FAIL rank 3 sleeps in forget_to_arrive (planted.py:25); ranks 0-2 wait for it in "
    assert calls[2][1].startswith(f"{late}MPI_Allreduce (pid ")
    assert "; cuda:7: 100 %, 178 W of 700 W for 0 min; see " in calls[2][1]
    ended = "gpuipc-doctor: OK nothing is stuck; 8 GPUs, 7 in use\n"
    assert sweep(tmp_path, node(tmp_path, *healthy, "nvml: {busy: 0, watts: 70}")) == (0, ended)


@pytest.mark.mpi
def test_job_that_moves_on_is_not_reported(tmp_path: Path) -> None:
    with job("openmpi", "slow-worker", 2, tmp_path / "log") as launcher:
        ranks = [process.pid for process in tree.descendants(launcher) if "python" in process.name]
        profile = node(tmp_path, load(98, 315, ranks[-1]))
        assert [sweep(tmp_path, profile)[0] for _ in range(4)] == [0, 0, 0, 0]
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["state.json"]


def test_call_without_an_examination_imports_little(tmp_path: Path) -> None:
    """Processor time is measured in benchmarks/sweep.py; what costs it is not imported."""
    names = ("job.here", "job.document", "supervise.session", "knownissues", "run")
    costly = [f"gpuipc_doctor.{name}" for name in names]
    program = (
        "import atexit, sys; sys.argv[1:] = ['job', '--sweep', *sys.argv[1:]]\n"
        f"atexit.register(lambda: print([name for name in {costly} if name in sys.modules]))\n"
        "from gpuipc_doctor.cli.main import main; main()"
    )
    site = tmp_path / "site.yaml"
    site.write_text(f"sweep: {{state_dir: {tmp_path / 'state'}}}\n")
    ended = run(node(tmp_path, load(97, 610, os.getpid())), "-c", program, "--config", str(site))
    assert ended.stdout == "gpuipc-doctor: OK nothing is stuck; 1 GPU, 1 in use\n[]\n", ended.stderr


def test_other_options_are_refused(tmp_path: Path) -> None:
    ended = run(node(tmp_path, load(97, 610, 0)), "-m", "gpuipc_doctor", "job", "--sweep", "--pid", "4711")
    assert (ended.returncode, "--sweep goes with --config only" in ended.stderr) == (2, True)
