"""Failures of a node, or of the command, in the middle of `fleet check`: by Slurm and over ssh."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuipc_doctor.fleet import summary
from gpuipc_doctor.fleet.directory import SUMMARY
from tests.sample_fleets import HEALTHY, named
from tests.slurm import kills
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_fleet import DOCTOR, Slurm, fleet, told, tool
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.slurm, pytest.mark.cuda]

NEWER = "import gpuipc_doctor.fleet.summary as s; s.SCHEMA = 'gpuipc-doctor/node/2'"
"""Code that turns this version into one that sends other summaries."""

OLDER = """import gpuipc_doctor.cli.check as check
check.command.params = [one for one in check.command.params if one.name != "summary"]
"""
"""Code that turns this version into one without summaries."""


def version(directory: Path, name: str, change: str) -> Path:
    """The tool in another version, made by ``change``."""
    path = directory / name
    path.write_text(f"{change}\nfrom gpuipc_doctor.__main__ import main\nmain()\n")
    return path


@pytest.fixture(scope="module")
def three_nodes(shared_slurm: Slurm) -> Cluster:
    return shared_slurm(nodes=3)


@pytest.fixture
def three(three_nodes: Cluster) -> Iterator[Cluster]:
    """Three nodes, which are idle again at the end of the test."""
    yield three_nodes
    three_nodes.rest()


def test_other_version_on_a_node_is_reported_as_such(three: Cluster, tmp_path: Path) -> None:
    others = {"n2": version(tmp_path, "newer.py", NEWER), "n3": version(tmp_path, "older.py", OLDER)}
    special = "\n    ".join(
        f'{node}) exec {sys.executable} {path} "$@" --simulate healthy-single ;;'
        for node, path in others.items()
    )
    command = fleet(tmp_path / "out", "--tool", str(tool(tmp_path, special)), "--partition", "test")
    ended = three.run(*command, timeout_s=LIMIT_S)
    assert ended.returncode == 11, ended
    found = {
        missing["nodes"]: (missing["state"], missing["reason"])
        for missing in told(tmp_path / "out")["silent"]
    }  # type: ignore[attr-defined]
    assert {state for state, _ in found.values()} == {"other version of the tool"}
    assert ("node/2" in found["n2"][1], "--summary" in found["n3"][1]) == (True, True)
    kills.check("a newer tool on n2, an older on n3", "before the run", tmp_path / "out", ended.returncode)


@pytest.mark.parametrize(
    ("profile", "call"),
    [("hang-ipc-open", "cuIpcOpenMemHandle"), pytest.param("hang-init", "cuInit", marks=pytest.mark.full)],
)
def test_hanging_driver_of_a_node_is_that_nodes_failure(
    three: Cluster, tmp_path: Path, profile: str, call: str
) -> None:
    path = tool(tmp_path, f"n2) profile={profile} ;;")
    command = [*fleet(tmp_path / "out", "--tool", str(path), "-w", "n[1-2]"), "--deadline", "3"]
    command[command.index("ipc-reopen")] = "ipc-handles"
    ended = three.run(*command, timeout_s=LIMIT_S)
    assert ended.returncode == 12, ended
    assert told(tmp_path / "out")["nodes"] == {"pass": "n1", "fail": "n2", "unknown": ""}
    assert f"{call}" in ended.stdout
    assert "hung" in ended.stdout
    if profile == "hang-ipc-open":
        kills.check("the driver of n2", "hangs in a call", tmp_path / "out", ended.returncode)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port of a server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def over_ssh(tmp_path: Path, sshd: list[str], first: str, *options: str) -> list[str]:
    """The command for n1 to n3, whose tool runs a line of shell before it answers."""
    (tmp_path / "answer").write_bytes(summary.dumps(named(HEALTHY, "")))
    path = tmp_path / "gpuipc-doctor"
    path.write_text(f"#!/bin/sh\n{first}\nexec cat {tmp_path}/answer\n")
    path.chmod(0o755)
    options = (*options, *(word for option in sshd for word in ("--launch-option", option)))
    into = ("--into", str(tmp_path / "out"))
    return [*DOCTOR, "fleet", "check", "--via", "ssh", "-w", "n[1-3]", "--tool", str(path), *into, *options]


def with_nodes(tmp_path: Path) -> dict[str, str]:
    """The environment in which a wrapper of `ssh` sets the name of the requested node."""
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_nodes_that_never_answer_over_ssh_cost_only_their_own_answers(
    sshd: list[str], tmp_path: Path, silent_port: int
) -> None:
    """One node accepts the connection and sends nothing; on the other the login hangs."""
    wrapper = tmp_path / "ssh"
    lines = wrapper.read_text().splitlines()
    lines.insert(-1, f'[ "$FLEET_NODE" != n2 ] || set -- -p {silent_port} "$@"')
    wrapper.write_text("\n".join(lines) + "\n")
    first = '[ "$FLEET_NODE" != n3 ] || exec sleep 4711'
    command = over_ssh(tmp_path, sshd, first, "--patience", "3", "--deadline", "15")
    ended = subprocess.run(command, env=with_nodes(tmp_path), capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 11, ended
    found = {missing["nodes"]: missing["state"] for missing in told(tmp_path / "out")["silent"]}  # type: ignore[attr-defined]
    assert found == {"n2": "not reachable", "n3": "deadline"}
    kills.check("sshd of n2 says nothing; the login on n3 hangs", "from the start", tmp_path / "out", 11)


def test_tool_killed_on_a_node_over_ssh_costs_only_its_own_answer(sshd: list[str], tmp_path: Path) -> None:
    command = over_ssh(tmp_path, sshd, '[ "$FLEET_NODE" != n2 ] || kill -9 $$')
    ended = subprocess.run(command, env=with_nodes(tmp_path), capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 11, ended
    [silent] = told(tmp_path / "out")["silent"]  # type: ignore[misc]
    assert silent["state"] == "killed"
    kills.check("the tool on n2, by `kill -9`, over ssh", "while it checks", tmp_path / "out", 11)


def test_command_killed_over_ssh_leaves_nothing_running_and_resumes(sshd: list[str], tmp_path: Path) -> None:
    wait = f'echo $$ >> {tmp_path}/pids; [ "$FLEET_NODE" = n1 ] || [ -e {tmp_path}/go ] || exec sleep 4711'
    command = over_ssh(tmp_path, sshd, wait, "--deadline", "6")
    with subprocess.Popen(command, env=with_nodes(tmp_path)) as running:
        until("n1 has answered", (tmp_path / f"out/n1{SUMMARY}").exists)
        until("all have begun", lambda: len((tmp_path / "pids").read_text().split()) == 3)
        running.send_signal(signal.SIGKILL)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until("no tool is left on a node", lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    assert told(tmp_path / "out")["nodes"] == {"pass": "n1", "fail": "", "unknown": ""}
    (tmp_path / "go").touch()
    ended = subprocess.run(
        [*command, "--resume"], env=with_nodes(tmp_path), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended
    kills.check(
        "`fleet check`, by `kill -9`, over ssh; then --resume",
        "one of three has answered",
        tmp_path / "out",
        0,
    )
