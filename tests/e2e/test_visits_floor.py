"""The C floor of `benchmarks/check_cost.py` makes the calls of the run that was recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import prolog_cost, visits
from gpuipc_doctor.simulator.node import prepare

pytestmark = pytest.mark.cuda


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
    assert "otherwise than in the run: cuIpcOpenMemHandle" in refused.stdout


def repeat(directory: Path, plan: Path, profile: str) -> subprocess.CompletedProcess[str]:
    state = directory / profile
    state.mkdir()
    floor = prolog_cost.build_floor(directory, "visits_floor")
    env = {**os.environ, **prepare(profile, state).env}
    return subprocess.run([floor, plan], env=env, capture_output=True, text=True, check=False, timeout=60)
