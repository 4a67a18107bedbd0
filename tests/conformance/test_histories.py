"""Simulated drivers and AMD's own runtime answer 50 recorded histories like an H100, where they are legal.

`histories/h100.json` holds the operations, so that changes of the generator do not change them: ``[do, by,
on, makes, of, nbytes, stamp]`` without trailing zeros, and the answer if the driver refused one.
`histories/rocm-5.json` has the answers of ROCm 5.2.3 over the emulated kernel driver: it opens a process's
own handle, which later releases and the simulated driver refuse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.simulator.node import prepare
from tests.kfd import emulated

HISTORIES = Path(__file__).parent / "histories"
RECORDED, OF_AMD = HISTORIES / "h100.json", HISTORIES / "rocm-5.json"


def replayed(backend: str, env: Mapping[str, str], enter: Sequence[str] = (), every: int = 1) -> Any:
    """The driver's answers to one history of so many."""
    program = [sys.executable, "-m", "tests.conformance.histories.replay"]
    command = [*enter, *program, str(RECORDED), backend, str(every)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def simulated(backend: str, directory: Path, every: int = 1) -> Any:
    return replayed(backend, prepare("healthy-single", directory).env, every=every)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("every", "refusals"), [(5, 80), pytest.param(1, 400, marks=pytest.mark.full, id="all")]
)
def test_simulated_cuda_driver_answers_as_the_recorded_one(tmp_path: Path, every: int, refusals: int) -> None:
    answers = simulated("cuda", tmp_path, every)
    assert answers["histories"] == 50 / every
    assert len(answers["refusals"]) >= refusals
    assert answers["differences"] == []


@pytest.mark.hip
def test_simulated_hip_driver_does_what_is_legal_there(tmp_path: Path) -> None:
    answers = simulated("hip", tmp_path, every=5)
    assert answers["operations"] > 300
    assert answers["differences"] == []


@pytest.mark.full
@pytest.mark.hip
def test_simulated_hip_driver_does_all_that_is_legal_there(tmp_path: Path) -> None:
    answers = simulated("hip", tmp_path)
    recorded = json.loads(OF_AMD.read_text())
    assert answers["operations"] >= recorded["operations"]  # HIP also has physical memory and pools
    assert answers["differences"] == recorded["differences"] == []
    assert [answer for *_, answer in answers["refusals"]] == ["hipErrorInvalidContext"] * recorded[
        "own_handles"
    ]


@pytest.mark.full
@pytest.mark.skipif(not emulated.runtimes(), reason="needs Debian's libamdhip64-5")
@pytest.mark.kfd
@pytest.mark.hip
@pytest.mark.xdist_group("kfd-rocm-5")
def test_amds_runtime_answers_as_recorded() -> None:
    (runtime,) = [runtime for runtime in emulated.chosen_runtimes() if runtime.root == Path("/")]
    with emulated.node(runtime, gpus=1) as node:
        answers = replayed("hip", node.env, node.enter)
    recorded = json.loads(OF_AMD.read_text())
    assert answers["operations"] == recorded["operations"]
    assert answers["differences"] == recorded["differences"]
    assert [answer for *_, answer in answers["refusals"]] == [""] * recorded["own_handles"]
