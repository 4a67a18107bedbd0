"""The second look at a probe that hung or crashed: once for each kind, and what it adds to the finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor import loader, louder
from gpuipc_doctor.api import Finding, Probe, ProbeOutcome
from gpuipc_doctor.model import Ending, Launch, Result, RoleOutcome
from gpuipc_doctor.plan import PlannedProbe
from gpuipc_doctor.runner import Runner

FILE = Path(__file__).parent.parent / "fixtures" / "ranks.py"
CHECK: Any = loader.module(FILE).CHECK  # type: ignore[attr-defined]
LOUDER = {"FI_LOG_LEVEL": "info", "UCX_LOG_LEVEL": "info"}
AGAIN = "Run again with FI_LOG_LEVEL=info UCX_LOG_LEVEL=info: "


def outcome(*log: str, call: str = "MPI_Recv", ending: Ending = Ending.HUNG) -> ProbeOutcome:
    roles = {
        "rank 0": RoleOutcome("rank 0", Ending.STOPPED, log_tail=("rank 0 is fine",)),
        "rank 1": RoleOutcome("rank 1", ending, operation=call, log_tail=log),
    }
    blamed = None if ending is Ending.COMPLETED else "rank 1"
    return ProbeOutcome("", (), {}, roles, blamed, 1.0, deadline_s=10.0)


class Rehearsal(Runner):
    """Answers instead of running, and remembers the environment."""

    answer: ProbeOutcome | str
    launches: list[Launch]

    def rehearse(self, planned: PlannedProbe) -> ProbeOutcome | str:
        assert planned.probe.launch is not None
        self.launches.append(planned.probe.launch)
        return self.answer


def heard(answer: ProbeOutcome | str, *failed: ProbeOutcome) -> tuple[Rehearsal, list[tuple[str, ...]]]:
    """The runner after it has listened, and the evidence of each failure."""
    nothing: Any = None
    runner = Rehearsal(nothing, nothing, until=0.0)
    runner.answer, runner.launches = answer, []
    planned = PlannedProbe(CHECK, FILE, Probe("", {}, launch=Launch(("mpiexec",), {"FI_LOG_LEVEL": "warn"})))
    for one in failed:
        runner.failed.append((planned, one))
        roles = (one.roles["rank 1"], one.roles["rank 0"])
        runner.results.append(Result("ranks", Finding.fail("it failed"), roles=roles))
    louder.listen(runner, LOUDER)
    return runner, [result.finding.evidence for result in runner.results]


QUIET = "libfabric:7:1::core: a line at 0x10"


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        (
            outcome("libfabric:8:2::core: a line at 0x2f", "why it failed", "more, of no weight"),
            (f"{AGAIN}the same, and now it says", "rank 1: why it failed"),
        ),
        (
            outcome("inserting an address"),
            (f"{AGAIN}the same, and now it says", "rank 1: inserting an address"),
        ),
        (outcome(QUIET), (f"{AGAIN}the same, and it says no more",)),
        (outcome(ending=Ending.COMPLETED), (f"{AGAIN}went through that time",)),
        (outcome(call="MPI_Send"), (f"{AGAIN}rank 1: MPI_Send #0 hung (10 s)",)),
        (
            "budget; run it alone",
            ("Not run again with FI_LOG_LEVEL=info UCX_LOG_LEVEL=info: budget; run it alone",),
        ),
    ],
)
def test_what_the_second_run_adds(answer: ProbeOutcome | str, evidence: tuple[str, ...]) -> None:
    runner, [told] = heard(answer, outcome(QUIET))
    assert told == evidence
    assert [launch.env for launch in runner.launches] == [LOUDER]


def test_each_kind_of_failure_is_listened_to_once() -> None:
    failures = outcome("a"), outcome("b"), outcome("c", call="MPI_Waitall")
    runner, evidence = heard("budget", *failures)
    assert len(runner.launches) == 2
    assert [bool(lines) for lines in evidence] == [True, False, True]


def test_what_was_told_at_first_is_not_told_again_for_want_of_more() -> None:
    _, [evidence] = heard(outcome("error 8: no", "an address"), outcome("error 7: no"))
    assert evidence == (f"{AGAIN}the same, and it says no more",)
