"""Use of a site's topology file for ssh gateways."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from ClusterShell.Task import Task

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import ssh_gateways
from gpuipc_doctor.fleet.ask import NOT_ASKED, LaunchOptions, Via
from gpuipc_doctor.fleet.summary import NodeReport, State

HERE = socket.gethostname().partition(".")[0]


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "topology.conf"
    monkeypatch.setattr(Task, "TOPOLOGY_CONFIGS", [str(tmp_path / "none"), str(path)])
    return path


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        (f"[routes]\n{HERE}: gateway\ngateway: n[1-3]\n", True),
        ("[routes]\nelsewhere: gateway\ngateway: n[1-3]\n", False),
        (None, False),
    ],
)
def test_topology_is_used_if_this_host_is_its_root(topology: Path, text: str | None, is_ours: bool) -> None:
    if text:
        topology.write_text(text)
    assert ssh_gateways.is_laid_out() is is_ours


@pytest.mark.parametrize("text", ["routes", "[routes]\nx", f"[routes]\n{HERE}: n[1-\n", "\0", "\udcff"])
def test_unreadable_topology_is_one_line(topology: Path, tmp_path: Path, text: str) -> None:
    topology.write_bytes(text.encode(errors="surrogateescape"))
    command = ["fleet", "check", "--via", "ssh", "-w", "n1", "--into", str(tmp_path / "out")]
    ended = CliRunner().invoke(cli, command)
    assert (ended.exit_code, f"Error: {topology}: " in ended.output) == (2, True), ended.output
    assert len(ended.output.rpartition("Error: ")[2].splitlines()) == 1


def test_node_stopped_by_the_budget_reports_its_own_time(
    topology: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 4711\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reasons: dict[str, tuple[State, str]] = {}

    class Recorder:
        def started(self, name: str) -> None: ...

        def finished(self, report: NodeReport, full: bytes) -> None:
            reasons[report.node] = report.state, report.reason

    ssh_gateways.ask(["n1", "n2"], LaunchOptions(Via.SSH, ("true",), fanout=1, budget_s=0.4), Recorder())
    asked, left = sorted(reasons.values(), key=lambda one: one[0] is State.NO_ANSWER)  # in any order
    assert asked == (State.DEADLINE, "no answer within 0.4 s")
    assert left == (State.NO_ANSWER, NOT_ASKED)
