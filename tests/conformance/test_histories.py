"""The simulated CUDA driver answers 50 recorded histories as an H100 did, codes of refusals included.

`histories/h100.json` holds the operations themselves, so that a changed generator leaves them as they were:
``[do, by, on, makes, of, nbytes, stamp]``, zeros at the end left out; with an answer beside it where the
driver refused one.
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

HISTORIES = Path(__file__).parent / "histories"
RECORDED = HISTORIES / "h100.json"


def replayed(backend: str, env: Mapping[str, str], enter: Sequence[str] = ()) -> Any:
    """What the driver there answers."""
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
