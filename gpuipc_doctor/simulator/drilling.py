"""Runs of the checks on a profile: which profiles, with which request, and what the profile lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuipc_doctor.report import exits
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.simulator import drill
from gpuipc_doctor.simulator.drill import Row
from gpuipc_doctor.simulator.profile import Expectation, Expected, Profile

FABRIC = ("fabric-info", "fabric-small-message")
"""Checks to run on a simulated fabric if the profile expects no finding."""

GROWTH = ("mpi-cache-growth",)
"""Checks to run with a simulated MPI if the profile expects no finding."""


COLLECTIVES = ("collective-data", "collective-speed", "collective-start")
"""Checks to run on a node with a simulated NCCL or RCCL."""

LOSE_DEVICE = "lose-device"
"""Effect of a fault that only later processes see; a run of the check alone does not find the fault."""


@dataclass(frozen=True, slots=True)
class Drill:
    """A run of a profile on a backend, and its result."""

    profile: str
    backend: str
    verdict: drill.DrillResult
    seconds: float


class Task(NamedTuple):
    name: str
    stated: Profile
    backend: str
    mpi_lib: str | None
    check: str | None
    """The only check to run; None: all."""


Run = Callable[[Task], tuple[Report, float]]
"""Runs the checks of a task; returns the report and the seconds that it took."""


def drilled(run: Run, task: Task) -> tuple[Drill, set[Expected]] | None:
    """Run a drill; returns its result and the expectations that the profile lacks; None if interrupted."""
    report, seconds = run(task)
    if report.interrupted:
        return None
    found, expected = drill.rows(report), task.stated.expect[task.backend]
    code = exits.code(drill.of_the_profile(report))
    if task.check:
        found = [row for row in found if row.check == task.check]
        code = expected.exit_code  # findings that one check alone does not decide
    verdict = drill.judge(expected, found, code)
    for given_up in verdict.given_up:
        alone, more = run(task._replace(check=given_up))
        own = expected.of(given_up)
        verdict = verdict.with_rerun(drill.judge(own, drill.rows(alone), own.exit_code))
        seconds += more
    return Drill(task.stated.name, task.backend, verdict, seconds), set(_as_expected(expected, found))


def request(stated: Profile, backend: str, mpi_lib: str | None, check: str | None) -> Request:
    """The request: every check, as in ``check --all --simulate``, or only ``check``.

    With faults of MPI or libfabric, only the checks that must find them run, since each libfabric message is
    a separate process. With faults of the driver or of libfabric alone, MPI is not used: libraries react
    differently to driver faults, and MPI would use the programs on this machine's ``PATH``. On a node
    with NCCL or RCCL, only the checks of collectives run: its drivers are healthy.
    """
    asked = Request(backend=backend, deadline_s=stated.deadline_s)
    if stated.needs_mpi or stated.needs_fabric:
        silent = GROWTH if stated.needs_mpi else FABRIC
        asked = replace(asked, checks=stated.expect[backend].checks or silent)
    if stated.has_collectives:
        asked = replace(asked, checks=COLLECTIVES)
    if check:
        asked = replace(asked, checks=(check,))
    if stated.needs_mpi or not (stated.faults or stated.needs_fabric or stated.has_collectives):
        asked = replace(asked, mpi_lib=mpi_lib, workarounds=False)
    return asked


def that_concern(check: str, asked: Mapping[str, Profile], healthy: Report) -> dict[str, Profile]:
    """Profiles on which this check may report something: profiles without faults, with a fault in a call of
    the check, or with an expected finding of the check. ``healthy``: a report of the check without faults."""
    makes = {call for call, checks in drill.callers(healthy).items() if check in checks}

    def concerns(stated: Profile) -> bool:
        is_faulty = stated.faults or stated.collective_faults
        if not is_faulty or makes & {fault["call"] for fault in stated.faults}:
            return True
        is_expected = any(check in expected.checks for expected in stated.expect.values())
        return is_expected and all(fault["do"] != LOSE_DEVICE for fault in stated.faults)

    return {name: stated for name, stated in asked.items() if concerns(stated)}


def of_check(check: str, asked: Mapping[str, Profile]) -> dict[str, Profile]:
    """The profiles, each with the expectations for this check only."""
    return {
        name: replace(stated, expect={on: expected.of(check) for on, expected in stated.expect.items()})
        for name, stated in asked.items()
    }


def _as_expected(expectation: Expectation, found: Sequence[Row]) -> Iterator[Expected]:
    """Expectations that would cover a profile's unexpected findings."""
    for row in drill.invented(expectation, found):
        yield Expected(row.check, row.status, key=row.key)
