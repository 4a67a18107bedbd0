"""Test pairs of nodes in the rounds planned by `partners`, to find bad nodes and links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.fleet.ask import LaunchOptions, Target, ask
from gpuipc_doctor.fleet.crossings import Outcome, Pair, Run, Topology
from gpuipc_doctor.fleet.partners import Blame, blame, next_round
from gpuipc_doctor.fleet.summary import NodeReport, State
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report_types import Report

BETWEEN = "between nodes"
"""Part of the name of every probe that runs on two nodes, in all checks."""


@cache
def check_of_messages() -> str:
    """Id of the check that sends messages between the ranks of two nodes."""
    loaded = (item.check for item in loader.load() if isinstance(item, LoadedCheck))
    return next(check.id for check in loaded if check.across and check.needs_mpi)


@dataclass
class Rounds:
    """The runs so far, and the reports of failed pairs."""

    runs: list[list[Run]] = field(default_factory=list)
    failed: dict[Pair, Report] = field(default_factory=dict)
    silent: dict[Pair, str] = field(default_factory=dict)
    """Pair without an answer → reason."""


@dataclass
class _Round:
    told: Rounds
    pairs: dict[str, Pair]
    progress: Callable[[int, int], None]
    runs: list[Run] = field(default_factory=list)

    def started(self, name: str) -> None:
        self.progress(len(self.runs), len(self.pairs))

    def finished(self, report: NodeReport, full: bytes) -> None:
        pair = self.pairs[report.node]
        outcome = Outcome.SILENT
        if report.state in (State.REPORTED, State.UNTESTED):  # without MPI, no GPU is involved
            answer = report_json.loads(full.decode(errors="replace"))
            outcome = outcome_of(answer)
            if outcome is Outcome.FAIL:
                self.told.failed[pair] = answer
        if outcome is Outcome.SILENT:
            self.told.silent[pair] = report.reason or "the check has no result between two nodes"
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
    """Run as many rounds as needed; ``progress`` is called after each run."""
    told = Rounds()
    while pairs := next_round(nodes, told.runs, across=across, topology=topology):
        named = {f"{one}+{other}": (one, other) for one, other in pairs}
        listener = _Round(told, named, progress)
        # A pair that hangs ends at its deadline and delays no other.
        ask(
            [Target(name, one, arguments(other), (one, other)) for name, (one, other) in named.items()],
            way,
            listener,
        )
        told.runs.append(listener.runs)
    return blame(nodes, told.runs, topology), told


def arguments(partner: str) -> tuple[str, ...]:
    """Options of `check` on the first node of a pair."""
    return (check_of_messages(), "--partner", partner, "--no-workarounds", "--json")


def outcome_of(report: Report) -> Outcome:
    """A report's result for the pair; `Outcome.SILENT` if no probe between the nodes completed.

    A FAIL of any check counts. Otherwise the result is that of `check_of_messages`. If this check did not run
    (no MPI), the results of the other checks count, except SKIPs.
    """
    told: dict[str, set[Status]] = {}
    for result in report.results:
        if BETWEEN in result.probe:
            told.setdefault(result.check, set()).add(result.finding.status)
    if any(Status.FAIL in statuses for statuses in told.values()):
        return Outcome.FAIL
    passed = {Status.PASS, Status.WARN}
    decisive = told.get(check_of_messages()) or set().union(*told.values()) - {Status.SKIP}
    return Outcome.PASS if decisive and decisive <= passed else Outcome.SILENT
