"""A fleet's report for programs and browsers: JSON, HTML page, JUnit XML, Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict
from xml.etree import ElementTree

from gpuipc_doctor.fleet.fleet_content import experimental, head, judged, known_bad, skipped_together, verdict
from gpuipc_doctor.fleet.fold import (
    COMPLAINTS,
    REMEDIES,
    Drift,
    Fleet,
    Group,
    MissingReports,
    Outlier,
    Problem,
    SkippedCheck,
)
from gpuipc_doctor.fleet.summary import FindingSummary, NodeReport, State
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.junit import case, document
from gpuipc_doctor.present.metrics import SEVERITIES, Metric, by, exposition, moment
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import json_documents

Sets = TypedDict("Sets", {"pass": str, "fail": str, "unknown": str})


class Content:
    """A fleet as JSON; node sets are folded and counted."""

    exit_code: Exit
    count: int
    """Number of nodes in the run."""
    started: str
    nodes: Sets
    totals: dict[Status, int]
    simulated: str
    groups: tuple[Group, ...]
    findings: tuple[Problem, ...]
    silent: tuple[MissingReports, ...]
    drift: tuple[Drift, ...]
    slow: tuple[Outlier, ...]
    skipped: tuple[SkippedCheck, ...]


def nodeset(fleet: Fleet) -> str:
    """The node sets, one per line."""
    return "".join(f"{name}: {fleet.folder.fold(nodes)}\n" for name, nodes in fleet.sets.items())


KIND = json_documents.Kind("gpuipc-doctor/fleet/3", Content, "The merged node reports of a fleet.")


def dumps(fleet: Fleet) -> str:
    """The JSON document, ending in a newline."""
    fold = fleet.folder.fold
    return KIND.dumps(
        fleet,
        fold,
        count=len(fleet.reports),
        nodes={name: fold(nodes) for name, nodes in fleet.sets.items()},
        totals={status: len(fleet.nodes(status)) for status in Status},
        simulated=fold(fleet.simulated),
    )


# -- HTML -------------------------------------------------------------------------------------------------


PAGE_ROWS = 100
"""Maximum groups, findings, causes, values of a fact or figures on a page; the JSON has all."""

PAGE_SET = 2_000
"""Maximum characters of a node set on a page."""

OWN_WORDS = 400_000
"""Maximum characters of the nodes' own findings and reasons on a page, worst nodes first. A page of 10,000
nodes then has at most 2 MB."""

SHORT_REASON = 60
"""Maximum characters of a reason once a page has `OWN_WORDS`; the finding has the full text."""


def html(fleet: Fleet) -> str:
    """The page, ending in a newline."""
    found = sorted(_findings(fleet), key=lambda one: -Status(one["status"]).severity)
    findings = found[:PAGE_ROWS]
    anchors = {node: finding["id"] for finding in findings for node in finding["silent"]}
    links = {
        (finding["title"], finding["status"]): finding["id"]
        for finding in reversed(findings)
        if finding["key"]
    }
    return page(
        "fleet.html",
        title=verdict(fleet),
        nodes_count=counted(len(fleet.reports), "node"),
        simulated=_set(fleet, fleet.simulated),
        experimental=experimental(fleet),
        fleet=fleet,
        most=PAGE_ROWS,
        folded=partial(_set, fleet),
        complaints=partial(_complaints, links),
        known_bad=known_bad,
        reports=counted(len(fleet.answered), "report"),
        totals=[(n, s.value) for s in reversed(Status) if (n := len(fleet.nodes(s)))],
        groups=[group for group in fleet.groups if group.state is State.REPORTED],
        findings=found,
        skipped=list(skipped_together(fleet)),
        all=list(_every_node(fleet, links, anchors)),
    )


def _set(fleet: Fleet, nodes: Sequence[str]) -> str:
    text = fleet.folder.fold(nodes)
    return text if len(text) <= PAGE_SET else f"{text[:PAGE_SET].rpartition(',')[0]},… ({len(nodes)} nodes)"


def _complaints(
    links: Mapping[tuple[str, str], str], checks: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """For each check that is not fine: name, status and link to its description on the page."""
    bad = [(check, status) for check, status in checks.items() if status in COMPLAINTS]
    bad.sort(key=lambda one: -Status(one[1]).severity)
    return [(check, status, links.get((check, status), "")) for check, status in bad]


def _findings(fleet: Fleet) -> Iterator[dict[str, Any]]:
    def finding(nodes: tuple[str, ...], **values: object) -> dict[str, object]:
        return {"nodes": _set(fleet, nodes), "count": len(nodes), "example": nodes[0], **values}

    for number, one in enumerate(judged(fleet)):
        problem = one.problem
        yield finding(
            problem.nodes,
            id=f"f{number}",
            status=problem.status.value,
            title=problem.check,
            key=f"{problem.check}.{problem.key}",
            says=problem.says,
            known_issues=one.known_issues,
            remedy=one.remedy,
            silent=(),
        )
    for number, silence in enumerate(fleet.silent):
        kind = "no report: " * (silence.state not in (State.UNTESTED, State.REFUSED)) + silence.state.value
        error = {"status": Status.ERROR.value, "key": "", "known_issues": (), "remedy": silence.remedy}
        about = {"title": kind, "says": silence.reason, "silent": silence.nodes}
        yield finding(silence.nodes, id=f"s{number}", **about, **error)


def _every_node(
    fleet: Fleet, links: Mapping[tuple[str, str], str], anchors: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str, list[str]]]:
    """For each node: name, status, short reason, link to the description, and the node's own findings."""
    left = OWN_WORDS
    for report in sorted(fleet.reports, key=lambda one: -one.status.severity):
        own: list[str] = []
        if report.state is not State.REPORTED:
            anchor, reason = anchors.get(report.node, ""), report.reason
            if (left := left - len(reason)) < 0:
                reason = reason[:SHORT_REASON]
            what = f"{report.state.value}: {reason}"
        else:
            bad = _complaints(links, report.checks)
            what, anchor = ", ".join(check for check, _, _ in bad), bad[0][2] if bad else ""
            told = sorted(report.findings, key=lambda one: -Status(one.status).severity)
            own = [_words(finding) for finding in told if finding.status in COMPLAINTS] if left > 0 else []
            left -= sum(map(len, own))
        yield report.node, report.status.value, what, anchor, own


def _words(finding: FindingSummary) -> str:
    where = f" ({finding.where})" if finding.where else ""
    return f"{finding.status} {finding.check}{where}: {finding.says}"


# -- JUnit ------------------------------------------------------------------------------------------------


def junit(fleet: Fleet) -> str:
    """JUnit XML with a case for each node."""
    where = {
        "timestamp": fleet.started,
        "hostname": fleet.folder.brief([report.node for report in fleet.reports]),
    }
    facts = [
        (drift.name, f"{held.value or 'not found'} on {fleet.folder.fold(held.nodes)}")
        for drift in fleet.drift
        for held in drift.values
    ]
    elapsed_s = sum(report.elapsed_s for report in fleet.answered)
    simulated = fleet.folder.fold(fleet.simulated)
    cases = [_case(report) for report in fleet.reports]
    return document(cases, facts, where, elapsed_s, simulated, experimental(fleet))


def _case(report: NodeReport) -> ElementTree.Element:
    if report.state is not State.REPORTED:
        lines = [report.reason, f"Do: {REMEDIES[report.state].format(node=report.node)}"]
        return case("node", report.node, report.elapsed_s, report.status, report.state.value, lines)
    told = [finding for finding in report.findings if finding.status == report.status.value]
    issues = {issue for finding in told for issue in finding.issues}
    known = [issue for issue in report.known if issue.issue in issues]
    lines = [f"{finding.status} {finding.check} {finding.where}: {finding.says}" for finding in told]
    lines += [f"{head(issue)}: {issue.title}; {issue.reason}" for issue in known]
    remedies = dict.fromkeys([*(issue.remedy for issue in known), *(finding.remedy for finding in told)])
    lines += [f"Do: {remedy}" for remedy in remedies if remedy]
    message = ", ".join(
        dict.fromkeys(f"{finding.check}.{finding.key}" if finding.key else finding.check for finding in told)
    )
    return case("node", report.node, report.elapsed_s, report.status, message, lines)


# -- Prometheus -------------------------------------------------------------------------------------------


def prometheus(fleet: Fleet) -> str:
    """A fleet's Prometheus metrics, without those of single nodes."""
    simulated = fleet.folder.fold(fleet.simulated)
    return exposition(_metrics(fleet, simulated), simulated, experimental(fleet))


def _metrics(fleet: Fleet, simulated: str) -> Iterator[Metric]:
    states = Counter(report.state for report in fleet.reports)
    cells = Counter(item for report in fleet.answered for item in report.checks.items())
    yield "fleet_info", "What ran; simulated names the simulated nodes.", [({"simulated": simulated}, 1)]
    began = fleet.started
    yield "fleet_start_timestamp_seconds", "When the first report was started.", moment(began)
    yield "fleet_exit_code", "Exit code over all nodes.", [({}, fleet.exit_code)]
    nodes = {status.value: len(fleet.nodes(status)) for status in Status}
    yield "fleet_nodes", "Nodes by their worst status; one without a report is an ERROR.", by(nodes, "status")
    answers = by({state.value: states[state] for state in State}, "state")
    yield "fleet_answers", "Nodes by state: answered, or the reason for not answering.", answers
    checks = by(dict(sorted(cells.items())), "check", "status")
    yield "fleet_check_nodes", "Nodes by the worst status of a check.", checks
    found = {
        (finding.check, finding.key, finding.status.value): len(finding.nodes) for finding in fleet.findings
    }
    yield "fleet_finding_nodes", "Nodes with a finding.", by(found, "check", "key", "status")
    values = by({drift.name: len(drift.values) for drift in fleet.drift}, "fact")
    yield "fleet_drift_values", "Values of a fact that differs between nodes.", values
    about = f"Worst status of a node: {SEVERITIES}; a node without a report is an ERROR."
    severities = {(report.node, _reason(report)): report.status.severity for report in fleet.reports}
    yield "fleet_node_severity", about, by(severities, "node", "reason")


def _reason(report: NodeReport) -> str:
    """A label with few values: the state of a missing report, or the first check with the worst status."""
    if report.state is not State.REPORTED:
        return str(report.state.value)
    worst = report.status.value if report.status.value in COMPLAINTS else ""
    return next((check for check, status in sorted(report.checks.items()) if status == worst), "")
