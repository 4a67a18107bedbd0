"""The verdict on a node: first on the screen of a whole run, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.comparison import compare, comparison_content
from gpuipc_doctor.model import Finding, Report, Result, Status
from gpuipc_doctor.report import acceptance, node_content, node_exports
from tests.sample_reports import gpus, healthy, replaced, seed_002


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
        (ended(Status.PASS), "ACCEPT", "6 checks passed"),
        (ended(Status.SKIP), "ACCEPT", "5 checks passed, 1 not tested on this node"),
        (ended(Status.WARN), "ACCEPT", "5 checks passed, 1 with a warning"),
        (ended(Status.ERROR), "CANNOT TELL", "ipc-stale on cuda:0: so it is"),
        (ended(Status.FAIL), "REJECT", "ipc-stale on cuda:0: so it is"),
        (ended(Status.FAIL, interrupted=True), "REJECT", "ipc-stale on cuda:0: so it is"),
        (ended(Status.PASS, interrupted=True), "CANNOT TELL", "the run was interrupted"),
        (ended(Status.PASS, probes_run=0), "CANNOT TELL", "no probe ran on a GPU"),
        (cut_off(), "CANNOT TELL", "the time budget ended before 6 checks: give the run a longer --budget"),
    ],
)
def test_verdict_is_the_first_line(report: Report, verdict: str, reason: str) -> None:
    assert node_content.screen(report, width=120).splitlines()[0].split("  ") == [verdict, reason]
    assert f"<title>{report.host}: {verdict}" in node_exports.html(report)
    of_one_check = node_content.screen(replace(report, whole=False), width=120)
    assert verdict not in of_one_check


def test_markdown_has_the_verdict_and_the_whole_matrix() -> None:
    text = node_content.ticket(replace(seed_002(), whole=True))
    assert text.startswith("## nid006672 (exit 12)\n\n**REJECT** ipc-reopen on ")
    assert "\n| ipc-reopen | FAIL | FAIL | FAIL | FAIL | FAIL 4/4 | - |\n" in text
    assert "\n**FAIL** ipc-reopen (destroy-context, primary-reset) on " in text


def test_reason_is_the_failure_that_is_known() -> None:
    said = acceptance.reason(seed_002())
    assert "(known issue nvidia-ipc-reopen)" in said


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
