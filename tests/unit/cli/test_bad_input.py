"""Usual mistakes on the command line and in files: each gets one line: what, where, what to type."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from gpuipc_doctor.cli import main, wrong_usage

HERE = Path(__file__).with_name("bad_input.txt")
TEN = [
    "check",
    "compare",
    "config",
    "diagnose",
    "explain",
    "fleet",
    "job",
    "known-issues",
    "memory",
    "report",
]


def rows() -> list[tuple[str, int, list[str]]]:
    """(command line, exit code, what its line must have), from lines ``command | code | part | part``."""
    lines = [line for line in HERE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    split = [[part.strip() for part in line.split(" | ")] for line in lines]
    return [(line, int(code), parts) for line, code, *parts in split]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the rows name."""
    at = tmp_path_factory.mktemp("bad-input")
    good = (Path(__file__).parents[2] / "fixtures/reports/nvidia-460.32.03.json").read_bytes()
    old = good.replace(b"gpuipc-doctor/report/2", b"gpuipc-doctor/report/1")
    files = {"good": good, "old": old, "cut": good[:500], "empty": b"", "text": b"hello\n", "other": b"{}"}
    for name, content in files.items():
        (at / f"{name}.json").write_bytes(content)
    (at / "noise.bin").write_bytes(bytes(range(256)) * 9)
    gpus = {"site": "{count: 8}", "typo": "{cuont: 8}", "kind": "{count: eight}", "cut": "[1"}
    for name, text in gpus.items():
        (at / f"{name}.yaml").write_text(f"gpus: {text}\n")
    (at / "bare.yaml").write_text("id: x\n")
    (at / "shm.yaml").write_text("shared_memory: 64\n")
    (at / "driver.yaml").write_text("versions: {nvidia-driver: 580.x}\n")
    (at / "emptydir").mkdir()
    (at / "fleetdir").mkdir()
    (at / "fleetdir/n1.json").write_bytes(good)
    return at


@pytest.mark.parametrize(("line", "code", "parts"), rows(), ids=[line for line, _, _ in rows()])
def test_a_usual_mistake_gets_one_line(
    place: Path,
    line: str,
    code: int,
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["gpuipc-doctor", *shlex.split(line)])
    monkeypatch.setattr(main.stdio, "open_standard", lambda: None)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    try:
        ended = main._run()
    except SystemExit as end:
        ended = int(end.code or 0)
    printed = capsys.readouterr()
    said = printed.err.splitlines() or printed.out.splitlines()
    assert (ended, len(said)) == (code, 1), printed.err + printed.out
    assert said[0].startswith("gpuipc-doctor")
    assert [part for part in parts if part not in said[0]] == [], said[0]


def test_ten_mistakes_of_each_of_the_ten_commonest_commands() -> None:
    found = Counter(line.split()[0] for line, _, _ in rows())
    assert {name: found[name] for name in TEN if found[name] < 10} == {}
    assert all(len(parts) >= 2 for _, _, parts in rows())


@pytest.mark.parametrize(("name", "typed"), [row for row in wrong_usage.MEANT if row[1].startswith("-")])
def test_no_row_is_of_an_option_that_the_command_has(name: str, typed: str) -> None:
    command: click.Command | None = main.cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command
    assert typed not in [option for each in command.params for option in each.opts]
