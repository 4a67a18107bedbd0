"""The verdict on a node: first on the screen of a whole run, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.model import Finding, Status, Subject, Tier
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.report import acceptance, comparison_content, node_content, node_exports
from gpuipc_doctor.report.comparison import compare
from gpuipc_doctor.report_types import CheckInfo, Report, Result
from tests.sample_reports import gpus, healthy, replaced, seed_002

MEMORY = "GPU memory between processes"
UNTESTED = (
    "Not tested: MPI (none of its checks ran), collectives (none of its checks ran), "
    "the fabric (none of its checks ran)"
)
HUNG = RoleOutcome("importer", Ending.HUNG, operation="cuIpcOpenMemHandle")


def ended(status: Status, **changes: Any) -> Report:
    worst = Result("ipc-stale", Finding(status, "so", "so it is"), ("cuda:0",))
    return replaced(healthy(gpus(2)), worst, whole=True, **changes)


def cut_off() -> Report:
    return ended(
        Status.PASS, results=(Result("ipc-peer", Finding.skip("budget", "no time"), stopped="budget"),)
    )


@pytest.mark.parametrize(
    ("report", "verdict", "reason"),
    [
        (ended(Status.PASS), "ACCEPT", f"{MEMORY} (6 checks passed). {UNTESTED}"),
        (ended(Status.WARN), "ACCEPT", f"{MEMORY} (5 checks passed, 1 with a warning). {UNTESTED}"),
        (ended(Status.ERROR), "CANNOT TELL", "ipc-stale on cuda:0: so it is"),
        (ended(Status.FAIL), "REJECT", "ipc-stale on cuda:0: so it is"),
        (ended(Status.FAIL, interrupted=True), "REJECT", "ipc-stale on cuda:0: so it is"),
        (ended(Status.PASS, interrupted=True), "CANNOT TELL", "the run was interrupted"),
        (ended(Status.PASS, probes_run=0), "CANNOT TELL", "no probe ran on a GPU"),
        (cut_off(), "CANNOT TELL", "the time budget ended before 6 checks: give the run a longer --budget"),
    ],
)
def test_verdict_is_the_first_line(report: Report, verdict: str, reason: str) -> None:
    first = node_content.screen(report, width=120).split("\n\n")[0]
    assert " ".join(first.split()) == f"{verdict}: {reason}"
    assert f"<title>{report.host}: {verdict}" in node_exports.html(report)
    of_one_check = node_content.screen(replace(report, whole=False), width=120)
    assert verdict not in of_one_check


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("subject", list(Subject))
def test_subject_is_tested_by_a_result_other_than_skip_and_error(subject: Subject, status: Status) -> None:
    checks = [CheckInfo("a", "A", Tier.ACCEPTANCE, subject), CheckInfo("n", "N", Tier.ACCEPTANCE)]
    skipped = Result("a", Finding.skip("no", "no such {thing}", thing="thing"))
    results = [skipped, Result("n", Finding.ok("k", "so"))]
    lacking = {**acceptance.untested(checks, results)}
    assert lacking.pop(subject) == "no such thing"
    assert set(lacking.values()) == {"none of its checks ran"}
    results.append(Result("a", Finding(status, "so", "so it is")))
    is_tested = status not in (Status.SKIP, Status.ERROR)
    assert (subject not in acceptance.untested(checks, results)) == is_tested


def test_node_without_a_fabric_is_not_told_that_none_was_tested() -> None:
    without = Result("fabric-info", Finding.skip("no-fabric", "none"))
    report = ended(Status.PASS)
    assert "the fabric" in acceptance.reason(report)
    assert "the fabric" not in acceptance.reason(replace(report, results=(*report.results, without)))


def test_compare_accepts_no_node_on_which_something_required_was_not_tested() -> None:
    reports = ended(Status.PASS), ended(Status.PASS)
    kept = compare(*reports, accept=True, required={Subject.MEMORY})
    assert (kept.acceptance, kept.exit_code) == (acceptance.Verdict.ACCEPT, 0)
    lacking = compare(*reports, accept=True, required={Subject.MEMORY, Subject.MPI})
    assert (lacking.acceptance, lacking.exit_code) == (acceptance.Verdict.CANNOT_TELL, 11)
    assert lacking.reason == "required, but not tested: MPI (none of its checks ran)"


def test_markdown_has_the_verdict_and_the_whole_matrix() -> None:
    text = node_content.ticket(replace(seed_002(), whole=True))
    assert text.startswith("## nid006672 (exit 12)\n\n**REJECT:** ipc-reopen on ")
    assert "\n| ipc-reopen | FAIL | FAIL | FAIL | FAIL | FAIL | - |\n" in text
    assert "\n**FAIL** ipc-reopen (destroy-context, primary-reset) on " in text


def test_reason_is_the_failure_that_is_known() -> None:
    said = acceptance.reason(seed_002())
    said_title = "cuIpcOpenMemHandle fails the second time once the importer's context was destroyed"
    assert f": {said_title} (known issue nvidia-ipc-reopen)" in said


@pytest.mark.parametrize(
    ("before", "after", "code", "accepting"),
    [
        (Status.PASS, Status.PASS, 0, 0),
        (Status.FAIL, Status.FAIL, 0, 12),
        (Status.ERROR, Status.ERROR, 0, 11),
        (Status.WARN, Status.WARN, 0, 0),
        (Status.FAIL, Status.WARN, 0, 0),
        (Status.PASS, Status.WARN, 10, 10),
        (Status.PASS, Status.FAIL, 12, 12),
    ],
)
def test_compare_with_accept_judges_the_node_too(
    before: Status, after: Status, code: int, accepting: int
) -> None:
    reports = ended(before), ended(after)
    assert compare(*reports).exit_code == code
    accepted = compare(*reports, accept=True)
    assert accepted.exit_code == accepting
    verdict = acceptance.verdict(reports[1]).value
    assert comparison_content.screen(accepted).startswith(verdict)


def test_report_of_few_checks_cannot_accept_a_node_but_reject_it() -> None:
    few = {"ipc-stale": replace(ended(Status.PASS), whole=False), "tier": replace(ended(Status.PASS))}
    few["tier"] = replace(few["tier"], tier=Tier.PROLOG)
    for after in few.values():
        accepted = compare(ended(Status.PASS), after, accept=True)
        assert (accepted.acceptance, accepted.exit_code) == (acceptance.Verdict.CANNOT_TELL, 11)
        assert "check --all" in accepted.reason
        assert "ACCEPT" not in node_content.screen(after)
    bad = replace(ended(Status.FAIL), whole=False)
    assert compare(ended(Status.PASS), bad, accept=True).acceptance is acceptance.Verdict.REJECT


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Status.PASS, Status.PASS, "nothing is worse, no longer tested, or of another version"),
        (Status.FAIL, Status.FAIL, "nothing is worse, no longer tested, or of another version"),
        (Status.PASS, Status.FAIL, "FAIL ipc-stale on cuda:0, was PASS"),
        (Status.PASS, Status.SKIP, "SKIP ipc-stale on cuda:0, was PASS"),
    ],
)
def test_news_since_an_earlier_report_stand_below_the_verdict(
    before: Status, after: Status, says: str
) -> None:
    news = comparison_content.news(compare(ended(before), ended(after)))
    first, second = node_content.screen(ended(after), width=120, news=[news]).split("\n\n")[:2]
    assert first.startswith(acceptance.verdict(ended(after)).value)
    assert second.startswith("NEW ")
    assert says in second


def test_skips_of_a_whole_run_are_one_paragraph_after_the_failures() -> None:
    skipped = [
        Result("ipc-stale", Finding.skip("no", "no such thing", remedy="get one"), ("cuda:0",)),
        Result("ipc-peer", Finding.skip("not", "no peers", remedy="get some")),
        Result("ipc-pool", Finding.fail("bad", "it is bad")),
    ]
    report = replaced(healthy(gpus(2)), skipped[0], whole=True)
    report = replace(report, results=(*report.results, *skipped[1:]))
    blocks = node_content.screen(report, width=120, verbose=True).split("\n\n")
    [skips] = [block for block in blocks if block.startswith("SKIP")]
    assert skips.splitlines() == [
        "SKIP  not tested, because:",
        "      ipc-stale on cuda:0: no such thing",
        "      ipc-peer: no peers",
        "      To see what would make one run: gpuipc-doctor check NAME",
    ]
    assert "Do: get one" in node_content.screen(replace(report, whole=False), width=120)


def test_whole_run_counts_what_passed_and_what_was_skipped() -> None:
    failed = Result("ipc-pool", Finding.fail("bad", "it is bad"))
    skipped = [Result(check, Finding.skip("no", "no such thing")) for check in ("ipc-stale", "ipc-peer")]
    report = replace(healthy(gpus(2)), whole=True)
    report = replace(report, results=(*report.results, failed, *skipped))
    text = node_content.screen(report, width=120)
    assert text.index("\nFAIL  ipc-pool") < text.index("\ncheck ") < text.index("\nPASS  ")
    assert re.search(
        r"\nPASS  \d+ checks? passed; -v shows each\nSKIP  2 checks not tested; -v says why\n", text
    )
    assert "no such thing" not in text
    assert "ipc-reopen" not in text
    assert "no such thing" in node_content.screen(report, width=120, verbose=True)
    assert "ipc-reopen" in node_content.screen(replace(report, whole=False), width=120)


def test_hang_gets_first_aid_that_warns_of_lost_data_first() -> None:
    hung = Result("ipc-stale", Finding.fail("hung", "it hung"), ("cuda:0",), roles=(HUNG,))
    report = replaced(healthy(gpus(2)), hung, whole=True)
    text = node_content.screen(report, width=120)
    aid = text[text.index("HANG  first aid. CAREFUL: a reset or reboot ") :]
    places = [
        aid.index(word) for word in ("State=DRAIN", "dmesg -T", "--gpu-reset", "reboot.", "State=RESUME")
    ]
    assert places == sorted(places)
    assert "HANG" not in node_content.screen(ended(Status.FAIL))
