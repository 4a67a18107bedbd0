"""Run the conformance suite on simulated and on AMD's own runtimes; print the rows in which they differ.

    python -m tests.conformance.diff [TEST…]

A row is a test with its case, a column is a ground (`tests.conformance.conftest.grounds`). A cell has the
outcome, with the documented answer in brackets. A row differs if two grounds of one generation differ.
Differences in `departures.SEEN` are expected; with any other, the exit code is 1. Rows that only simulated
runtimes have (`tests.conformance.conftest.on_simulated`) are not compared.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

import pytest

from gpuipc_doctor.worker.backends.rules import VALUES
from tests.conformance.conftest import SIMULATED_HIP
from tests.kfd import emulated

SIMULATED = ("hip-as-5", "hip", "hip-as-7")

_NAME = re.compile(
    r"(?P<test>[^\[]+)\[(?P<before>(?:[^\]]+?-)?)(?P<ground>hip(?:-as-\d|-on-rocm-[\d.]+)?)"
    r"(?P<case>-[^\]]*)?\](?:@.*)?$"
)
_ANSWER = re.compile(rf"-(?P<answer>{'|'.join(sorted(VALUES))})$")


def cell(nodeid: str) -> tuple[str, str, str] | None:
    """The row, its ground and the answer documented for it; None for a test without grounds."""
    name = _NAME.match(nodeid.rpartition("/")[2])
    if name is None:
        return None
    case = name["case"] or ""
    answer = _ANSWER.search(case)
    parts = (name["test"], name["before"], case[: answer.start()] if answer else case)
    row = "-".join(filter(None, (part.strip("-") for part in parts)))
    return row, name["ground"], answer["answer"] if answer else ""


class Outcomes:
    """A pytest plug-in that collects the outcome of each test on each of HIP's grounds."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = defaultdict(dict)
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = cell(report.nodeid)
        if found is None or (report.when != "call" and report.passed):
            return
        row, ground, answer = found
        why = getattr(report, "wasxfail", "")
        outcome = "departs" if why and not report.failed else report.outcome
        if outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
        self.rows[row][ground] = outcome + (f" ({answer})" if answer else "")
        if why:
            self.reasons[f"{row}, {ground}"] = why

    @property
    def grounds(self) -> list[str]:
        seen = {ground for cells in self.rows.values() for ground in cells}
        return [*(ground for ground in SIMULATED if ground in seen), *sorted(seen.difference(SIMULATED))]

    @property
    def compared(self) -> dict[str, dict[str, str]]:
        """The rows that ran on one of AMD's own runtimes."""
        return {row: cells for row, cells in self.rows.items() if set(cells).difference(SIMULATED)}

    def differing(self) -> dict[str, dict[str, str]]:
        """The rows in which grounds of one generation differ; a missing cell counts as a different answer."""
        generations = {generation_of(ground) for ground in self.grounds}
        alike = [
            [ground for ground in self.grounds if generation_of(ground) == generation]
            for generation in generations
        ]
        return {
            row: cells
            for row, cells in sorted(self.compared.items())
            if any(len({cells.get(ground) for ground in grounds}) > 1 for grounds in alike)
        }


def generation_of(ground: str) -> int:
    """The generation in a ground's name: 5 for ``hip-on-rocm-5.7``."""
    found = re.search(r"-(\d)", ground)
    return int(found[1]) if found else SIMULATED_HIP


def table(outcomes: Outcomes) -> str:
    """The differing rows in Markdown, followed by the reasons."""
    grounds, rows = outcomes.grounds, outcomes.differing()
    head = f"| {len(rows)} of {len(outcomes.compared)} rows differ | {' | '.join(grounds)} |"
    lines = [head, "|---" * (len(grounds) + 1) + "|"]
    lines += [
        f"| {row} | {' | '.join(cells.get(ground, '–') for ground in grounds)} |"
        for row, cells in rows.items()
    ]
    lines += ["", *(f"- {where}: {why}" for where, why in sorted(outcomes.reasons.items()))]
    return "\n".join(lines) + "\n"


def main() -> None:
    outcomes = Outcomes()
    asked = sys.argv[1:] or ["tests/conformance"]
    options = ["-q", "--no-header", "-n", "2", "--dist", "loadgroup", "-m", "hip", "-p", "no:cacheprovider"]
    code = pytest.main([*asked, *options], plugins=[outcomes])
    for runtime in emulated.chosen_runtimes():
        sys.stdout.write(emulated.versions(runtime) + "\n")
    sys.stdout.write("\n" + table(outcomes))
    sys.exit(int(code))


if __name__ == "__main__":
    main()
