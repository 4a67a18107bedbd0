"""A fleet as one HTML file, in the manner of a node's (`report.html`)."""

from __future__ import annotations

from gpuipc_doctor.fleet.fold import COMPLAINTS, Fleet
from gpuipc_doctor.fleet.screen import known_bad
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.fleet.verdicts import judged
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.html import page
from gpuipc_doctor.report.text import counted


def render(fleet: Fleet) -> str:
    """The page of a fleet."""
    fold = fleet.folder.fold
    groups = [group for group in fleet.groups if group.state is State.REPORTED]
    telling = fleet.telling_checks
    findings: list[dict[str, object]] = [
        {
            "status": one.problem.status.value,
            "title": one.problem.check,
            "key": f"{one.problem.check}.{one.problem.key}",
            "nodes": fold(one.problem.nodes),
            "count": len(one.problem.nodes),
            "example": one.problem.nodes[0],
            "says": one.problem.example.says,
            "verdicts": one.verdicts,
            "remedy": one.remedy,
        }
        for one in judged(fleet)
    ]
    findings += [
        {
            "status": Status.ERROR.value,
            "title": "no report: " * (one.state not in (State.UNTESTED, State.REFUSED)) + one.state.value,
            "key": "",
            "nodes": fold(one.nodes),
            "count": len(one.nodes),
            "example": one.nodes[0],
            "says": one.reason,
            "verdicts": (),
            "remedy": "",
        }
        for one in fleet.silences
    ]
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
            for group in groups
        ],
        findings=findings,
        drift=[
            {
                "name": one.name,
                "rows": [(v, fold(n), len(n), known_bad(one, v)) for v, n in one.values.items()],
            }
            for one in fleet.drifts
        ],
        slow=fleet.slow,
        all=[(one.node, one.status.value, _what(one)) for one in fleet.reports],
    )


def _what(report: NodeReport) -> str:
    """What is wrong with a node, in a few words."""
    if report.state is not State.REPORTED:
        return str(report.state.value)
    return ", ".join(check for check, status in report.checks.items() if status in COMPLAINTS)
