"""The values that a comparison of two reports consists of, and what it exits with."""

from __future__ import annotations

from dataclasses import dataclass

from gpuipc_doctor.comparison.check_changes import CheckChange, Turn
from gpuipc_doctor.comparison.devices import Fate, Match
from gpuipc_doctor.comparison.inventory_changes import Change
from gpuipc_doctor.comparison.speed import Pace, Speeds
from gpuipc_doctor.model import Exit, Relation, Status, Tier

MEANINGS = {
    Exit.OK: "nothing is worse, slower or no longer tested",
    Exit.INTERNAL: "gpuipc-doctor itself failed",
    Exit.USAGE: "the command line is wrong, or a file is no report",
    Exit.NOTHING: "one of the reports asked about GPUs and no probe ran, so there is nothing to compare",
    Exit.WARN: "something is slower, or is a WARN that was none",
    Exit.ERROR: "something that was tested no longer is (ERROR, SKIP, not run, a GPU that is gone)",
    Exit.FAIL: "something fails that did not",
}


@dataclass(frozen=True, slots=True)
class Side:
    """Which report one side is of."""

    host: str
    started: str
    tier: Tier
    tool_version: str
    simulated: str
    interrupted: bool
    probes_run: int
    nothing_tested: bool
    repetitions: int


@dataclass(frozen=True, slots=True)
class IssueChange:
    """A known issue whose relation to the node has changed; None where it had none."""

    issue: str
    title: str
    before: Relation | None
    after: Relation | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two reports say when held against each other."""

    before: Side
    after: Side
    notes: tuple[str, ...]
    """What makes them hard to compare."""
    inventory: tuple[Change, ...]
    devices: tuple[Match, ...]
    verdicts: tuple[CheckChange, ...]
    issues: tuple[IssueChange, ...]
    speeds: Speeds
    tolerance: float

    def turned(self, turn: Turn) -> list[CheckChange]:
        return [verdict for verdict in self.verdicts if verdict.turn is turn]

    @property
    def exit_code(self) -> Exit:
        worse = {verdict.after for verdict in self.turned(Turn.WORSE)}
        if Status.FAIL in worse:
            return Exit.FAIL
        if self.before.nothing_tested or self.after.nothing_tested:
            return Exit.NOTHING
        if self.turned(Turn.NO_LONGER_TESTED) or any(match.fate is Fate.GONE for match in self.devices):
            return Exit.ERROR
        return Exit.WARN if worse or self.speeds.of(Pace.SLOWER) else Exit.OK
