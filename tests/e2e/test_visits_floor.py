"""The C floor of `benchmarks/check_cost.py` makes the calls of the run that was recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import prolog_cost, visits
from gpuipc_doctor.simulator.node import prepare

pytestmark = pytest.mark.cuda

KERNELS = Path(__file__).parents[2] / "gpuipc_doctor/worker/backends/kernels.ptx"


@pytest.mark.full
def test_the_floor_repeats_a_run_and_notices_where_the_driver_answers_otherwise(tmp_path: Path) -> None:
    profile = tmp_path / "one.yaml"
    profile.write_text("{description: one, extends: healthy-single}")
    command = ["check", "ipc-handles", "--backend", "cuda"]
    processes = visits.record(tmp_path, profile, command)
    contexts = sum(process.count("cuCtxCreate") for process in processes)
    assert all(process.count("cuInit") == 1 for process in processes)
    bound = [process.env for process in processes if process.env]
    assert {env["CUDA_DEVICE_MAX_CONNECTIONS"] for env in bound} == {"1"}

    plan = tmp_path / "plan"
    plan.write_text(visits.plan(processes, {env["CUDA_VISIBLE_DEVICES"]: 0 for env in bound}))
    again = repeat(tmp_path, plan, "healthy-single")
    assert again.returncode == 0, again.stderr
    assert sum(line.startswith("call cuCtxCreate") for line in plan.read_text().splitlines()) == contexts

    refused = repeat(tmp_path, plan, "error-ipc-open")
    assert refused.returncode == 1
    assert "cuIpcOpenMemHandle_v2 returned" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1, "the calls behind the first failure are not made"


@pytest.mark.full
def test_the_floor_repeats_kernels_on_two_gpus(tmp_path: Path) -> None:
    profile = tmp_path / "two.yaml"
    profile.write_text(
        "{description: two, extends: healthy-cuda,"
        " devices: [{backend: cuda, name: H200, memory: 139 GiB, count: 2}]}"
    )
    processes = visits.record(tmp_path, profile, ["check", "ipc-kernels", "--backend", "cuda"])
    uuids = dict.fromkeys(
        word for each in processes for word in each.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    )
    plan = tmp_path / "plan"
    plan.write_text(
        visits.plan(processes, {uuid: place for place, uuid in enumerate(sorted(filter(None, uuids)))})
    )
    again = repeat(tmp_path, plan, str(profile))
    assert again.returncode == 0, again.stderr
    assert plan.read_text().count("call cuLaunchKernel 0") > 100
    assert not re.search(r"(?m)(^| )/", plan.read_text()), "a plan is of any machine"


def test_address_is_that_of_the_mapping_that_lies_there_now() -> None:
    """A mapping whose context ended had no size, so addresses in a later one around it were taken for its
    own: on two H200s a kernel met an illegal address."""
    handle = ["x" + f"{number:02x}" * visits.HANDLE_BYTES for number in (1, 2)]
    calls = [
        ("cuIpcOpenMemHandle_v2", f"{0x9000}/{0x100}", handle[0], "1"),
        ("cuCtxDestroy_v2", "77"),
        ("cuIpcOpenMemHandle_v2", f"{0x8000}/{0x2000}", handle[1], "1"),
        ("cuMemcpyDtoH_v2", "5", str(0x9080), "16"),
        ("cuLaunchKernel", "78", *"1111110", "0", f"p{0x9080},1,{0x8010},0,0,0,0", "0"),
    ]
    recorded = [visits.RecordedCall(symbol, 0, 0.0, 0.0, words) for symbol, *words in calls]
    links = visits.links_between([visits.Recorded({}, recorded, 1.0)])
    writer = visits.Writer(0, links)
    *_, copy, launch = [line for place, call in enumerate(recorded) for line in writer.call(place, call)]
    assert copy == "call cuMemcpyDtoH_v2 0 b $2+4224 16"
    assert launch.split()[-2] == "p$2+4224,1,$2+16,0,0,0,0"


def test_address_in_no_recorded_memory_is_an_error() -> None:
    call = visits.RecordedCall("cuMemsetD8_v2", 0, 0.0, 0.0, [str(0x9080), "1", "16"])
    with pytest.raises(SystemExit, match="cuMemsetD8_v2 succeeded with 0x9080, in no memory"):
        list(visits.Writer(0, visits.Links(groups=[0])).call(0, call))


def test_process_that_keeps_a_gpu_busy_runs_until_it_is_ended(tmp_path: Path) -> None:
    env = {**os.environ, **prepare("healthy-single", tmp_path).env}
    program = [sys.executable, Path(prolog_cost.__file__).with_name("busy_gpu.py")]
    with subprocess.Popen([*program, "1"], env=env, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout
        assert busy.stdout.readline() == "busy\n"
        assert busy.poll() is None
        busy.kill()
    none = {**env, "CUDA_VISIBLE_DEVICES": ""}
    refused = subprocess.run(program, env=none, capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, refused.stderr) == (1, "busy_gpu: cuInit returned CUDA_ERROR_NO_DEVICE\n")


def repeat(directory: Path, plan: Path, profile: str) -> subprocess.CompletedProcess[str]:
    state = directory / f"state-{Path(profile).stem}"
    state.mkdir()
    floor = prolog_cost.build_floor(directory, "visits_floor")
    env = {**os.environ, **prepare(profile, state).env}
    return subprocess.run(
        [floor, plan, KERNELS], env=env, capture_output=True, text=True, check=False, timeout=60
    )
