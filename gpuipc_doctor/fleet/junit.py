"""A fleet as JUnit XML: a case for each node (`report.junit` has what readers of it expect)."""

from __future__ import annotations

from xml.etree import ElementTree

from gpuipc_doctor.fleet import verdicts
from gpuipc_doctor.fleet.fold import Fleet
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.report.junit import case, document


def render(fleet: Fleet) -> str:
    """The document, ending in a newline."""
    where = {
        "timestamp": fleet.started,
        "hostname": fleet.folder.brief([one.node for one in fleet.reports]),
    }
    facts = [
        (drift.name, f"{value or 'not found'} on {fleet.folder.fold(nodes)}")
        for drift in fleet.drifts
        for value, nodes in drift.values.items()
    ]
    elapsed_s = sum(one.elapsed_s for one in fleet.answered)
    simulated = fleet.folder.fold(fleet.simulated)
    return document([_case(one) for one in fleet.reports], facts, where, elapsed_s, simulated)


def _case(report: NodeReport) -> ElementTree.Element:
    if report.state is not State.REPORTED:
        return case("node", report.node, report.elapsed_s, report.status, report.state.value, [report.reason])
    told = [one for one in report.findings if one.status == report.status.value]
    lines = [f"{one.status} {one.check} {one.where}: {one.says}" for one in told]
    known = list(verdicts.of_a_node(report, told))
    lines += [one.text for one in known]
    remedies = [one.remedy for one in known] + [one.remedy for one in told]
    lines += [f"Do: {remedy}" for remedy in dict.fromkeys(remedies) if remedy]
    message = ", ".join(dict.fromkeys(f"{one.check}.{one.key}" if one.key else one.check for one in told))
    return case("node", report.node, report.elapsed_s, report.status, message, lines)
