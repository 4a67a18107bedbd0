"""docs/acceptance.md, executed line by line: on a simulated node, and over a stand-in for ssh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command

PAGE = Path(__file__).parent.parent.parent / "docs" / "acceptance.md"


DOCTOR = f"""#!/bin/bash
# What the page calls gpuipc-doctor: it looks at a simulated node, in a small share of its memory.
doctor="{sys.executable} -m gpuipc_doctor.cli.main"
simulated="--simulate healthy-cuda"
case "$1 $2" in
    "config new") $doctor "$@" $simulated && echo "memory: {{most_gib: 0.3}}" >> "$4" ;;
    "fleet check") exec $doctor fleet check --tool "$0" "${{@:3}}" ;;
    # Two repetitions, not ten: eight more would ask the same again, of 23 runs.
    "check --all") exec $doctor "${{@/#10/2}}" $simulated ;;
    *) exec $doctor "$@" ;;
esac
"""

AS_TYPED_S = 1800.0
"""Time limit of a command: `check --all` runs seven times, 140 s of processor time on a simulated node."""


SSH = """#!/bin/bash
# What is said to another node is done here.
while [[ "$1" == -* ]]; do
    case "$1" in -o | -p | -l | -i | -F) shift 2 ;; *) shift ;; esac
done
export SLURMD_NODENAME="$1"
shift
[ "$1" = -- ] && shift
exec sh -c "$*"
"""


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_every_shown_command_is_executed() -> None:
    """Except the prolog's command, which `test_prolog_uses_the_same_file` executes."""
    text = PAGE.read_text()
    assert set(re.findall(r"^```(.+)$", text, re.MULTILINE)) == {"console"}
    typed = [command for command, _ in commands()]
    assert len(typed) >= 11
    said = set(re.findall(r"`(gpuipc-doctor [^`]+)`", text))
    assert said == {"gpuipc-doctor prolog"}


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.timeout(AS_TYPED_S)
def test_every_line_of_the_page(tmp_path: Path) -> None:
    for name, text in (("gpuipc-doctor", DOCTOR), ("ssh", SSH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "COLUMNS": "80"}
    environment.pop("SLURM_JOB_ID", None)
    for command, shown in commands():
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=AS_TYPED_S,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        assert matches(shown, ended.stdout), f"{command}\n{ended.stdout}"

    assert "<!doctype html>" in (tmp_path / "nid0001.html").read_text().lower()


@pytest.fixture(scope="module")
def new_config(tmp_path_factory: pytest.TempPathFactory, doctor: Command) -> str:
    """The file written by `config new` on a node with two GPUs."""
    path = tmp_path_factory.mktemp("new") / "site.yaml"
    assert doctor("config", "new", "--to", str(path), "--simulate", "healthy-cuda").returncode == 0
    return path.read_text()


@pytest.fixture
def site(tmp_path: Path, new_config: str) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(new_config)
    return path


@pytest.mark.cuda
@pytest.mark.hip
def test_config_detects_another_driver(doctor: Command, site: Path) -> None:
    node = "nvidia-460.32.03"
    ended = doctor("check", "driver-init", "known-versions", "--simulate", node, "--config", str(site))
    assert ended.returncode == 12, ended.stdout
    assert "WARN known-versions nvidia-driver is 460.32.03".replace(" ", "") in re.sub(
        r"\s", "", ended.stdout
    )


@pytest.mark.cuda
def test_prolog_uses_the_same_file(doctor: Command, site: Path) -> None:
    policy = "on_fail: drain, on_error: log, on_budget: log, on_unkillable: drain"
    with site.open("a") as file:
        file.write(f"prolog: {{{policy}, simulate: healthy-cuda, state_dir: state, log: log.jsonl}}\n")
    ended = doctor("prolog", "--config", str(site))
    assert ended.returncode == 0, ended
    assert "PASS 4 checks on cuda:0-1" in ended.stdout + ended.stderr  # the site expects peers


def matches(shown: list[str], printed: str) -> bool:
    """Whether ``printed`` matches: ``…`` alone matches any lines, at a line's end the rest of the line."""
    parts = [r"(?:.*\n)*?" if line == "…" else f"{re.escape(line).replace('…', '.*')}\n" for line in shown]
    if shown and shown[-1].endswith("…"):
        parts.append(r"(?:.*\n)*")
    return re.fullmatch("".join(parts), printed) is not None
