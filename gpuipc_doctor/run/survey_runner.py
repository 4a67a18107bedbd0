"""Run surveys, and keep what they find in the log of results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Device, Finding, Json, Status, Tier
from gpuipc_doctor.probe_types import MpiStack, ProbeOutcome
from gpuipc_doctor.report_types import CheckInfo, Result
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.conclusions import Doubt, Ended, NotRun
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.results import ResultLog
from gpuipc_doctor.run.schedule import Schedule


@dataclass(frozen=True)
class SurveyRunner:
    planner: Planner
    schedule: Schedule
    log: ResultLog

    def ask(
        self,
        check: str,
        options: Mapping[str, Json],
        devices: tuple[Device, ...],
        mpi: MpiStack | None = None,
    ) -> list[ProbeOutcome]:
        """Run the survey that this check judges, and keep its results."""
        info, asked = self.planner.survey(loader.built_in_file(check), options, devices, mpi)
        ended = self.run(asked)
        self.keep(info, asked, ended)
        return [outcome for outcome in ended.values() if isinstance(outcome, ProbeOutcome)]

    def run(self, probes: Sequence[PlannedProbe], jobs: int = 0, *, spare_s: float = 0.0) -> dict[int, Ended]:
        """Run the probes, ``jobs`` at a time, or all at once; ``spare_s``: see `Schedule.run`."""
        ended: dict[int, Ended] = {}

        def take(planned: PlannedProbe, outcome: Ended | Doubt) -> Sequence[PlannedProbe]:
            assert not isinstance(outcome, Doubt)  # no tour has been planned yet
            ended[planned.number] = outcome
            return ()

        self.schedule.run(probes, jobs or len(probes), take, spare_s=spare_s)
        return ended

    def keep(
        self,
        info: CheckInfo,
        probes: Iterable[PlannedProbe],
        ended: Mapping[int, Ended],
        unsurprising: Collection[str] = (),
    ) -> None:
        """Keep the results of a check's probes, except SKIPs of ``unsurprising`` backends.

        The probes count as a test of a GPU only if the check was selected and a GPU was found.
        """
        self.log.announce(info)
        for planned in probes:
            one = ended[planned.number]
            if isinstance(one, NotRun):
                self.log.keep_unrun(planned, one.finding, one.stopped)
                continue
            findings = conclusions.conclude(planned, one)
            if planned.probe.name in unsurprising:
                findings = [finding for finding in findings if finding.status is not Status.SKIP]
            self.log.keep(planned, one, findings)
            was_there = any(finding.status is not Status.SKIP for finding in findings)
            if was_there and info.id in self.planner.request.checks:
                self.log.count(one)

    def tell(self, info: CheckInfo, *findings: Finding) -> None:
        self.log.announce(info)
        self.log.say(*(Result(info.id, finding) for finding in findings))


def asks_foreign(tier: Tier) -> bool:
    """Whether to run libraries and programs chosen by the environment: never in a prolog, which runs as
    root."""
    return tier > Tier.PROLOG
