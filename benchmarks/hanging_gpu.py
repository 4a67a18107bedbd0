"""Run the prolog on all simulated nodes with a GPU that hangs, and on healthy slow ones; prints Markdown.

    python -m benchmarks.hanging_gpu [--at-once 3] [--only NAME]... [--busy N] [--json FILE]

The nodes are those of tests/hanging_gpu_nodes.py. Most of the time is waiting, so several run ``--at-once``.
``--busy`` adds processes that keep a processor busy. Exits with 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hanging_gpu_nodes import (
    BUDGETS,
    CALLS,
    DEADLINES,
    HangingNode,
    Job,
    SlowNode,
    answers,
    hanging,
    jobs,
    mistakes,
    slow,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A node, what was said before its jobs, what was wrong with that, and the load meanwhile."""

    node: HangingNode | SlowNode
    said: Sequence[Job]
    wrong: Sequence[str]
    load: float

    @property
    def verdict(self) -> str:
        """The jobs' statuses, such as ``ERROR, FAIL``."""
        return ", ".join(job.status for job in self.said)


def measure(node: HangingNode | SlowNode) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        if isinstance(node, HangingNode):
            said = answers(node, Path(directory))
            wrong = mistakes(node, said, is_idle=False)
        else:
            said = list(jobs(node, Path(directory)))
            wrong = [job.line for job in said if job.exit_code or job.failed or "FAIL" in job.line]
    row = Row(node, said, wrong, os.getloadavg()[0])
    print(f"{'WRONG' if wrong else 'right'} {node}: {row.verdict}", file=sys.stderr, flush=True)
    return row


@contextmanager
def busy(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def table(rows: Sequence[Row]) -> Iterator[str]:
    """For each call, budget and deadline: how many nodes were drained at which job, or said ``ERROR`` by
    `check`."""
    yield "| call | budget, s | deadline 2 s | 5 s | 10 s |"
    yield "|---|---|---|---|---|"
    for call in CALLS:
        for budget_s in BUDGETS:
            cells = []
            for deadline_s in DEADLINES:
                counts = Counter(
                    row.verdict
                    for row in rows
                    if isinstance(row.node, HangingNode)
                    and (row.node.call, row.node.budget_s, row.node.deadline_s)
                    == (call, budget_s, deadline_s)
                )
                cells.append("; ".join(f"{count} × {said}" for said, count in counts.most_common()))
            yield f"| {call} | {budget_s:g} | {' | '.join(cells)} |"


def of_slow(rows: Sequence[Row]) -> Iterator[str]:
    yield "| healthy node, 7 s for each GPU | jobs | seconds |"
    yield "|---|---|---|"
    for row in rows:
        if isinstance(row.node, SlowNode):
            yield f"| {row.node} | {row.verdict} | {', '.join(f'{job.seconds:.0f}' for job in row.said)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    nodes = [node for node in (*hanging(), *slow()) if not chosen.only or str(node) in chosen.only]
    with busy(chosen.busy), ThreadPoolExecutor(chosen.at_once) as pool:
        rows = list(pool.map(measure, nodes))
    wrong = [f"- {row.node}: {said}" for row in rows for said in row.wrong]
    loads = [row.load for row in rows]
    print(f"{len(rows)} nodes, load {min(loads):.0f} to {max(loads):.0f}, {len(wrong)} wrong answers.\n")
    print("\n".join((*table(rows), "", *of_slow(rows), "", *wrong)))
    if chosen.json:
        plain = [(str(row.node), row.verdict, [job.seconds for job in row.said], row.wrong) for row in rows]
        chosen.json.write_text(json.dumps(plain))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
