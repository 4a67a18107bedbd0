"""Comparing two fleet runs: nodes that got worse, better or lost, and changed facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from jsonschema import Draft202012Validator

from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.fleet import changes, changes_content, directory, summary
from gpuipc_doctor.fleet.summary import Figure, FindingSummary, NodeReport, State
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.report.check_changes import ChangeKind
from tests import golden, schemas
from tests.sample_fleets import a_fleet, fleets, named, timed, upgraded
from tests.sample_reports import PROPERTY

SCHEMA = schemas.beside(changes_content, "changes")


def test_golden_files() -> None:
    found = changes.compare(timed(a_fleet()), timed(upgraded(), 2.9))
    golden.check("fleet/changes-80.txt", changes_content.screen(found))
    golden.check("fleet/changes.md", changes_content.ticket(found))
    golden.check("fleet/changes.json", changes_content.dumps(found))


def test_verdict_stays_in_one_line_if_the_screen_is_wide_enough() -> None:
    """It is the subject of the nightly mail (docs/fleet.md); the rest keeps to 120 columns."""
    found = changes.compare(timed(a_fleet()), timed(upgraded(), 2.9))
    first, *rest = changes_content.screen(found, width=1000).splitlines()
    whole = " ".join(changes_content.screen(found).partition("\n\n")[0].split())
    assert (first, len(first) > 120) == (whole, True)
    assert max(map(len, rest)) <= 120


def test_nodes_that_got_worse_better_or_lost() -> None:
    found = changes.compare(a_fleet(), upgraded())
    told = {name: nodes for name, nodes in found.nodes.items() if name != "same"}
    assert {name: nodes for name, nodes in told.items() if nodes} == {
        "worse": ("nid0003", "nid0004"),
        "better": ("nid0035",),
        "lost": ("nid0020", "nid0021"),
        "new": ("nid0037", "nid0041"),
    }
    assert found.exit_code is Exit.FAIL
    [worse] = [move for move in found.turned(ChangeKind.WORSE) if move.after is Status.FAIL]
    assert (worse.check, worse.nodes) == ("ipc-reopen", ("nid0003", "nid0004"))
    [still] = [move for move in found.turned(ChangeKind.SAME) if move.after is Status.FAIL]
    assert still.nodes == ("nid0036",)
    [_, driver] = found.facts
    assert [len(row.nodes) for row in driver.changes] == [29, 2, 1, 1, 1, 1]


def one(status: Status | None, key: str = "", **more: object) -> NodeReport:
    checks = {"other": "PASS"} | ({"ipc-stale": status.value} if status else {})
    told = FindingSummary("ipc-stale", key, status.value, (key,), "", key, "") if status and key else None
    return NodeReport(
        "n1",
        State.REPORTED,
        checks=checks,
        findings=(told,) if told else (),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("before", "after", "turn", "code"),
    [
        (one(Status.PASS), one(Status.PASS), "same", Exit.OK),
        (one(Status.PASS), one(Status.FAIL, "x"), "worse", Exit.FAIL),
        (one(Status.PASS), one(Status.WARN, "x"), "worse", Exit.WARN),
        (one(Status.FAIL, "x"), one(Status.PASS), "better", Exit.OK),
        (one(Status.FAIL, "x"), one(Status.FAIL, "x"), "same", Exit.OK),
        (one(Status.FAIL, "x"), one(Status.FAIL, "y"), "fails otherwise", Exit.OK),
        (one(Status.PASS), one(Status.ERROR, "x"), "no longer tested", Exit.ERROR),
        (one(Status.PASS), one(None), "no longer tested", Exit.ERROR),
        (one(None), one(Status.PASS), "newly tested", Exit.OK),
        (one(Status.PASS), summary.silent("n1", State.KILLED, ""), "lost", Exit.NOTHING),
        (summary.silent("n1", State.KILLED, ""), one(Status.PASS), "new", Exit.NOTHING),
        (summary.silent("n1", State.KILLED, ""), one(Status.FAIL, "x"), "new", Exit.FAIL),
    ],
)
def test_changes_of_a_node(before: NodeReport, after: NodeReport, turn: str, code: Exit) -> None:
    found = changes.compare([before], [after])
    assert [name for name, nodes in found.nodes.items() if nodes] == [turn]
    assert found.exit_code is code


def test_lost_node_is_an_error() -> None:
    other = named(one(Status.PASS), "n2")
    assert changes.compare([one(Status.PASS), other], [other]).exit_code is Exit.ERROR


def test_only_one_node_that_got_slower_stands_out() -> None:
    def at(values: list[float]) -> list[NodeReport]:
        figures = [{"x: y": Figure(value, "µs", more_is_better=False)} for value in values]
        return [named(one(Status.PASS), f"n{n}", figures=each) for n, each in enumerate(figures)]

    before, after = [2.0, 2.1, 2.0, 1.9, 2.0, 2.0], [2.0, 2.1, 2.0, 1.9, 2.0, 9.0]
    found = changes.compare(at(before), at(after))
    assert ([s.node for s in found.slow], found.figures, found.exit_code) == (["n5"], (), Exit.WARN)
    assert changes.compare(at(after), at(after)).exit_code is Exit.OK


def test_facts_unique_to_each_node_are_no_change() -> None:
    def booted(day: int) -> list[NodeReport]:
        facts = [{"boot": (f"{day}-{n}",), "kernel": (str(day),)} for n in range(4)]
        return [named(one(Status.PASS), f"n{n}", facts=each) for n, each in enumerate(facts)]

    assert [shift.name for shift in changes.compare(booted(1), booted(2)).facts] == ["kernel"]


def test_schema_is_valid_and_has_every_value() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schemas.check(changes_content, "changes")
    definitions = SCHEMA["$defs"]
    assert definitions["State"]["enum"] == sorted(state.value for state in State)
    assert definitions["ChangeKind"]["enum"] == sorted(turn.value for turn in ChangeKind)
    assert set(definitions["Sets"]["properties"]) == {"lost", "new", *(turn.value for turn in ChangeKind)}
    assert SCHEMA["properties"]["schema"]["enum"] == [changes_content.KIND.name]
    assert set(SCHEMA["properties"]["exit_code"]["enum"]) == set(changes.MEANINGS) - {1, 2}


@PROPERTY
@given(fleets, fleets)
def test_any_two_fleets_can_be_compared(before: list[NodeReport], after: list[NodeReport]) -> None:
    found = changes.compare(before, after)
    Draft202012Validator(SCHEMA).validate(json.loads(changes_content.dumps(found)))
    told = [node for nodes in found.nodes.values() for node in nodes]
    answered = {report.node for report in (*before, *after) if report.state is State.REPORTED}
    assert sorted(told) == sorted(answered)
    for text in (changes_content.screen(found), changes_content.ticket(found)):
        assert "\x1b" not in text


@PROPERTY
@given(fleets)
def test_fleet_equals_itself(reports: list[NodeReport]) -> None:
    found = changes.compare(reports, reports)
    assert found.exit_code in (Exit.OK, Exit.NOTHING)
    assert (found.facts, found.figures, found.slow, found.lost, found.new) == ((),) * 5
    assert {move.turn for move in found.findings} <= {ChangeKind.SAME}


def test_command(tmp_path: Path) -> None:
    places = [tmp_path / "before", tmp_path / "after"]
    for place, reports in zip(places, (a_fleet(), upgraded()), strict=True):
        place.mkdir()
        for report in reports:
            directory.save(place, report)
    words = ["fleet", "compare", *map(str, places)]
    sets = CliRunner().invoke(cli, [*words, "--format", "nodeset"])
    assert (sets.exit_code, sets.output.splitlines()[2]) == (12, "worse: nid[0003-0004]")
    assert "| finding |" in CliRunner().invoke(cli, [*words, "--format", "markdown"]).output
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)["exit_code"] == 12
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(cli, ["fleet", "compare", str(places[0]), str(tmp_path / "empty")])
    assert (refused.exit_code, "has no node reports" in refused.output) == (2, True)
