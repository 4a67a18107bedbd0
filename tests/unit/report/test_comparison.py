"""Two reports compared: which checks count as worse, better, lost and the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpuipc_doctor.model import Device, Exit, Fact, Finding, Status, Tier
from gpuipc_doctor.present.text import columns, sanitise
from gpuipc_doctor.probe_types import Calls, Ending, RoleOutcome
from gpuipc_doctor.report import comparison_content, sentences
from gpuipc_doctor.report.check_changes import ChangeKind
from gpuipc_doctor.report.comparison import DeviceChange, compare
from gpuipc_doctor.report_types import Join, Relation, Report, Result
from tests import golden, schemas
from tests.sample_reports import PROPERTY, REOPEN_ISSUE, gpus, healthy, hung, replaced, reports, seed_002

SCHEMA = schemas.beside(comparison_content, "comparison")
NODE = gpus(2)
PASS, SKIP, WARN, ERROR, FAIL = Status
NO_GPU = {"probes_run": 0, "needs_gpu": False}
"""A run of checks that need no GPU, such as known-versions."""


def ended(status: Status | None) -> Report:
    """A healthy run except for one check with this status; None: not run."""
    base = healthy(NODE)
    others = tuple(r for r in base.results if r.check != "known-versions")
    own = (Result("known-versions", Finding(status, "", "so it is")),) if status else ()
    return replaced(base, results=(*others, *own))


@pytest.mark.parametrize(
    ("before", "after", "turn", "code"),
    [
        (PASS, PASS, ChangeKind.SAME, Exit.OK),
        (PASS, WARN, ChangeKind.WORSE, Exit.WARN),
        (PASS, FAIL, ChangeKind.WORSE, Exit.FAIL),
        (PASS, ERROR, ChangeKind.NO_LONGER_TESTED, Exit.ERROR),
        (PASS, None, ChangeKind.NO_LONGER_TESTED, Exit.ERROR),
        (WARN, FAIL, ChangeKind.WORSE, Exit.FAIL),
        (FAIL, WARN, ChangeKind.BETTER, Exit.OK),
        (FAIL, FAIL, ChangeKind.SAME, Exit.OK),
        (FAIL, SKIP, ChangeKind.NO_LONGER_TESTED, Exit.ERROR),
        (ERROR, PASS, ChangeKind.NEWLY_TESTED, Exit.OK),
        (ERROR, WARN, ChangeKind.WORSE, Exit.WARN),
        (ERROR, SKIP, ChangeKind.SAME, Exit.OK),
        (SKIP, PASS, ChangeKind.NEWLY_TESTED, Exit.OK),
        (SKIP, ERROR, ChangeKind.NO_LONGER_TESTED, Exit.ERROR),
        (None, FAIL, ChangeKind.WORSE, Exit.FAIL),
        (None, SKIP, ChangeKind.SAME, Exit.OK),
    ],
)
def test_changes_of_a_check(
    before: Status | None, after: Status | None, turn: ChangeKind, code: Exit
) -> None:
    found = compare(ended(before), ended(after))
    [verdict] = [v for v in found.verdicts if v.check == "known-versions"]
    assert verdict.turn is turn
    assert found.exit_code is code
    assert {v.turn for v in found.verdicts if v.check != "known-versions"} == {ChangeKind.SAME}


def fails_in(*probes: str, occurrence: int = 4, seconds: float = 0.7) -> Report:
    bad = Finding.fail(
        "hung",
        "{role}: {call} #{occurrence} failed after {seconds:s}",
        role="importer",
        call="cuIpcOpenMemHandle",
        occurrence=occurrence,
        seconds=seconds,
    )
    return replaced(healthy(NODE), *(Result("ipc-reopen", bad, ("cuda:0",), probe) for probe in probes))


@pytest.mark.parametrize(
    ("before", "after", "turn"),
    [
        (fails_in("destroy-context"), fails_in("destroy-context"), ChangeKind.SAME),
        (
            fails_in("destroy-context"),
            fails_in("destroy-context", seconds=0.9),
            ChangeKind.SAME,
        ),
        (
            fails_in("destroy-context"),
            fails_in("destroy-context", occurrence=2),
            ChangeKind.FAILS_OTHERWISE,
        ),
        (
            fails_in("destroy-context", "primary-reset"),
            fails_in("destroy-context"),
            ChangeKind.FAILS_OTHERWISE,
        ),
        (fails_in("destroy-context"), fails_in("destroy-context", "primary-reset"), ChangeKind.WORSE),
        (fails_in("destroy-context"), fails_in("primary-reset"), ChangeKind.WORSE),
    ],
)
def test_changes_of_a_failing_check(before: Report, after: Report, turn: ChangeKind) -> None:
    found = compare(before, after)
    [verdict] = [v for v in found.verdicts if v.after is FAIL]
    assert verdict.turn is turn
    assert found.exit_code is (Exit.FAIL if turn is ChangeKind.WORSE else Exit.OK)


def test_additional_skips_change_nothing() -> None:
    base = healthy(NODE)
    partly = replaced(
        base, Result("ipc-stale", Finding.skip("not-reused", "no address was reused"), ("cuda:0",), "reuse")
    )
    assert compare(base, partly).exit_code is Exit.OK
    assert compare(partly, base).exit_code is Exit.OK
    assert {verdict.turn for verdict in compare(base, partly).verdicts} == {ChangeKind.SAME}


def test_new_one_of_several_failures_is_reported() -> None:
    before = fails_in("destroy-context")
    after = replaced(
        before, Result("ipc-reopen", Finding.fail("hung", "it hung"), ("cuda:0",), "primary-reset")
    )
    [verdict] = compare(before, after).turned(ChangeKind.WORSE)
    assert verdict.finding is not None
    assert sentences.summary(verdict.finding) == "it hung"


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (ended(PASS), replaced(ended(PASS), probes_run=0), Exit.NOTHING),
        (replaced(ended(PASS), probes_run=0), ended(PASS), Exit.NOTHING),
        (ended(PASS), replaced(ended(FAIL), probes_run=0), Exit.FAIL),
        (replaced(ended(PASS), **NO_GPU), replaced(ended(PASS), **NO_GPU), Exit.OK),
        (replaced(ended(PASS), **NO_GPU), replaced(ended(ERROR), **NO_GPU), Exit.ERROR),
        (ended(PASS), replaced(ended(PASS), devices=NODE[:1]), Exit.ERROR),
        (replaced(ended(PASS), devices=NODE[:1]), ended(PASS), Exit.OK),
    ],
)
def test_exit_codes_of_runs_that_lack_something(before: Report, after: Report, code: Exit) -> None:
    found = compare(before, after)
    assert found.exit_code is code
    assert any("has tested nothing" in note for note in found.notes) is (
        before.nothing_tested or after.nothing_tested
    )


# -- devices -------------------------------------------------------------------------------------------


def fates(before: list[Device], after: list[Device]) -> dict[str, DeviceChange]:
    found = compare(healthy(before), healthy(after)).devices
    return {(match.before or match.after).label: match.fate for match in found if match.before or match.after}


def test_added_and_removed_devices() -> None:
    zero, one = NODE
    other = replace(one, uuid="GPU-other")
    assert fates([zero, one], [zero, one]) == {"cuda:0": DeviceChange.SAME, "cuda:1": DeviceChange.SAME}
    assert fates([zero, one], [zero, other]) == {"cuda:0": DeviceChange.SAME, "cuda:1": DeviceChange.REPLACED}
    assert fates([zero, one], [zero]) == {"cuda:0": DeviceChange.SAME, "cuda:1": DeviceChange.GONE}
    assert fates([zero], [zero, one]) == {"cuda:0": DeviceChange.SAME, "cuda:1": DeviceChange.NEW}
    swapped = [replace(one, index=0), replace(zero, index=1)]
    assert fates([zero, one], swapped) == {
        "cuda:0": DeviceChange.RENUMBERED,
        "cuda:1": DeviceChange.RENUMBERED,
    }
    alike = [zero, replace(one, uuid=zero.uuid)]
    assert fates(alike, alike) == {"cuda:0": DeviceChange.SAME, "cuda:1": DeviceChange.SAME}


def test_renumbered_gpu_keeps_its_results() -> None:
    """The GPU that was cuda:1 and failed is now cuda:0, and still fails."""
    zero, one = NODE
    stale = Finding.fail("stale", "stale bytes")
    before = replaced(healthy(NODE), Result("ipc-stale", stale, ("cuda:1",)))
    renumbered = healthy([replace(one, index=0), replace(zero, index=1)])
    after = replaced(renumbered, Result("ipc-stale", stale, ("cuda:0",)))
    found = compare(without_pairs(before), without_pairs(after))
    assert {verdict.turn for verdict in found.verdicts} == {ChangeKind.SAME}
    assert found.exit_code is Exit.OK
    pairs = compare(before, after)  # only neighbours are tested, and in one direction
    assert {subject for v in pairs.turned(ChangeKind.NEWLY_TESTED) for subject in v.subjects} == {
        ("cuda:0", "cuda:1")
    }


def without_pairs(report: Report) -> Report:
    return replaced(report, results=tuple(r for r in report.results if len(r.devices) < 2))


def test_lost_gpu_is_reported_once() -> None:
    after = healthy(NODE[:1])
    found = compare(replaced(healthy(NODE)), replaced(after, inventory=healthy(NODE).inventory))
    assert [match.fate for match in found.devices] == [DeviceChange.SAME, DeviceChange.GONE]
    gone = [v for v in found.verdicts if ("cuda:1",) in v.subjects]
    assert gone == []


# -- metadata -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"host": "nid000001"}, "the reports come from two nodes: nid006672 and nid000001"),
        ({"tier": Tier.PROLOG}, "the tiers differ: acceptance and prolog"),
        (
            {"tool_version": "0.2.0"},
            "the versions of gpuipc-doctor differ (0.1.0, 0.2.0); the checks may differ too",
        ),
        (
            {"known_issues": "ba9876543210"},
            "the editions of the known issues differ (0123456789ab, ba9876543210); recognised issues "
            "may differ too",
        ),
        ({"interrupted": True}, "the later report was interrupted, so some checks did not run"),
        ({"probes_run": 0}, "the later report has tested nothing: no probe ran on a GPU"),
        (
            {"started": "2026-11-20T10:02:32+00:00"},
            "AFTER is older than BEFORE: 2026-11-20T10:02:32+00:00,",
        ),
    ],
)
def test_notes_on_reports_that_are_hard_to_compare(changes: dict[str, object], note: str) -> None:
    [said] = compare(healthy(NODE), replaced(healthy(NODE), **changes)).notes
    assert said.startswith(note)


def test_simulated_report_is_marked_everywhere() -> None:
    found = compare(healthy(NODE), replaced(healthy(NODE), simulated="healthy-cuda"))
    assert "SIMULATED after (profile healthy-cuda)" in comparison_content.screen(found)
    assert "SIMULATED" in comparison_content.ticket(found).splitlines()[0]
    assert json.loads(comparison_content.dumps(found))["after"]["simulated"] == "healthy-cuda"


@PROPERTY
@given(reports)
def test_report_is_not_worse_than_itself(any_report: Report) -> None:
    found = compare(any_report, any_report)
    assert {verdict.turn for verdict in found.verdicts} <= {ChangeKind.SAME}
    assert found.exit_code in (Exit.OK, Exit.NOTHING)


@PROPERTY
@given(reports, reports, st.sampled_from([60, 80, 120]))
def test_any_two_reports_can_be_compared(before: Report, after: Report, width: int) -> None:
    found = compare(before, after)
    Draft202012Validator(SCHEMA).validate(json.loads(comparison_content.dumps(found)))
    for line in comparison_content.screen(found, width=width).splitlines():
        assert columns(line) <= width
        assert sanitise(line).split() == line.split()
    for line in comparison_content.ticket(found).splitlines():
        assert sanitise(line).split() == line.split()


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    schemas.check(comparison_content, "comparison")


def test_text_of_a_report_is_escaped() -> None:
    evil = Finding.fail("wrong", "<img src=x> [click](http://x) | `a` *b*")
    text = comparison_content.ticket(
        compare(healthy(NODE), replaced(healthy(NODE), Result("ipc-stale", evil, ("cuda:0",))))
    )
    assert r"\<img src=x\> \[click\](http://x) \| \`a\` \*b\*" in text


# -- output ---------------------------------------------------------------------------------------------


def timed(base: Report, open_us: float, *, repetitions: int = 10) -> Report:
    """Probes without a role, run ``repetitions`` times, with opens of ``open_us`` microseconds."""
    results = []
    for result in base.results:
        if not result.devices or result.roles:
            results.append(result)
            continue
        for number in range(1, repetitions + 1):
            wobble = 1 + number % 4 / 100
            calls = (
                Calls("cuInit", 1, 0.6 * wobble),
                Calls("cuIpcOpenMemHandle", 10, 10e-6 * open_us * wobble),
            )
            role = RoleOutcome("importer", Ending.COMPLETED, start_up_s=0.2 * wobble, calls=calls)
            results.append(replace(result, roles=(role,), repetition=number))
    return replaced(base, results=tuple(results))


def upgraded() -> Report:
    """Another driver: reopening fails, opening takes twice as long, one known issue replaces another."""
    base = timed(healthy(NODE), 240.0)
    stale = Join("nvidia-ipc-overlap", "a stale mapping", Relation.LATENT, "", checks=("ipc-stale",))
    return replaced(
        base,
        hung("ipc-release", "cuIpcOpenMemHandle", NODE[1]),
        Result(
            "ipc-peer",
            Finding.skip("no-peer-access", "no peer access between cuda:0 and cuda:1"),
            ("cuda:0", "cuda:1"),
        ),
        Result(
            "known-versions",
            Finding.warn("known-bad", "nvidia-driver 590.10 is among the versions known to be bad"),
        ),
        inventory=(
            *base.inventory[2:],
            Fact("nvidia-driver", "590.10", ""),
            Fact("nvidia-module", "open", ""),
        ),
        joins=(stale,),
        started="2026-11-20T17:40:00+01:00",
    )


def accepted() -> Report:
    return timed(replaced(healthy(NODE), joins=(REOPEN_ISSUE,)), 120.0)


PAIRS = {
    "upgraded": (accepted(), upgraded()),
    "taken-back": (replaced(upgraded(), started="2026-11-20T09:00:00+01:00"), accepted()),
    "the-same": (accepted(), accepted()),
    "one-sample": (healthy(NODE), timed(healthy(NODE), 120.0, repetitions=1)),
    "one-sample-each": (
        timed(healthy(NODE), 120.0, repetitions=1),
        timed(healthy(NODE), 240.0, repetitions=1),
    ),
    "few-samples": (timed(healthy(NODE), 120.0, repetitions=3), timed(healthy(NODE), 240.0, repetitions=3)),
    "two-nodes": (healthy(NODE), replaced(seed_002(), host="nid000001", simulated="nvidia-460.32.03")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_screen(name: str) -> None:
    golden.check(f"comparison/{name}.txt", comparison_content.screen(compare(*PAIRS[name]), width=80))


@pytest.mark.parametrize("name", ["upgraded", "the-same"])
def test_document(name: str) -> None:
    golden.check(f"comparison/{name}.md", comparison_content.ticket(compare(*PAIRS[name])))


def test_json() -> None:
    golden.check("comparison/upgraded.json", comparison_content.dumps(compare(*PAIRS["upgraded"])))
