"""Shared options: place of a simulated node's memory, and invalid choices."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli import options, stdio
from gpuipc_doctor.cli.main import cli


@pytest.mark.parametrize(("free_bytes", "in_shared_memory"), [(64 << 20, False), (2 << 30, True)])
def test_simulated_node_is_in_shared_memory_if_there_is_room(
    free_bytes: int, in_shared_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(options, "SHARED_MEMORY", shared)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    space = [SimpleNamespace(f_bavail=free, f_frsize=1, f_files=0) for free in (4 << 30, free_bytes)]
    monkeypatch.setattr(os, "statvfs", lambda place: space[place == shared])
    with options.node("healthy-single") as node:
        state = Path(node.env["GPUIPC_SIM_NODE"]).parent
        assert state.parent == (shared if in_shared_memory else temporary)
    assert not state.exists()


def test_invalid_choice_suggests_the_nearest_one() -> None:
    wrong = CliRunner().invoke(cli, ["check", "--all", "--backend", "cudaa"])
    assert wrong.exit_code == 2
    assert "'cudaa' is not one of 'auto', 'cuda', 'hip', 'ze', 'all'; did you mean 'cuda'?" in wrong.output
    far = CliRunner().invoke(cli, ["check", "--all", "--backend", "xyz"])
    assert "'xyz' is not one of 'auto', 'cuda', 'hip', 'ze', 'all'.\n" in far.output


@pytest.mark.parametrize(
    ("command", "parameter"),
    [
        ("report", "FILE"),
        ("check --all --config", "--config"),
        ("check --all --output", "--output"),
        ("check --all --plots", "--plots"),
        ("check --all --keep-logs", "--keep-logs"),
        ("check --all --mpi-lib", "--mpi-lib"),
        ("diagnose /dev/null --inventory", "--inventory"),
        ("config validate", "FILE..."),
        ("known-issues lint", "[FILE]..."),
        ("fleet report", "DIR"),
    ],
)
def test_empty_name_is_refused(command: str, parameter: str) -> None:
    """An unset variable leaves an empty name."""
    ended = CliRunner().invoke(cli, [*command.split(), ""])
    assert ended.exit_code == 2
    (line,) = [line for line in ended.output.splitlines() if "empty" in line]
    assert line == f"Error: Invalid value for '{parameter}': the name is empty"


@pytest.mark.parametrize(
    ("variables", "has"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, False),
    ],
)
def test_colours_are_for_terminals_that_have_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], has: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert stdio.has_color() is has


def test_nodes_are_completed_from_reports_else_from_the_hosts_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = click.Command("fleet")
    ctx = click.Context(command)
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "127.0.0.1 localhost\n10.0.0.1 gpu01 gpu01.site # first\n10.0.0.2 gpu02\n::1 ip6-loopback\n"
    )
    monkeypatch.setattr(options, "HOSTS", hosts)
    param = click.Option(["-w"])
    assert options.complete_nodes(ctx, param, "") == ["gpu01", "gpu01.site", "gpu02"]
    assert options.complete_nodes(ctx, param, "gpu01,gpu02") == ["gpu01,gpu02"]
    ctx.params["into"] = tmp_path / "after"
    assert options.complete_nodes(ctx, param, "gpu02") == ["gpu02"]  # no such directory yet
    (tmp_path / "after").mkdir()
    (tmp_path / "after/nid0001.json").touch()
    assert options.complete_nodes(ctx, param, "") == ["nid0001"]
    monkeypatch.setattr(options, "HOSTS", tmp_path / "none")
    ctx.params.clear()
    assert options.complete_nodes(ctx, param, "") == []
