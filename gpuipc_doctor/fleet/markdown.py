"""A fleet as Markdown, for a ticket."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.fleet.fold import Fleet
from gpuipc_doctor.fleet.screen import known_bad
from gpuipc_doctor.fleet.summary import State
from gpuipc_doctor.fleet.verdicts import judged
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import markdown
from gpuipc_doctor.report.blocks import Block, Lines, Paragraph, table
from gpuipc_doctor.report.text import counted


def render(fleet: Fleet) -> str:
    """The document, ending in a newline."""
    counts = [f"{n} {status.value}" for status in reversed(Status) if (n := len(fleet.nodes(status)))]
    head = f"{counted(len(fleet.reports), 'node')}: {', '.join(counts)} (exit {fleet.exit_code})"
    return markdown.render(head, _blocks(fleet))


def _blocks(fleet: Fleet) -> Iterator[Block]:
    brief = fleet.folder.brief
    if fleet.simulated:
        yield Lines((f"SIMULATED: no real GPU was tested on {brief(fleet.simulated)}",))
    groups = [group for group in fleet.groups if group.state is State.REPORTED]
    checks = fleet.telling_checks
    yield from table(
        ("nodes", "", "worst", *checks),
        (
            (
                brief(group.nodes),
                str(len(group.nodes)),
                group.status.value,
                *(group.checks.get(check, "-") for check in checks),
            )
            for group in groups
        ),
    )
    for one in judged(fleet):
        problem = one.problem
        title = f"{problem.check} on {brief(problem.nodes)}"
        said = f"{problem.nodes[0]}: {problem.example.says}"
        yield Paragraph(problem.status.value, title, said, one.remedy, one.verdicts)
    for silence in fleet.silences:
        title = silence.about(brief(silence.nodes))
        yield Paragraph(Status.ERROR.value, title, f"{silence.nodes[0]}: {silence.reason}", "")
    yield from table(
        ("fact", "value", "nodes", ""),
        (
            (
                "" if number else drift.name,
                (value or "not found") + known_bad(drift, value),
                str(len(nodes)),
                brief(nodes),
            )
            for drift in fleet.drifts
            for number, (value, nodes) in enumerate(drift.values.items())
        ),
    )
    yield from table(
        ("slow", "figure", "value", "median of its peers"),
        (
            (one.node, one.name, f"{one.value:.3g} {one.unit}", f"{one.median:.3g} {one.unit}")
            for one in fleet.slow
        ),
    )
