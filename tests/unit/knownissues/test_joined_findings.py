"""A known issue is told of the findings that show it, and of no other finding of the same check."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.knownissues import KnownIssue, Workaround
from gpuipc_doctor.knownissues.signatures import Confidence, Signature
from gpuipc_doctor.model import Evidence, EvidenceKind, Fact, Finding, Trial
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import advice, merged_results, node_content, report_json
from gpuipc_doctor.report_types import Relation, Report, Result
from gpuipc_doctor.versions import Range
from tests.sample_reports import gpus, healthy, replaced

FACTS = (Fact("rocm", "7.2.1", "here"),)
DEVICES = gpus(2, "hip", "AMD Instinct MI300A")


def issue(id_: str, *detected_by: str, signature: str = "") -> KnownIssue:
    return KnownIssue(
        id_,
        f"title of {id_}",
        "rocm",
        "leak",
        "open",
        "memory is not released",
        (),
        affected=(Range("rocm", "7.2.0", last_affected="7.2.4"),),
        detected_by=detected_by,
        signatures=(Signature((signature,), Confidence.MEDIUM),) if signature else (),
        workarounds=(Workaround("off", {"A": "1"}),),
    )


LEAK = issue("leak", "ipc-release", "ipc-concurrent.descriptors-left")
OTHER_LEAK = issue("other", "ipc-concurrent.descriptors-left")
OF_IMPORTER = issue("of-importer", "ipc-concurrent", signature="importer")
OF_EXPORTER = issue("of-exporter", "ipc-concurrent", signature="exporter")

LEFT = Finding.fail("descriptors-left", "{role}: open descriptors grow", role="importer")
LEFT_ELSEWHERE = replace(LEFT, values={"role": "exporter"})
WRONG = Finding.fail("wrong-data", "wrong data")
HUNG = Finding.fail("hung", "{call} hung", call="hipIpcOpenMemHandle")
UNKNOWN = Finding.error("no-counter", "the memory counter is unreliable")
FEW = Finding.warn("descriptors-left", "{role}: open descriptors grow", role="importer")
NOT_RELEASED = Finding.fail("not-returned", "memory was not released")
USELESS = Evidence(EvidenceKind.TRIAL, "Tried {env:env}", {"env": {"A": "1"}, "outcome": "does not help"})
HELPFUL = Evidence(EvidenceKind.TRIAL, "Tried {env:env}", {"env": {"A": "1"}, "outcome": Trial.HELPS.value})
FAILED_CONTROL = Evidence(EvidenceKind.CONTROL, "with IPC off", {"failed": True})


def on(*devices: int, finding: Finding, check: str = "ipc-concurrent", **of: Any) -> Result:
    return Result(check, finding, tuple(f"hip:{number}" for number in devices), **{"probe": "handles", **of})


def but(finding: Finding, *evidence: Evidence) -> Finding:
    return replace(finding, evidence=evidence)


def report_of(issues: Iterable[KnownIssue], results: Sequence[Result]) -> Report:
    joins = knownissues.join(issues, FACTS, results, DEVICES)
    return replaced(healthy(DEVICES), results=tuple(results), joins=joins)


def confirmed(report: Report) -> set[tuple[str, str]]:
    """(issue, finding) for each finding of which the screen says that an issue is confirmed."""
    return {
        (join.issue, described(result))
        for paragraph in merged_results.paragraphs(report)
        for join in paragraph.joins
        if join.relation is Relation.CONFIRMED
        for result in merged_results.showing(join, paragraph.results)
    }


def described(result: Result) -> str:
    status, role = result.finding.status.value, result.finding.values.get("role", "")
    parts = (status, result.key, role, result.probe, result.subject, str(result.repetition))
    return " ".join(filter(None, parts))


Case = tuple[Sequence[KnownIssue], Sequence[Result], set[tuple[str, str]]]

CONFIRMED_OF: dict[str, Case] = {
    "two probes of a check": (
        [LEAK],
        [on(0, finding=LEFT, probe="descriptors"), on(0, finding=WRONG)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer descriptors hip:0 1")},
    ),
    "two findings of a probe": (
        [LEAK],
        [on(0, finding=LEFT), on(0, finding=WRONG)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "two findings of a probe with one key": (
        [OF_IMPORTER],
        [on(0, finding=LEFT), on(0, finding=LEFT_ELSEWHERE)],
        {("of-importer", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "another key on another GPU": (
        [LEAK],
        [on(0, finding=LEFT), on(1, finding=WRONG)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "another check on another GPU": (
        [LEAK],
        [on(0, finding=LEFT), on(1, finding=NOT_RELEASED, check="ipc-release"), on(1, finding=WRONG)],
        {
            ("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1"),
            ("leak", "FAIL ipc-release.not-returned handles hip:1 1"),
        },
    ),
    "a pair in both directions": (
        [LEAK],
        [on(0, 1, finding=LEFT), on(1, 0, finding=WRONG), on(0, 1, finding=HUNG)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 > hip:1 1")},
    ),
    "another key in another repetition": (
        [LEAK],
        [on(0, finding=LEFT, repetition=1), on(0, finding=HUNG, repetition=2)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "unknown in another repetition": (
        [LEAK],
        [on(0, finding=LEFT, repetition=1), on(0, finding=UNKNOWN, repetition=2)],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "a warning with the key of a failure": (
        [LEAK],
        [on(0, finding=LEFT), on(0, finding=FEW, probe="large")],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "two issues of one key": (
        [LEAK, OTHER_LEAK],
        [on(0, finding=LEFT), on(0, finding=WRONG)],
        {
            ("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1"),
            ("other", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1"),
        },
    ),
    "two issues of one check with their own signatures": (
        [OF_IMPORTER, OF_EXPORTER],
        [on(0, finding=LEFT), on(1, finding=LEFT_ELSEWHERE)],
        {
            ("of-importer", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1"),
            ("of-exporter", "FAIL ipc-concurrent.descriptors-left exporter handles hip:1 1"),
        },
    ),
    "suppressed finding": (
        [LEAK],
        [on(0, finding=Finding.skip("suppressed", "suppressed")), on(0, finding=LEFT, probe="large")],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer large hip:0 1")},
    ),
    "contradicted by its control": (
        [LEAK],
        [
            on(0, finding=but(NOT_RELEASED, FAILED_CONTROL), check="ipc-release"),
            on(0, finding=LEFT),
        ],
        {("leak", "FAIL ipc-concurrent.descriptors-left importer handles hip:0 1")},
    ),
    "contradicted by a workaround tried on the first of equal failures": (
        [LEAK],
        [on(0, finding=but(LEFT, USELESS)), on(1, finding=LEFT)],
        set(),
    ),
    "a workaround that helps the first of equal failures": (
        [LEAK],
        [on(0, finding=but(LEFT, HELPFUL)), on(1, finding=LEFT)],
        {
            ("leak", f"FAIL ipc-concurrent.descriptors-left importer handles {subject} 1")
            for subject in ("hip:0", "hip:1")
        },
    ),
    "a workaround that helps no other failure": (
        [LEAK],
        [on(0, finding=but(LEFT, USELESS)), on(1, finding=NOT_RELEASED, check="ipc-release")],
        {("leak", "FAIL ipc-release.not-returned handles hip:1 1")},
    ),
}


@pytest.mark.parametrize(("issues", "results", "expected"), CONFIRMED_OF.values(), ids=CONFIRMED_OF)
def test_issue_is_confirmed_only_of_findings_that_show_it(
    issues: Sequence[KnownIssue], results: Sequence[Result], expected: set[tuple[str, str]]
) -> None:
    assert confirmed(report_of(issues, results)) == expected


@pytest.mark.parametrize("signature", ["", "memory leaked"])
def test_confirmed_issue_says_if_only_version_and_finding_were_compared(signature: str) -> None:
    known = issue("leak", "ipc-concurrent", signature=signature) if signature else LEAK
    log = RoleOutcome("importer", Ending.CRASHED, log_tail=("memory leaked",))
    [join] = report_of([known], [on(0, finding=LEFT, roles=(log,))]).joins
    assert ("no text or call" in join.reason) is (not signature)


def on_one_of_two(shown: str) -> Report:
    """Equal findings on two GPUs, of which only one has the signature in its log."""
    known = issue("leak", "ipc-concurrent", signature="memory leaked")
    log = RoleOutcome("importer", Ending.CRASHED, log_tail=("memory leaked",))
    results = [on(n, finding=HUNG, roles=(log,) if f"hip:{n}" == shown else ()) for n in (0, 1)]
    return report_of([known], results)


@pytest.mark.parametrize("shown", ["hip:0", "hip:1"])
def test_equal_findings_are_one_entry_that_names_those_with_the_issue(shown: str) -> None:
    report = on_one_of_two(shown)
    assert confirmed(report) == {("leak", f"FAIL ipc-concurrent.hung handles {shown} 1")}
    assert f"Known issue leak CONFIRMED (ipc-concurrent on {shown}): title" in node_content.screen(report)


def test_issue_of_all_equal_findings_is_named_without_place() -> None:
    report = report_of([LEAK], [on(0, finding=LEFT), on(1, finding=LEFT)])
    assert "Known issue leak CONFIRMED: title of leak" in node_content.screen(report)


def test_finding_beside_the_issue_is_not_explained_by_it() -> None:
    """An earlier version printed "leak CONFIRMED, see above" for wrong data."""
    report = report_of([LEAK], [on(0, finding=LEFT), on(0, finding=WRONG)])
    leak, wrong = merged_results.paragraphs(report)
    assert ([join.issue for join in leak.joins], wrong.joins) == (["leak"], ())
    assert node_content.screen(report).count("leak CONFIRMED") == 1
    assert advice.REPORT_IT.split("{")[0] in node_content.screen(report)


def test_joined_findings_are_in_the_json_report() -> None:
    report = report_of([LEAK], [on(0, finding=LEFT), on(0, finding=WRONG)])
    text = report_json.dumps(report)
    assert confirmed(report_json.loads(text)) == confirmed(report)
    [join] = json.loads(text)["joins"]
    assert [(ref["key"], ref["subject"]) for ref in join["findings"]] == [
        ("ipc-concurrent.descriptors-left", "hip:0")
    ]
