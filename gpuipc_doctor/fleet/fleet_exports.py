"""A fleet for programs and browsers: JSON, an HTML page, JUnit XML, Prometheus' metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypedDict
from xml.etree import ElementTree

from gpuipc_doctor.fleet.fleet_content import head, judged, known_bad
from gpuipc_doctor.fleet.fold import (
    COMPLAINTS,
    REMEDIES,
    Drift,
    Fleet,
    Group,
    MissingReports,
    Outlier,
    Problem,
)
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.junit import case, document
from gpuipc_doctor.present.metrics import SEVERITIES, Metric, exposition, moment
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import documents

Sets = TypedDict("Sets", {"pass": str, "fail": str, "unknown": str})


class Content:
    """A fleet as JSON; sets of nodes are folded, and their sizes stand beside them."""

    exit_code: Exit
    count: int
    """Nodes that were asked."""
    started: str
    nodes: Sets
    totals: dict[Status, int]
    simulated: str
    groups: tuple[Group, ...]
    findings: tuple[Problem, ...]
    silent: tuple[MissingReports, ...]
    drift: tuple[Drift, ...]
    slow: tuple[Outlier, ...]


def nodeset(fleet: Fleet) -> str:
    """The sets of nodes, a line each."""
    return "".join(f"{name}: {fleet.folder.fold(nodes)}\n" for name, nodes in fleet.sets.items())


KIND = documents.Kind("gpuipc-doctor/fleet/3", Content, "What the node reports of a fleet say together.")
schema = KIND.schema


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


def html(fleet: Fleet) -> str:
    """The page, ending in a newline."""
    fold = fleet.folder.fold
    telling = fleet.telling_checks
    return page(
        "fleet.html",
        title=counted(len(fleet.reports), "node"),
        simulated=fold(fleet.simulated),
        reports=counted(len(fleet.answered), "report"),
        totals=", ".join(f"{n} {s.value}" for s in reversed(Status) if (n := len(fleet.nodes(s)))),
        exit_code=int(fleet.exit_code),
        telling=telling,
        groups=[
            {
                "nodes": fold(group.nodes),
                "count": len(group.nodes),
                "status": group.status.value,
                "cells": [group.checks.get(check, "") for check in telling],
            }
            for group in fleet.groups
            if group.state is State.REPORTED
        ],
        findings=list(_findings(fleet)),
        drift=[
            {
                "name": one.name,
                "rows": [(v.value, fold(v.nodes), len(v.nodes), known_bad(v)) for v in one.values],
            }
            for one in fleet.drift
        ],
        slow=fleet.slow,
        all=[
            (one.node, one.status.value, _what(one))
            for one in sorted(fleet.reports, key=lambda one: -one.status.severity)
        ],
    )


def _findings(fleet: Fleet) -> Iterator[dict[str, object]]:
    def finding(nodes: tuple[str, ...], **values: object) -> dict[str, object]:
        return {"nodes": fleet.folder.fold(nodes), "count": len(nodes), "example": nodes[0], **values}

    for one in judged(fleet):
        problem = one.problem
        yield finding(
            problem.nodes,
            status=problem.status.value,
            title=problem.check,
            key=f"{problem.check}.{problem.key}",
            says=problem.says,
            known_issues=one.known_issues,
            remedy=one.remedy,
        )
    for silence in fleet.silent:
        kind = "no report: " * (silence.state not in (State.UNTESTED, State.REFUSED)) + silence.state.value
        error = {"status": Status.ERROR.value, "key": "", "known_issues": (), "remedy": silence.remedy}
        yield finding(silence.nodes, title=kind, says=silence.reason, **error)


def _what(report: NodeReport) -> str:
    """What is wrong with a node, in a few words."""
    if report.state is not State.REPORTED:
        return f"{report.state.value}: {report.reason}"
    return ", ".join(check for check, status in report.checks.items() if status in COMPLAINTS)


# -- JUnit ------------------------------------------------------------------------------------------------


def junit(fleet: Fleet) -> str:
    """A case for each node."""
    where = {"timestamp": fleet.started, "hostname": fleet.folder.brief([one.node for one in fleet.reports])}
    facts = [
        (drift.name, f"{held.value or 'not found'} on {fleet.folder.fold(held.nodes)}")
        for drift in fleet.drift
        for held in drift.values
    ]
    elapsed_s = sum(one.elapsed_s for one in fleet.answered)
    simulated = fleet.folder.fold(fleet.simulated)
    return document([_case(one) for one in fleet.reports], facts, where, elapsed_s, simulated)


def _case(report: NodeReport) -> ElementTree.Element:
    if report.state is not State.REPORTED:
        lines = [report.reason, f"Do: {REMEDIES[report.state].format(node=report.node)}"]
        return case("node", report.node, report.elapsed_s, report.status, report.state.value, lines)
    told = [one for one in report.findings if one.status == report.status.value]
    issues = {issue for one in told for issue in one.issues}
    known = [one for one in report.known if one.issue in issues]
    lines = [f"{one.status} {one.check} {one.where}: {one.says}" for one in told]
    lines += [f"{head(one)}: {one.title}; {one.reason}" for one in known]
    remedies = dict.fromkeys([*(one.remedy for one in known), *(one.remedy for one in told)])
    lines += [f"Do: {remedy}" for remedy in remedies if remedy]
    message = ", ".join(dict.fromkeys(f"{one.check}.{one.key}" if one.key else one.check for one in told))
    return case("node", report.node, report.elapsed_s, report.status, message, lines)


# -- Prometheus -------------------------------------------------------------------------------------------


def prometheus(fleet: Fleet) -> str:
    """The exposition of a fleet, beside what each node may say of itself."""
    simulated = fleet.folder.fold(fleet.simulated)
    return exposition(_metrics(fleet, simulated), simulated)


def _metrics(fleet: Fleet, simulated: str) -> Iterator[Metric]:
    states = Counter(one.state for one in fleet.reports)
    cells = Counter(item for one in fleet.answered for item in one.checks.items())
    yield "fleet_info", "What was asked; simulated names the nodes that are.", [({"simulated": simulated}, 1)]
    began = fleet.started
    yield "fleet_start_timestamp_seconds", "When the first report was begun.", moment(began)
    yield "fleet_exit_code", "Exit code over all nodes.", [({}, fleet.exit_code)]
    yield (
        "fleet_nodes",
        "Nodes by their worst status; one without a report is an ERROR.",
        [({"status": status.value}, len(fleet.nodes(status))) for status in Status],
    )
    yield (
        "fleet_answers",
        "Nodes by whether they have answered, and what stood in the way.",
        [({"state": state.value}, states[state]) for state in State],
    )
    yield (
        "fleet_check_nodes",
        "Nodes by the worst status of a check.",
        [({"check": check, "status": status}, number) for (check, status), number in sorted(cells.items())],
    )
    yield (
        "fleet_finding_nodes",
        "Nodes that a finding was made on.",
        [
            ({"check": one.check, "key": one.key, "status": one.status.value}, len(one.nodes))
            for one in fleet.findings
        ],
    )
    yield (
        "fleet_drift_values",
        "Values of a fact that is not the same everywhere.",
        [({"fact": drift.name}, len(drift.values)) for drift in fleet.drift],
    )
    yield (
        "fleet_node_severity",
        f"Worst status of a node: {SEVERITIES}; one without a report is an ERROR.",
        [({"node": one.node, "reason": _reason(one)}, one.status.severity) for one in fleet.reports],
    )


def _reason(report: NodeReport) -> str:
    """A state, or the first check that has the node's status: of so many values as there are of those."""
    if report.state is not State.REPORTED:
        return str(report.state.value)
    worst = report.status.value if report.status.value in COMPLAINTS else ""
    return next((check for check, status in sorted(report.checks.items()) if status == worst), "")
