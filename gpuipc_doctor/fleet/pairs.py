"""Try nodes two by two, in the rounds that `partners` plans, and say who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.fleet.ask import LaunchOptions, Target, ask
from gpuipc_doctor.fleet.pair_runs import Outcome, Pair, Run
from gpuipc_doctor.fleet.partners import Blame, blame, next_round
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.fleet.switches import Topology
from gpuipc_doctor.model import Report, Status
from gpuipc_doctor.report import report_json

CHECK = "mpi-small-message"
BETWEEN = "between nodes"
"""What the names of probes hold, of any check, whose processes are on two nodes."""


@dataclass
class Rounds:
    """What was run so far, and the reports of the pairs that failed."""

    runs: list[list[Run]] = field(default_factory=list)
    failed: dict[Pair, Report] = field(default_factory=dict)
    silent: dict[Pair, str] = field(default_factory=dict)
    """Of the pairs that gave no answer, why."""


@dataclass
class _Round:
    """Takes in the answers of one round."""

    told: Rounds
    pairs: dict[str, Pair]
    progress: Callable[[int, int], None]
    runs: list[Run] = field(default_factory=list)

    def started(self, name: str) -> None:
        self.progress(len(self.runs), len(self.pairs))

    def finished(self, report: NodeReport, full: bytes) -> None:
        pair = self.pairs[report.node]
        outcome = Outcome.SILENT
        if report.state in (State.REPORTED, State.UNTESTED):  # without MPI no GPU has a part in it
            answer = report_json.loads(full.decode(errors="replace"))
            outcome = outcome_of(answer)
            if outcome is Outcome.FAIL:
                self.told.failed[pair] = answer
        if outcome is Outcome.SILENT:
            self.told.silent[pair] = report.reason or "the check says nothing of two nodes"
        self.runs.append(Run(pair, outcome))
        self.progress(len(self.runs), len(self.pairs))


def try_all(
    nodes: Sequence[str],
    way: LaunchOptions,
    progress: Callable[[int, int], None],
    topology: Topology,
    *,
    across: bool = False,
) -> tuple[Blame, Rounds]:
    """Run the rounds that are needed; ``progress`` is told of each run that ends."""
    told = Rounds()
    while pairs := next_round(nodes, told.runs, across=across, topology=topology):
        named = {f"{one}+{other}": (one, other) for one, other in pairs}
        listener = _Round(told, named, progress)
        ask([_target(name, pair) for name, pair in named.items()], way, listener)
        told.runs.append(listener.runs)
    return blame(nodes, told.runs, topology), told


def _target(name: str, pair: Pair) -> Target:
    """The first of the two supervises; a pair that hangs ends at its deadline, and holds up nobody else."""
    one, other = pair
    return Target(name, one, arguments(other), uses=pair)


def arguments(partner: str) -> tuple[str, ...]:
    """What `check` is told on the first of a pair."""
    return (CHECK, "--partner", partner, "--no-workarounds", "--json")


def outcome_of(report: Report) -> Outcome:
    """What a report says of the two nodes together: nothing, where no probe ran between them to its end.

    Of the checks that were asked for beside `CHECK` a SKIP is no loss where others of their probes passed:
    they try what libraries there are. Without an MPI, they alone tell.
    """
    told: dict[str, set[Status]] = {}
    for result in report.results:
        if BETWEEN in result.probe:
            told.setdefault(result.check, set()).add(result.finding.status)
    if any(Status.FAIL in statuses for statuses in told.values()):
        return Outcome.FAIL
    passed = {Status.PASS, Status.WARN}
    decisive = told.get(CHECK) or set().union(*told.values()) - {Status.SKIP}
    return Outcome.PASS if decisive and decisive <= passed else Outcome.SILENT
