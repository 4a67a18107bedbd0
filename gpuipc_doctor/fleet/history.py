"""Several runs over a fleet in a row: when a node last passed, how often it failed, which nodes flap. Pure.

The runs are the directories that `fleet check` wrote, so that there is no data base to keep or to lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.fold import OF_A_NODE
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import counted, sanitise, shorten

WELL = frozenset({Status.PASS, Status.WARN})

FLAPS = 3
"""So many changes between well and not well in a row of runs, and a node flaps."""

MAX_LINES = 40
"""Nodes shown, the worst first; the rest is counted."""

Run = Mapping[str, NodeReport]


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """What became of a node over the runs."""

    node: str
    marks: str
    """A letter for each run: p well, F failed, E no report or cannot tell, s nothing tested, - not asked."""
    last_passed: str
    """When the last run began in which it was well; empty for never."""
    failures: int
    changes: int
    """Between well and not well."""
    changed: tuple[str, ...]
    """The facts that differ between the last run in which it was well and the first one after it."""

    @property
    def flaps(self) -> bool:
        return self.changes >= FLAPS


def histories(runs: Sequence[Run]) -> list[NodeHistory]:
    """Of each node, the worst first; ``runs`` stand in the order of time."""
    nodes = sorted({node for run in runs for node in run})
    found = [_of(node, [run.get(node) for run in runs]) for node in nodes]
    return sorted(found, key=lambda one: (one.marks[-1:] == "p", -one.failures, -one.changes, one.node))


def _of(node: str, reports: Sequence[NodeReport | None]) -> NodeHistory:
    there = [one for one in reports if one is not None]
    well = [one.status in WELL for one in there]
    places = [place for place, is_well in enumerate(well) if is_well]
    after = there[places[-1] + 1 :] if places else []
    answered = [one for one in after if one.state is State.REPORTED]
    return NodeHistory(
        node,
        "".join(_mark(one) for one in reports),
        there[places[-1]].started if places else "",
        sum(one.status is Status.FAIL for one in there),
        sum(one != other for one, other in pairwise(well)),
        tuple(_changed(there[places[-1]], answered[0])) if answered else (),
    )


def _mark(report: NodeReport | None) -> str:
    if report is None:
        return "-"
    letters = {Status.FAIL: "F", Status.ERROR: "E", Status.SKIP: "s"}
    return letters.get(report.status, "p")


def _changed(before: NodeReport, after: NodeReport) -> Iterator[str]:
    for name in sorted({*before.facts, *after.facts} - OF_A_NODE):
        one, other = (", ".join(each.facts.get(name, ())) or "not found" for each in (before, after))
        if one != other:
            yield f"{name} {shorten(one, 40)} -> {shorten(other, 40)}"


def screen(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Lines for a terminal, ending in a newline: nodes that were not well in some run, the worst first."""
    found = histories(runs)
    notable = [one for one in found if set(one.marks) - {"p", "-"}]
    lines = [f"{counted(len(runs), 'run')}, {names[0]} to {names[-1]}: {counted(len(found), 'node')}"]
    for one in notable[:MAX_LINES]:
        last = f"last passed {one.last_passed[:16].replace('T', ' ')}" if one.last_passed else "never passed"
        failed = f", failed {one.failures} times" if one.failures else ""
        flaps = ", flaps" if one.flaps else ""
        changed = f"; since then: {'; '.join(one.changed[:3])}" if one.changed else ""
        lines.append(f"{one.node} {one.marks} {last}{failed}{flaps}{changed}")
    if more := notable[MAX_LINES:]:
        lines.append(f"… and {counted(len(more), 'more node')} that were not well in each run")
    lines.append(f"{counted(len(found) - len(notable), 'node')} passed each time they were asked")
    return "".join(f"{sanitise(line)}\n" for line in lines)
