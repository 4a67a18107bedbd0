"""Successive runs over a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import directory, summary
from gpuipc_doctor.fleet.history import histories, screen
from gpuipc_doctor.fleet.summary import NodeReport, State
from tests.sample_fleets import BAD, HEALTHY, named


def run(marks: str, day: int) -> dict[str, NodeReport]:
    """Reports of n1, n2, …, one per letter: p passed, F failed, E silent, - not asked."""
    began = f"2026-11-{day:02}T08:00:00+00:00"
    kinds = {
        "p": lambda node: named(HEALTHY, node, started=began),
        "F": lambda node: named(BAD, node, started=began),
        "E": lambda node: summary.silent(node, State.DEADLINE, "no answer"),
    }
    names = [f"n{number}" for number in range(1, len(marks) + 1)]
    return {node: kinds[mark](node) for node, mark in zip(names, marks, strict=True) if mark != "-"}


RUNS = [run("ppFpp", 1), run("pFFpE", 2), run("ppF-p", 3), run("pFFpE", 4)]


def test_each_node_has_marks_failures_and_last_pass() -> None:
    found = {history.node: history for history in histories(RUNS)}
    assert {node: one.marks for node, one in found.items()} == {
        "n1": "pppp", "n2": "pFpF", "n3": "FFFF", "n4": "pp-p", "n5": "pEpE",
    }  # fmt: skip
    assert [found[node].failures for node in ("n1", "n2", "n3", "n5")] == [0, 2, 4, 0]
    assert [found[node].flaps for node in ("n1", "n2", "n3", "n4", "n5")] == [False, True, False, False, True]
    assert found["n2"].last_passed.startswith("2026-11-03")
    assert found["n3"].last_passed == ""
    assert "nvidia-driver 450.102.04 -> 460.32.03" in found["n2"].changed
    assert [history.node for history in histories(RUNS)] == ["n3", "n2", "n5", "n1", "n4"]


def test_error_counters_that_rise_are_told_and_steps_back_are_not() -> None:
    name, other = "cuda:0, NVLink 3: NVLink replays", "cuda:1: PCIe replays"
    steps = [None, {other: 9}, {name: 5, other: 2}, {name: 125, other: 2}, None, {name: 125}]
    runs = [
        {"n1": named(HEALTHY, "n1", started=f"2026-11-{day:02}T08:00:00+00:00", errors=errors)}
        for day, errors in enumerate(steps, 1)
    ]
    (found,) = histories(runs)
    assert found.risen == ("cuda:0, NVLink 3: 125 more NVLink replays",)
    lines = screen(runs, ["first", "last"]).splitlines()
    assert lines[1].endswith("; in these runs: cuda:0, NVLink 3: 125 more NVLink replays")
    assert lines[2] == "1 node passed every time"


@pytest.mark.parametrize("backwards", [False, True])
def test_screen_is_in_order_of_time(tmp_path: Path, backwards: bool) -> None:
    for place, reports in enumerate(RUNS):
        (tmp_path / str(place)).mkdir()
        for report in reports.values():
            directory.save(tmp_path / str(place), report)
    earlier = [
        word
        for place in (2, 0, 1)[:: -1 if backwards else 1]
        for word in ("--history", str(tmp_path / str(place)))
    ]
    ended = CliRunner().invoke(cli, ["fleet", "report", *earlier, str(tmp_path / "3")])
    assert ended.exit_code == 12, ended.output
    lines = ended.stdout.splitlines()
    assert lines[0] == f"4 runs, {tmp_path}/0 to {tmp_path}/3: 5 nodes"
    assert lines[1] == "n3 FFFF never passed, failed 4 of 4 times"
    assert lines[2].startswith(
        "n2 pFpF last passed 2026-11-03 08:00, failed 2 of 4 times, flaps; since then: "
    )
    assert lines[-1] == "1 node passed every time; 1 node passed, but not in every run: n4"


def test_other_formats_of_the_history_are_refused(tmp_path: Path) -> None:
    words = ["fleet", "report", "--history", str(tmp_path), str(tmp_path), "--json"]
    assert CliRunner().invoke(cli, words).exit_code == 2
