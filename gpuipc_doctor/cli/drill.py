"""``gpuipc-doctor drill``: run the checks on simulated faults and show what they catch, miss and invent."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import click

from gpuipc_doctor.cli import bindings, options
from gpuipc_doctor.cli.bindings import BINDINGS
from gpuipc_doctor.cli.progress import progress
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
"""The checks of a healthy node whose matter is the fabric."""

GROWTH = ("mpi-cache-growth",)
"""The check of a node on which a fault of MPI is none: memory that is taken, and no more of it."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One profile, run on one backend, and what came of it."""

    profile: str
    backend: str
    verdict: drill.DrillResult
    seconds: float


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option("--backend", type=options.Choice(list(BINDINGS)), help="Drill this one only.  [default: both]")
@click.option(
    "--check", metavar="ID", help="Drill this check alone, on the nodes with faults of calls that it makes."
)
@click.option(
    "--update",
    is_flag=True,
    help="With --check: add its unexpected findings to the profiles' `expect`. Review the diff.",
)
@click.option(
    "--mpi-lib",
    callback=options.mpi_library,
    metavar="FILE",
    help="Also drill MPI faults in ranks of this library, and healthy nodes for false alarms.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, metavar="N", help="Run every drill so often.  [default: 1]"
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

    PROFILE is the name of a simulated node or your own YAML file; without one, all that come with
    gpuipc-doctor are run, which takes minutes. Nothing touches a real GPU. A FAIL that no profile states and
    that blames the very call that has a fault is let off, and counted. The exit code is 0 when all was
    found that the profiles state, and nothing else; 11 when that is so, but a PROFILE that was named could
    not be run; otherwise 12.
    """
    asked = {name: profile.load(name) for name in profiles or profile.names()}
    lends = "fi_pingpong" in fabric_programs.here()
    for name, stated in asked.items():
        if not stated.expect:
            raise click.BadParameter(f"{name} does not say what to 'expect'", param_hint="PROFILE")
        if stated.needs_mpi and name in profiles and not mpi_lib:
            raise click.UsageError(f"{name} has faults of MPI; name a library with --mpi-lib", ctx)
        if stated.needs_fabric and name in profiles and not lends:
            says = f"{name} lends fi_pingpong, and there is none on PATH; on Debian, install libfabric-bin"
            raise click.UsageError(says, ctx)
    if update and not check:
        raise click.UsageError("--update writes what one check says; name it with --check", ctx)
    asked = {
        name: stated
        for name, stated in asked.items()
        if (mpi_lib or not stated.needs_mpi) and (lends or not stated.needs_fabric)
    }
    backends = [backend] if backend else _usable_backends()
    not_run = _not_run(asked, backends) if profiles else {}
    if check:
        asked = _of(check, asked if profiles else _that_concern(check, asked))
    todo = [(name, stated, on) for name, stated in asked.items() for on in stated.expect if on in backends]
    table = _Table(list(asked.values()))
    done: list[Drill] = []
    unstated: dict[str, dict[str, set[Expected]]] = {}
    if not as_json:
        click.echo("\n".join(table.head()))
    interrupted = False
    for name, stated, on in todo:
        runs: list[Drill] = []
        while len(runs) < repeat and not interrupted:
            report, seconds = _run(name, stated, on, mpi_lib, check)
            if interrupted := report.interrupted:
                break
            found, expected = drill.rows(report), stated.expect[on]
            code = exits.code(drill.of_the_profile(report))
            if check:
                found = [row for row in found if row.check == check]
                code = expected.exit_code  # over which one check alone does not decide
            verdict = drill.judge(expected, found, code)
            for given_up in verdict.given_up:
                alone, more = _run(name, stated, on, mpi_lib, given_up)
                own = expected.of(given_up)
                verdict = verdict.with_rerun(drill.judge(own, drill.rows(alone), own.exit_code))
                seconds += more
            runs.append(Drill(stated.name, on, verdict, seconds))
            unstated.setdefault(name, {}).setdefault(on, set()).update(_as_expected(expected, found))
        done += runs
        if runs and not as_json:
            click.echo("\n".join(table.row(stated, runs)))
        if interrupted:
            break
    left = len(todo) * repeat - len(done)
    click.echo(_as_json(done, left, not_run) if as_json else "\n".join(table.foot(done, left, not_run)))
    if interrupted:
        ctx.exit(Exit.INTERRUPTED)
    if update:
        left_out = [name for name, by_backend in unstated.items() if not _update(name, by_backend)]
        missed = any(one.verdict.missed for one in done)
        ctx.exit(Exit.FAIL if left_out or missed else Exit.ERROR if not_run else Exit.OK)
    if not_run and (_all_good(done) or not todo):
        ctx.exit(Exit.ERROR)
    ctx.exit(Exit.OK if _all_good(done) else Exit.FAIL)


def _all_good(done: Sequence[Drill]) -> bool:
    return bool(done) and all(one.verdict.good for one in done)


def _usable_backends() -> list[str]:
    """Those whose binding is installed; says of the others that they are left out."""
    usable = bindings.usable()
    for backend, (_, package) in BINDINGS.items():
        if backend not in usable:
            click.echo(f"gpuipc-doctor: {backend} is left out: {package} is not installed", err=True)
    return list(usable)


def _not_run(asked: Mapping[str, Profile], backends: Collection[str]) -> dict[str, str]:
    """The profiles that can be run on none of these backends, and why not."""
    return {
        stated.name: "; ".join(
            f"it is of {on}, and {BINDINGS[on][1]} is not installed"
            if on not in bindings.usable()
            else f"it is of {on}, which --backend leaves out"
            for on in stated.expect
        )
        for stated in asked.values()
        if not set(stated.expect) & set(backends)
    }


def _that_concern(check: str, asked: Mapping[str, Profile]) -> dict[str, Profile]:
    """The nodes on which this check may say something: with faults of calls that it makes, or with none.

    Raises `UnknownName` for a check that does not exist.
    """
    request = Request(checks=(check,))
    with options.node("healthy-both") as node, progress() as watcher:
        healthy = engine.run(request, SiteConfig(), node, watcher)
    makes = {call for call, checks in drill.callers(healthy).items() if check in checks}
    return {
        name: stated
        for name, stated in asked.items()
        if not stated.faults
        or makes & {fault["call"] for fault in stated.faults}
        or any(check in expected.checks for expected in stated.expect.values())
    }


def _of(check: str, asked: Mapping[str, Profile]) -> dict[str, Profile]:
    """The profiles with what they expect of this check alone."""
    return {
        name: replace(stated, expect={on: expected.of(check) for on, expected in stated.expect.items()})
        for name, stated in asked.items()
    }


def _as_expected(expectation: Expectation, found: Sequence[Row]) -> Iterator[Expected]:
    """What a profile would have to state of the complaints that it does not expect."""
    for row in drill.invented(expectation, found):
        yield Expected(row.check, row.status, key=row.key)


def _update(name: str, unstated: Mapping[str, set[Expected]]) -> bool:
    """Write into the profile what the check says on each backend; whether there was a place for it."""
    everywhere = set.intersection(*unstated.values())
    alone = {replace(one, backend=on) for on, found in unstated.items() for one in found - everywhere}
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


def _run(
    name: str, stated: Profile, backend: str, mpi_lib: str | None, check: str | None
) -> tuple[Report, float]:
    """One run on that node; its report and seconds."""
    started = time.monotonic()
    request = _request(stated, backend, mpi_lib, check)
    with options.node(name) as node, progress() as watcher:
        report = engine.run(request, SiteConfig(memory=stated.memory), node, watcher)
    return report, time.monotonic() - started


def _request(stated: Profile, backend: str, mpi_lib: str | None, check: str | None) -> Request:
    """What is asked for: every check, as ``check --all --simulate`` runs them, or this one.

    Faults of MPI and of libfabric get the checks that must find them: each message of the latter is a process
    of its own. Faults of the driver get no MPI: what each library makes of them no profile can state. Nor do
    those of libfabric alone: with an MPI, the programs of this machine's own ``PATH`` would be asked.
    """
    request = Request(backend=backend, deadline_s=stated.deadline_s)
    if stated.needs_mpi or stated.needs_fabric:
        silent = GROWTH if stated.needs_mpi else FABRIC
        request = replace(request, checks=stated.expect[backend].checks or silent)
    if check:
        request = replace(request, checks=(check,))
    if stated.needs_mpi or not (stated.faults or stated.needs_fabric):
        request = replace(request, mpi_lib=mpi_lib, workarounds=False)
    return request


def _as_json(done: Sequence[Drill], left: int, not_run: Mapping[str, str]) -> str:
    drills = [{**asdict(one), "good": one.verdict.good} for one in done]
    good = _all_good(done) and not left and not not_run
    document = {"simulated": True, "good": good, "left": left, "not_run": not_run, "drills": drills}
    return json.dumps(document, indent=2)


class _Table:
    """A line or more for each drill, printed as it ends; then what was missed or invented, and the sum."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._page = Page(max(shutil.get_terminal_size().columns, MIN_WIDTH))
        first = max(len("profile"), *(len(stated.name) for stated in profiles))
        fixed = (4, 18, 7)
        self._widths = (first, fixed[0], self._page.width - first - sum(fixed) - 4 * 2, *fixed[1:])

    def head(self) -> list[str]:
        return ["SIMULATED", *self._line("profile", "on", "must be found", "outcome", "seconds")]

    def row(self, stated: Profile, runs: Sequence[Drill]) -> list[str]:
        """The line of one profile on one backend: its worst run, and how many were good."""
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
            (kind, f"{one.profile} on {one.backend}: {item}")
            for one in done
            for kind, items in (
                (
                    "MISSED",
                    (*one.verdict.missed, *(f"{check} did not run" for check in one.verdict.given_up)),
                ),
                ("INVENTED", one.verdict.invented),
                ("LET OFF", one.verdict.let_off),
            )
            for item in items
        )
        for (kind, text), times in told.items():
            often = f" ({times} times)" if times > 1 else ""
            lines += self._page.fill(f"{text}{often}", f"{kind:9} ", " " * 10)
        good = sum(one.verdict.good for one in done)
        let_off = sum(len(one.verdict.let_off) for one in done)
        seconds = sum(one.seconds for one in done)
        ended_early = f", {left} not run to their end" if left else ""
        ended = f"{counted(len(done), 'drill')} in {seconds:.0f} s"
        if let_off:
            lines.append(f"{counted(let_off, 'finding')} let off: no profile states it, a fault explains it")
        return [*lines, f"{ended}: {good} as stated, {len(done) - good} not{ended_early}"]

    def _line(self, *cells: str) -> list[str]:
        wrapped = [wrap(cell, width) for cell, width in zip(cells, self._widths, strict=True)]
        return list(laid_out(wrapped, self._widths))


def _outcome(verdict: drill.DrillResult) -> str:
    parts = (
        (verdict.caught, f"caught {len(verdict.caught)}"),
        (verdict.missed, f"MISSED {len(verdict.missed)}"),
        (verdict.given_up, f"NOT RUN {len(verdict.given_up)}"),
        (verdict.invented, f"INVENTED {len(verdict.invented)}"),
        (verdict.let_off, f"let off {len(verdict.let_off)}"),
    )
    return ", ".join(text for items, text in parts if items) or "nothing invented"
