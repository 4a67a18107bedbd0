"""``gpuipc-doctor drill``: run the checks on simulated faults and show what they catch, miss and invent."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from typing import NamedTuple

import click

from gpuipc_doctor.cli import bindings, options
from gpuipc_doctor.cli.bindings import BINDINGS
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.cli.side_by_side import side_by_side
from gpuipc_doctor.model import Exit, Report
from gpuipc_doctor.present.terminal import MIN_WIDTH, Page, laid_out
from gpuipc_doctor.present.text import counted, wrap
from gpuipc_doctor.report import exits
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.simulator import drill, expectations, fabric_programs, profile
from gpuipc_doctor.simulator.drill import Row
from gpuipc_doctor.simulator.profile import Expectation, Expected, Profile
from gpuipc_doctor.site.config import SiteConfig

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


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option(
    "--backend", type=options.Choice(list(BINDINGS)), help="Drill only this backend.  [default: both]"
)
@click.option(
    "--check", metavar="ID", help="Drill only this check, on profiles with faults in the check's calls."
)
@click.option(
    "--update",
    is_flag=True,
    help="With --check: add the check's unexpected findings to the profiles' `expect`. Review the diff.",
)
@click.option(
    "--mpi-lib",
    callback=options.mpi_library,
    metavar="FILE",
    help="Also simulate MPI faults in this library's ranks, and test healthy nodes for false alarms.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of runs of each drill.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON instead of the table.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    profiles: tuple[str, ...],
    backend: str | None,
    check: str | None,
    update: bool,
    mpi_lib: str | None,
    repeat: int,
    as_json: bool,
) -> None:
    """Run all checks on simulated faults and show what they catch, miss and invent.

    PROFILE is the name of a simulated node or your own YAML file; without one, all shipped ones that have
    expectations are run, which takes minutes. Nothing touches a real GPU. Unexpected FAILs that name the
    faulty call are accepted; the totals count them.

    \b
    Exit codes:
      0   all expected findings, and no others
      11  the same, but a named PROFILE could not be run
      12  a finding is missing or invented
    """
    asked = {name: profile.load(name) for name in profiles or profile.names()}
    if not profiles:
        asked = {name: stated for name, stated in asked.items() if stated.expect}
    lends = "fi_pingpong" in fabric_programs.here()
    for name, stated in asked.items():
        if not stated.expect:
            raise click.BadParameter(f"{name} lacks the key 'expect'", param_hint="PROFILE")
        if stated.needs_mpi and name in profiles and not mpi_lib:
            raise click.UsageError(f"{name} has faults of MPI; name a library with --mpi-lib", ctx)
        if stated.needs_fabric and name in profiles and not lends:
            says = f"{name} needs fi_pingpong, which is not on PATH; on Debian, install libfabric-bin"
            raise click.UsageError(says, ctx)
    if update and not check:
        raise click.UsageError("--update needs --check", ctx)
    asked = {
        name: stated
        for name, stated in asked.items()
        if (mpi_lib or not stated.needs_mpi) and (lends or not stated.needs_fabric)
    }
    backends = [backend] if backend else _usable_backends()
    not_run = _not_run(asked, backends) if profiles else {}
    if check:
        asked = _of(check, asked if profiles else _that_concern(check, asked))
    todo = [
        _Task(name, stated, on, mpi_lib, check)
        for name, stated in asked.items()
        for on in stated.expect
        if on in backends
    ]
    table = _Table(list(asked.values()))
    done: list[Drill] = []
    unstated: dict[str, dict[str, set[Expected]]] = {}
    if not as_json:
        click.echo("\n".join(table.head()))
    interrupted = False
    jobs = len(os.sched_getaffinity(0)) if check else 1  # all checks keep the processors busy themselves
    with side_by_side(_drill, [task for task in todo for _ in range(repeat)], jobs) as outcomes:
        for task in todo:
            drilled = [outcome for outcome in takewhile(bool, islice(outcomes, repeat)) if outcome]
            runs = [run for run, _ in drilled]
            for _, more in drilled:
                unstated.setdefault(task.name, {}).setdefault(task.backend, set()).update(more)
            done += runs
            if runs and not as_json:
                click.echo("\n".join(table.row(task.stated, runs)))
            if interrupted := len(drilled) < repeat:
                break
    left = len(todo) * repeat - len(done)
    click.echo(_as_json(done, left, not_run) if as_json else "\n".join(table.foot(done, left, not_run)))
    if update:
        drills = Counter(task.name for task in todo)
        whole = {name: found for name, found in unstated.items() if len(found) == drills[name]}
        left_out = [name for name, by_backend in whole.items() if not _update(name, by_backend)]
    if interrupted:
        ctx.exit(Exit.INTERRUPTED)
    if update:
        missed = any(run.verdict.missed for run in done)
        ctx.exit(Exit.FAIL if left_out or missed else Exit.ERROR if not_run else Exit.OK)
    if not_run and (_all_good(done) or not todo):
        ctx.exit(Exit.ERROR)
    ctx.exit(Exit.OK if _all_good(done) else Exit.FAIL)


def _all_good(done: Sequence[Drill]) -> bool:
    return bool(done) and all(run.verdict.good for run in done)


def _usable_backends() -> list[str]:
    """Backends with an installed binding; prints the names of the others."""
    usable = bindings.usable()
    for backend, (_, package) in BINDINGS.items():
        if backend not in usable:
            click.echo(f"gpuipc-doctor: {backend} is skipped: {package} is not installed", err=True)
    return list(usable)


def _not_run(asked: Mapping[str, Profile], backends: Collection[str]) -> dict[str, str]:
    """Profile → reason, for each profile that can run on none of these backends."""
    return {
        stated.name: "; ".join(
            f"the profile needs {on}, but {BINDINGS[on][1]} is not installed"
            if on not in bindings.usable()
            else f"the profile needs {on}, which --backend excludes"
            for on in stated.expect
        )
        for stated in asked.values()
        if not set(stated.expect) & set(backends)
    }


def _that_concern(check: str, asked: Mapping[str, Profile]) -> dict[str, Profile]:
    """Profiles on which this check may report something: profiles without faults, with a fault in a call of
    the check, or with an expected finding of the check. Raises `UnknownName` for an unknown check."""
    request = Request(checks=(check,))
    with options.node("healthy-both") as node, progress() as watcher:
        healthy = engine.run(request, SiteConfig(), node, watcher)
    makes = {call for call, checks in drill.callers(healthy).items() if check in checks}

    def concerns(stated: Profile) -> bool:
        is_faulty = stated.faults or stated.collective_faults
        if not is_faulty or makes & {fault["call"] for fault in stated.faults}:
            return True
        is_expected = any(check in expected.checks for expected in stated.expect.values())
        return is_expected and all(fault["do"] != LOSE_DEVICE for fault in stated.faults)

    return {name: stated for name, stated in asked.items() if concerns(stated)}


def _of(check: str, asked: Mapping[str, Profile]) -> dict[str, Profile]:
    """The profiles, each with the expectations for this check only."""
    return {
        name: replace(stated, expect={on: expected.of(check) for on, expected in stated.expect.items()})
        for name, stated in asked.items()
    }


def _as_expected(expectation: Expectation, found: Sequence[Row]) -> Iterator[Expected]:
    """Expectations that would cover a profile's unexpected findings."""
    for row in drill.invented(expectation, found):
        yield Expected(row.check, row.status, key=row.key)


def _update(name: str, unstated: Mapping[str, set[Expected]]) -> bool:
    """Add the check's findings on each backend to the profile; returns whether that was possible."""
    everywhere = set.intersection(*unstated.values())
    alone = {
        replace(expected, backend=on) for on, found in unstated.items() for expected in found - everywhere
    }
    new = sorted(everywhere | alone, key=str)
    if not new:
        return True
    try:
        expectations.add(profile.file_of(name), new)
    except expectations.NoPlace as no_place:
        click.echo(f"gpuipc-doctor: {no_place}", err=True)
        return False
    click.echo(f"written to {profile.file_of(name)}: {', '.join(map(str, new))}")
    return True


class _Task(NamedTuple):
    name: str
    stated: Profile
    backend: str
    mpi_lib: str | None
    check: str | None


def _drill(task: _Task) -> tuple[Drill, set[Expected]] | None:
    """Run a drill; returns its result and the expectations that the profile lacks; None if interrupted."""
    name, stated, on, mpi_lib, check = task
    report, seconds = _run(name, stated, on, mpi_lib, check)
    if report.interrupted:
        return None
    found, expected = drill.rows(report), stated.expect[on]
    code = exits.code(drill.of_the_profile(report))
    if check:
        found = [row for row in found if row.check == check]
        code = expected.exit_code  # findings that one check alone does not decide
    verdict = drill.judge(expected, found, code)
    for given_up in verdict.given_up:
        alone, more = _run(name, stated, on, mpi_lib, given_up)
        own = expected.of(given_up)
        verdict = verdict.with_rerun(drill.judge(own, drill.rows(alone), own.exit_code))
        seconds += more
    return Drill(stated.name, on, verdict, seconds), set(_as_expected(expected, found))


def _run(
    name: str, stated: Profile, backend: str, mpi_lib: str | None, check: str | None
) -> tuple[Report, float]:
    started = time.monotonic()
    request = _request(stated, backend, mpi_lib, check)
    with options.node(name) as node, progress() as watcher:
        report = engine.run(request, SiteConfig(memory=stated.memory), node, watcher)
    return report, time.monotonic() - started


def _request(stated: Profile, backend: str, mpi_lib: str | None, check: str | None) -> Request:
    """The request: every check, as in ``check --all --simulate``, or only ``check``.

    With faults of MPI or libfabric, only the checks that must find them run, since each libfabric message is
    a separate process. With faults of the driver or of libfabric alone, MPI is not used: libraries react
    differently to driver faults, and MPI would use the programs on this machine's ``PATH``. On a node
    with NCCL or RCCL, only the checks of collectives run: its drivers are healthy.
    """
    request = Request(backend=backend, deadline_s=stated.deadline_s)
    if stated.needs_mpi or stated.needs_fabric:
        silent = GROWTH if stated.needs_mpi else FABRIC
        request = replace(request, checks=stated.expect[backend].checks or silent)
    if stated.has_collectives:
        request = replace(request, checks=COLLECTIVES)
    if check:
        request = replace(request, checks=(check,))
    if stated.needs_mpi or not (stated.faults or stated.needs_fabric or stated.has_collectives):
        request = replace(request, mpi_lib=mpi_lib, workarounds=False)
    return request


def _as_json(done: Sequence[Drill], left: int, not_run: Mapping[str, str]) -> str:
    drills = [{**asdict(run), "good": run.verdict.good} for run in done]
    good = _all_good(done) and not left and not not_run
    document = {"simulated": True, "good": good, "left": left, "not_run": not_run, "drills": drills}
    return json.dumps(document, indent=2)


class _Table:
    """Prints a line or more for each drill as it ends; then missed and false findings, and the totals."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._page = Page(max(shutil.get_terminal_size().columns, MIN_WIDTH))
        first = max(len("profile"), *(len(stated.name) for stated in profiles))
        fixed = (4, 18, 7)
        self._widths = (first, fixed[0], self._page.width - first - sum(fixed) - 4 * 2, *fixed[1:])

    def head(self) -> list[str]:
        return ["SIMULATED", *self._line("profile", "on", "must be found", "outcome", "seconds")]

    def row(self, stated: Profile, runs: Sequence[Drill]) -> list[str]:
        """The line of one profile on one backend: its worst run, and the number of good runs."""
        found = stated.expect[runs[0].backend].findings
        must = "; ".join(dict.fromkeys(f"{expected.check} {expected.status.value}" for expected in found))
        outcome = _outcome(min(runs, key=lambda run: run.verdict.good).verdict)
        if len(runs) > 1:
            outcome += f", {sum(run.verdict.good for run in runs)} of {len(runs)}"
        seconds = sum(run.seconds for run in runs)
        return self._line(stated.name, runs[0].backend, must or "nothing", outcome, f"{seconds:7.1f}")

    def foot(self, done: Sequence[Drill], left: int, not_run: Mapping[str, str]) -> list[str]:
        lines = [""]
        for name, why in not_run.items():
            lines += self._page.fill(f"{name}: {why}", "NOT RUN   ", " " * 10)
        told = Counter(
            (kind, f"{run.profile} on {run.backend}: {item}")
            for run in done
            for kind, items in (
                (
                    "MISSED",
                    (*run.verdict.missed, *(f"{check} did not run" for check in run.verdict.given_up)),
                ),
                ("INVENTED", run.verdict.invented),
                ("ACCEPTED", run.verdict.let_off),
            )
            for item in items
        )
        for (kind, text), times in told.items():
            often = f" ({times} times)" if times > 1 else ""
            lines += self._page.fill(f"{text}{often}", f"{kind:9} ", " " * 10)
        good = sum(run.verdict.good for run in done)
        accepted = sum(len(run.verdict.let_off) for run in done)
        seconds = sum(run.seconds for run in done)
        ended_early = f", {left} not completed" if left else ""
        ended = f"{counted(len(done), 'drill')} in {seconds:.0f} s"
        if accepted:
            lines.append(f"{counted(accepted, 'finding')} accepted: not in 'expect', but caused by a fault")
        return [*lines, f"{ended}: {good} as expected, {len(done) - good} not{ended_early}"]

    def _line(self, *cells: str) -> list[str]:
        wrapped = [wrap(cell, width) for cell, width in zip(cells, self._widths, strict=True)]
        return list(laid_out(wrapped, self._widths))


def _outcome(verdict: drill.DrillResult) -> str:
    parts = (
        (verdict.caught, f"caught {len(verdict.caught)}"),
        (verdict.missed, f"MISSED {len(verdict.missed)}"),
        (verdict.given_up, f"NOT RUN {len(verdict.given_up)}"),
        (verdict.invented, f"INVENTED {len(verdict.invented)}"),
        (verdict.let_off, f"accepted {len(verdict.let_off)}"),
    )
    return ", ".join(text for items, text in parts if items) or "nothing invented"
