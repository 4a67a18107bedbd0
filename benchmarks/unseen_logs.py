"""Measure how many foreign logs `diagnose` recognises. Logs: unseen_logs.yaml; results: unseen_logs.md.

    $ python benchmarks/unseen_logs.py --copies DIR --half first --each

DIR holds a copy of each log as NAME.log. A copy that differs from the one scored before is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose.examination import Examination
from gpuipc_doctor.diagnose.readers import diagnose
from gpuipc_doctor.knownissues import Confidence

CATALOGUE = Path(__file__).with_suffix(".yaml")
SETS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth",
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """Issues recognised in one log, and the expected ones."""

    name: str
    faulty: bool
    nameable: bool
    """The lines show the cause of the fault; if not, only expected issues may be found."""
    expected: frozenset[str]
    close: frozenset[str]
    """Half correct: the component, with a less definite cause or a related issue."""
    beside: frozenset[str]
    """True remarks that neither help nor harm."""
    hints: frozenset[str]
    found: frozenset[str]
    sure: frozenset[str]
    """Found with high confidence."""
    trouble: bool
    """Error lines that match no known issue were shown."""

    @property
    def right(self) -> bool:
        if self.faulty and self.nameable:
            return bool(self.expected & (self.found | self.hints))
        return not self.found - self.expected - self.beside

    @property
    def wrong_and_sure(self) -> bool:
        return bool(self.sure - self.expected - self.close - self.beside)

    @property
    def verdict(self) -> str:
        if self.wrong_and_sure:
            return "WRONG"
        if self.right:
            return "right"
        if self.close & (self.found | self.hints):
            return "half"
        return "false" if not self.faulty else "missed"


def scores(half: str, copies: Path) -> Iterator[Score]:
    issues = knownissues.load()
    for entry in yaml.safe_load(CATALOGUE.read_text(encoding="utf-8"))["logs"]:
        if entry["half"] == half:
            yield _score(entry, copies / f"{entry['name']}.log", issues)


def _score(entry: dict[str, Any], copy: Path, issues: tuple[knownissues.KnownIssue, ...]) -> Score:
    if hashlib.sha256(copy.read_bytes()).hexdigest() != entry["sha256"]:
        raise SystemExit(f"{copy}: not the lines that {CATALOGUE.name} speaks of")
    diagnosis = diagnose([str(copy)], Examination(issues))
    by_confidence = {
        confidence: frozenset(
            issue.issue.id for issue in diagnosis.recognised if issue.confidence is confidence
        )
        for confidence in Confidence
    }
    return Score(
        entry["name"],
        entry["kind"] == "fault",
        entry.get("nameable", True),
        frozenset(entry["expect"]),
        frozenset(entry.get("close", ())),
        frozenset(entry.get("beside", ())),
        by_confidence[Confidence.LOW],
        frozenset(issue.issue.id for issue in diagnosis.found),
        by_confidence[Confidence.HIGH],
        bool(diagnosis.unknown),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=Path, required=True)
    parser.add_argument("--half", choices=SETS, required=True)
    parser.add_argument("--each", action="store_true", help="a line for each log")
    options = parser.parse_args()
    results = list(scores(options.half, options.copies))
    for result in results if options.each else ():
        said = " ".join(sorted(result.found)) or "-"
        hints = f" (hints: {' '.join(sorted(result.hints))})" if result.hints else ""
        beside = "" if result.right else f"  expected {' '.join(sorted(result.expected)) or 'nothing'}"
        print(
            f"{result.verdict:<7} {result.name:<22} {said}{hints}{beside}{', trouble shown' * result.trouble}"
        )
    for faulty, name in ((True, "faulty"), (False, "healthy or unrelated")):
        of_kind = [result for result in results if result.faulty is faulty]
        counts = Counter(result.verdict for result in of_kind)
        print(f"{name}: {counts['right']} of {len(of_kind)} right", dict(counts), file=sys.stdout)


if __name__ == "__main__":
    main()
