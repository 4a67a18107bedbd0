"""The check that CONTRIBUTING.md asks a stranger to type in works, and says what is promised there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def checked(directory: Path, profile: str) -> subprocess.CompletedProcess[str]:
    config = directory / "site.yaml"
    config.write_text(f"checks_dirs: [{directory}]\n")
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", "check", "ipc-write-back"]
    command += ["--config", str(config), "--simulate", profile, "--deadline", "2"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    (tmp_path / "ipc_write_back.py").write_text(code)
    return tmp_path


@pytest.mark.cuda
@pytest.mark.hip
def test_the_example_passes_on_a_healthy_node(directory: Path) -> None:
    ended = checked(directory, "healthy-both")
    assert re.search(r"ipc-write-back +PASS +PASS +PASS +PASS", ended.stdout), ended
    assert ended.returncode == 0


@pytest.mark.cuda
def test_the_example_names_the_call_and_the_round_of_a_hang(directory: Path) -> None:
    ended = checked(directory, "hang-ipc-open")
    assert "cuIpcOpenMemHandle #2 (round 1) hung" in ended.stdout, ended
    assert ended.returncode == 12
