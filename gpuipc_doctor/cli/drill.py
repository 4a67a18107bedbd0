"""``gpuipc-doctor drill``: run the checks on simulated faults and show what they catch, miss and invent."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.simulator import drill_content, drilling, expectations, fabric_programs, profile
from gpuipc_doctor.simulator.drill_content import Table, all_good
from gpuipc_doctor.simulator.drilling import Drill, Task
from gpuipc_doctor.simulator.profile import Expected, Profile
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise.side_by_side import side_by_side
from gpuipc_doctor.vendors import SUPPORTED, installed


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...", shell_complete=options.complete("profiles"))
@click.option(
    "--backend", type=options.Choice(list(SUPPORTED)), help="Drill only this backend.  [default: all]"
)
@click.option(
    "--check", metavar="ID", help="Drill only this check, on profiles with faults in the check's calls."
)
@click.option(
    "--update",
    is_flag=True,
    help="With --check: add the check's unexpected findings to the profiles' `expect`. Review the diff.",
)
@options.mpi_library(
    "Also simulate MPI faults in this library's ranks, and test healthy nodes for false alarms."
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
    options.require_mpi_library(mpi_lib)
    if update and not check:
        raise click.UsageError("--update needs --check", ctx)
    asked = _profiles(profiles, mpi_lib)
    backends = [backend] if backend else _usable_backends()
    not_run = _not_run(asked, backends) if profiles else {}
    if check:
        if not profiles:  # those on which this check may report something
            with options.node("healthy-both") as node, progress() as watcher:
                healthy = engine.run(Request(checks=(check,)), SiteConfig(), node, watcher)
            asked = drilling.that_concern(check, asked, healthy)
        asked = drilling.of_check(check, asked)
    tasks = [
        Task(name, stated, on, mpi_lib, check)
        for name, stated in asked.items()
        for on in stated.expect
        if on in backends
    ]
    table = Table(list(asked.values()))
    if not as_json:
        click.echo("\n".join(table.head()))
    done, unstated = _drill(tasks, repeat, None if as_json else table)
    left = len(tasks) * repeat - len(done)
    foot = (
        drill_content.as_json(done, left, not_run) if as_json else "\n".join(table.foot(done, left, not_run))
    )
    click.echo(foot)
    could = _update_all(tasks, unstated) if update else all_good(done)
    if left:
        ctx.exit(Exit.INTERRUPTED)
    if not (could or (not_run and not tasks)) or (update and any(run.verdict.missed for run in done)):
        ctx.exit(Exit.FAIL)
    ctx.exit(Exit.ERROR if not_run else Exit.OK)


def _profiles(named: Sequence[str], mpi_lib: str | None) -> dict[str, Profile]:
    """The profiles to drill: the named ones, or all that have expectations and can run here."""
    asked = {name: profile.load(name) for name in named or profile.names()}
    has_pingpong = "fi_pingpong" in fabric_programs.here()
    for name in named:
        if not asked[name].expect:
            raise click.BadParameter(f"{name} lacks the key 'expect'", param_hint="PROFILE")
        if asked[name].needs_mpi and not mpi_lib:
            raise click.UsageError(f"{name} has faults of MPI; name a library with --mpi-lib")
        if asked[name].needs_fabric and not has_pingpong:
            says = f"{name} needs fi_pingpong, which is not on PATH; on Debian, install libfabric-bin"
            raise click.UsageError(says)
    return {
        name: stated
        for name, stated in asked.items()
        if stated.expect and (mpi_lib or not stated.needs_mpi) and (has_pingpong or not stated.needs_fabric)
    }


Unstated = dict[str, dict[str, set[Expected]]]
"""Profile → backend → expectations that the profile lacks."""


def _drill(tasks: Sequence[Task], repeat: int, table: Table | None) -> tuple[list[Drill], Unstated]:
    """Run each task so many times, until interrupted; print a row for each."""
    done: list[Drill] = []
    unstated: Unstated = {}
    jobs = 1  # all checks keep the processors busy themselves
    if any(task.check for task in tasks):
        jobs = len(os.sched_getaffinity(0))
    repeated = [task for task in tasks for _ in range(repeat)]
    with side_by_side(partial(drilling.drilled, _run), repeated, jobs) as outcomes:
        for task in tasks:
            drilled = [outcome for outcome in takewhile(bool, islice(outcomes, repeat)) if outcome]
            runs = [run for run, _ in drilled]
            for _, more in drilled:
                unstated.setdefault(task.name, {}).setdefault(task.backend, set()).update(more)
            done += runs
            if runs and table:
                click.echo("\n".join(table.row(task.stated, runs)))
            if len(drilled) < repeat:
                break
    return done, unstated


def _run(task: Task) -> tuple[Report, float]:
    started = time.monotonic()
    request = drilling.request(task.stated, task.backend, task.mpi_lib, task.check)
    with options.node(task.name) as node, progress() as watcher:
        report = engine.run(request, SiteConfig(memory=task.stated.memory), node, watcher)
    return report, time.monotonic() - started


def _usable_backends() -> list[str]:
    """Backends with an installed binding; prints the names of the others."""
    usable = installed()
    for backend, vendor in SUPPORTED.items():
        if backend not in usable and not vendor.experimental:
            package = vendor.binding.package
            click.echo(f"gpuipc-doctor: {backend} is skipped: {package} is not installed", err=True)
    return list(usable)


def _not_run(asked: Mapping[str, Profile], backends: Collection[str]) -> dict[str, str]:
    """Profile → reason, for each profile that can run on none of these backends."""
    return {
        stated.name: "; ".join(
            f"the profile needs {on}, but {SUPPORTED[on].binding.package} is not installed"
            if on not in installed()
            else f"the profile needs {on}, which --backend excludes"
            for on in stated.expect
        )
        for stated in asked.values()
        if not set(stated.expect) & set(backends)
    }


def _update_all(tasks: Sequence[Task], unstated: Unstated) -> bool:
    """Add the findings of each profile of which all drills ended; returns whether all had a place."""
    drills = Counter(task.name for task in tasks)
    could = [_update(name, found) for name, found in unstated.items() if len(found) == drills[name]]
    return all(could)


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
