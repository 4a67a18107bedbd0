"""The simulated CUDA driver answers 50 recorded histories as an H100 did, codes of refusals included.

`histories/h100.json` holds the operations themselves, so that a changed generator leaves them as they were:
``[do, by, on, makes, of, nbytes, stamp]``, zeros at the end left out; with an answer beside it where the
driver refused one. `histories/record.py` made it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.simulator.node import prepare

RECORDED = Path(__file__).parent / "histories" / "h100.json"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the simulated driver answers, by seed: the operations that were answered otherwise."""
    directory = tmp_path_factory.mktemp("node")
    node = prepare("healthy-single", directory)
    command = [sys.executable, "-m", "tests.conformance.histories.replay", str(RECORDED)]
    done = subprocess.run(command, env={**os.environ, **node.env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.cuda
def test_simulated_driver_answers_as_the_recorded_one(answers: Any) -> None:
    assert answers["histories"] == 50
    assert answers["refusals"] >= 400
    assert answers["differences"] == []
