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


def replayed(backend: str, env: Mapping[str, str], enter: Sequence[str] = ()) -> Any:
    """The driver's answers."""
    command = [*enter, sys.executable, "-m", "tests.conformance.histories.replay", str(RECORDED), backend]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def simulated(backend: str, directory: Path) -> Any:
    return replayed(backend, prepare("healthy-single", directory).env)


@pytest.mark.cuda
def test_simulated_cuda_driver_answers_as_the_recorded_one(tmp_path: Path) -> None:
    answers = simulated("cuda", tmp_path)
    assert answers["histories"] == 50
    assert len(answers["refusals"]) >= 400
    assert answers["differences"] == []


@pytest.mark.hip
def test_simulated_hip_driver_does_what_is_legal_there(tmp_path: Path) -> None:
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
