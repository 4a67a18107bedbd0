"""When each probe of a run ran, and for which ones the run waited."""

from __future__ import annotations

from typing import NamedTuple

from gpuipc_doctor.report_types import Report

GAP_S = 0.1
"""Seconds within which a probe that starts after another one's end waited for it."""


class Ran(NamedTuple):
    """A probe, its subject, and its start and end in seconds since the run's start."""

    check: str
    probe: str
    subject: str
    start: float
    end: float


def probes(report: Report) -> list[Ran]:
    """The probes that ran, in order of their starts."""
    ran = {
        Ran(each.check, each.probe, each.subject, each.started_s, each.started_s + each.elapsed_s)
        for each in report.results
        if each.roles and each.started_s
    }
    return sorted(ran, key=lambda one: (one.start, one))


def waited_for(report: Report) -> list[Ran]:
    """The chain of probes, each started when the one before it ended, with which the run ended."""
    chain: list[Ran] = []
    left = probes(report)
    while left:
        chain.append(last := max(left, key=lambda one: one.end))
        left = [one for one in left if one.end <= last.start + GAP_S and one.start < last.start]
    return chain[::-1]
