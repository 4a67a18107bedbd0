"""Successive runs over a fleet: when a node last passed, how often it failed, which nodes flap.

The runs are the directories of `fleet check`; there is no other database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuipc_doctor.fleet.fold import OF_A_NODE
from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import counted, sanitise, shorten

WELL = frozenset({Status.PASS, Status.WARN})
_LETTERS = {Status.FAIL: "F", Status.ERROR: "E", Status.SKIP: "s"}

FLAPS = 3
"""A node flaps if it has changed this often between healthy and not healthy in successive runs."""

MAX_LINES = 40
"""Maximum nodes shown, worst first; the rest is counted."""

Run = Mapping[str, NodeReport]


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """Results of a node over the runs."""

    node: str
    marks: str
    """One letter per run: p healthy, F failed, E no report or unknown, s nothing tested, - not in the run."""
    last_passed: str
    """Start of the last run in which the node was healthy; empty if none."""
    failures: int
    changes: int
    """How often the node changed between healthy and not healthy."""
    changed: tuple[str, ...]
    """Facts that differ between the last run in which the node was healthy and the next one."""
    risen: tuple[str, ...]
    """Error counters of GPUs that rose over the runs, by how much; the largest rise first."""

    @property
    def flaps(self) -> bool:
        return self.changes >= FLAPS


def histories(runs: Sequence[Run]) -> list[NodeHistory]:
    """Each node's history, worst first; ``runs`` are in order of time."""
    nodes = sorted({node for run in runs for node in run})
    found = [_of(node, [run.get(node) for run in runs]) for node in nodes]
    return sorted(found, key=lambda one: (one.marks[-1:] == "p", -one.failures, -one.changes, one.node))


def _of(node: str, reports: Sequence[NodeReport | None]) -> NodeHistory:
    there = [report for report in reports if report is not None]
    well = [report.status in WELL for report in there]
    places = [place for place, is_well in enumerate(well) if is_well]
    after = there[places[-1] + 1 :] if places else []
    answered = [report for report in after if report.state is State.REPORTED]
    return NodeHistory(
        node,
        "".join(_LETTERS.get(report.status, "p") if report else "-" for report in reports),
        there[places[-1]].started if places else "",
        sum(report.status is Status.FAIL for report in there),
        sum(one != other for one, other in pairwise(well)),
        tuple(_changed(there[places[-1]], answered[0])) if answered else (),
        tuple(_risen(there)),
    )


def _risen(reports: Sequence[NodeReport]) -> Iterator[str]:
    """A counter that steps back was set to 0: nothing is known of that step."""
    rises = Counter[str]()
    known = [report.errors for report in reports if report.errors is not None]
    for earlier, later in pairwise(known):
        rises.update({name: max(count - earlier.get(name, 0), 0) for name, count in later.items()})
    for name, rise in (+rises).most_common():
        where, _, what = name.rpartition(": ")
        yield f"{where}: {rise} more {what}"


def _changed(before: NodeReport, after: NodeReport) -> Iterator[str]:
    for name in sorted({*before.facts, *after.facts} - OF_A_NODE):
        one, other = (", ".join(each.facts.get(name, ())) or "not found" for each in (before, after))
        if one != other:
            yield f"{name} {shorten(one, 40)} -> {shorten(other, 40)}"


def screen(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Lines for a terminal, ending in a newline: nodes that were not well in some run, worst first."""
    found = histories(runs)
    bad = [node for node in found if set(node.marks) - {"p", "-"}]
    notable = bad + [node for node in found if node.risen and node not in bad]
    lines = [f"{counted(len(runs), 'run')}, {names[0]} to {names[-1]}: {counted(len(found), 'node')}"]
    for node in notable[:MAX_LINES]:
        last = (
            f"last passed {node.last_passed[:16].replace('T', ' ')}" if node.last_passed else "never passed"
        )
        failed = f", failed {node.failures} of {len(node.marks)} times" if node.failures else ""
        flaps = ", flaps" if node.flaps else ""
        changed = f"; since then: {'; '.join(node.changed[:3])}" if node.changed else ""
        risen = f"; in these runs: {'; '.join(node.risen[:3])}" if node.risen else ""
        lines.append(f"{node.node} {node.marks} {last}{failed}{flaps}{changed}{risen}")
    if more := notable[MAX_LINES:]:
        lines.append(f"… and {counted(len(more), 'more node')} that did not pass every run")
    missing = [node.node for node in found if set(node.marks) == {"p", "-"}]
    lines.append(f"{counted(len(found) - len(bad) - len(missing), 'node')} passed every time")
    if missing:
        who = NodeSetFormatter(missing).brief(missing)
        lines[-1] += f"; {counted(len(missing), 'node')} passed, but not in every run: {who}"
    return "".join(f"{sanitise(line)}\n" for line in lines)
