"""``gpuipc-doctor drill``: run the checks on simulated faults and show what they catch, miss and invent."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest

import click

from gpuipc_doctor import drill, engine
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import progress
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.model import Report
from gpuipc_doctor.plan import Request
from gpuipc_doctor.report import exits
from gpuipc_doctor.report.page import MIN_WIDTH, Page
from gpuipc_doctor.report.text import wrap
from gpuipc_doctor.simulator import profile
from gpuipc_doctor.simulator.profile import Profile

BINDINGS = {"cuda": ("cuda", "cuda-bindings"), "hip": ("hip", "hip-python")}
"""For each backend the module that its workers import, and the package that holds it."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One profile, run on one backend, and what came of it."""

    profile: str
    backend: str
    verdict: drill.Verdict
    seconds: float


@click.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option("--backend", type=click.Choice(list(BINDINGS)), help="Drill this one only.  [default: both]")
@click.option(
    "--mpi-lib",
    metavar="FILE",
    help="Drill faults of MPI, too, in ranks that use this library, and its silence where there are none.",
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
    mpi_lib: str | None,
    repeat: int,
    as_json: bool,
) -> None:
    """Run all checks on simulated faults and show what they catch, miss and invent.

    PROFILE is the name of a simulated node or your own YAML file; without one, all that come with
    gpuipc-doctor are run, which takes minutes. Nothing touches a real GPU. The exit code is 0 when all was
    found that the profiles state, and nothing else; otherwise 12.
    """
    asked = {name: profile.load(name) for name in profiles or profile.names()}
    for name, stated in asked.items():
        if not stated.expect:
            raise click.BadParameter(f"{name} does not say what to 'expect'", param_hint="PROFILE")
        if stated.needs_mpi and name in profiles and not mpi_lib:
            raise click.UsageError(f"{name} has faults of MPI; name a library with --mpi-lib", ctx)
    asked = {name: stated for name, stated in asked.items() if mpi_lib or not stated.needs_mpi}
    backends = [backend] if backend else list(_usable_backends())
    todo = [(name, stated, on) for name, stated in asked.items() for on in stated.expect if on in backends]
    table = _Table(list(asked.values()))
    done: list[Drill] = []
    if not as_json:
        click.echo("\n".join(table.head()))
    interrupted = False
    for name, stated, on in todo:
        runs: list[Drill] = []
        while len(runs) < repeat and not interrupted:
            report, seconds = _run(name, stated, on, mpi_lib)
            if interrupted := report.interrupted:
                break
            code = exits.code(drill.of_the_profile(report))
            verdict = drill.judge(stated.expect[on], drill.rows(report), code)
            runs.append(Drill(stated.name, on, verdict, seconds))
        done += runs
        if runs and not as_json:
            click.echo("\n".join(table.row(stated, runs)))
        if interrupted:
            break
    click.echo(_as_json(done) if as_json else "\n".join(table.foot(done)))
    if interrupted:
        ctx.exit(exits.Exit.INTERRUPTED)
    ctx.exit(exits.Exit.OK if _all_good(done) else exits.Exit.FAIL)


def _all_good(done: Sequence[Drill]) -> bool:
    return bool(done) and all(one.verdict.good for one in done)


def _usable_backends() -> Iterator[str]:
    """Those whose binding is installed: the simulator stands in for a driver, not for a binding."""
    for backend, (module, package) in BINDINGS.items():
        if importlib.util.find_spec(module):
            yield backend
        else:
            click.echo(f"gpuipc-doctor: {backend} is left out: {package} is not installed", err=True)


def _run(name: str, stated: Profile, backend: str, mpi_lib: str | None) -> tuple[Report, float]:
    """One run of every check, as ``check --all --simulate`` does it; its report and seconds.

    Faults of MPI get the checks that must find them: ranks take long to start. Faults of the driver get no
    MPI: what each library makes of them no profile can state.
    """
    started = time.monotonic()
    request = Request(backend=backend, deadline_s=stated.deadline_s)
    if stated.needs_mpi:
        request = replace(request, checks=stated.expect[backend].checks)
    if stated.needs_mpi or not stated.faults:
        request = replace(request, mpi_lib=mpi_lib, workarounds=False)
    with options.node(name) as (node, remove), progress() as watcher:
        report = engine.run(request, SiteConfig(), node, watcher, remove=remove)
    return report, time.monotonic() - started


def _as_json(done: Sequence[Drill]) -> str:
    drills = [{**asdict(one), "good": one.verdict.good} for one in done]
    return json.dumps({"simulated": True, "good": _all_good(done), "drills": drills}, indent=2)


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

    def foot(self, done: Sequence[Drill]) -> list[str]:
        lines = [""]
        told = Counter(
            (kind, f"{one.profile} on {one.backend}: {item}")
            for one in done
            for kind, items in (("MISSED", one.verdict.missed), ("INVENTED", one.verdict.invented))
            for item in items
        )
        for (kind, text), times in told.items():
            often = f" ({times} times)" if times > 1 else ""
            lines += self._page.fill(f"{text}{often}", f"{kind:9} ", " " * 10)
        good = sum(one.verdict.good for one in done)
        seconds = sum(one.seconds for one in done)
        return [*lines, f"{len(done)} drills in {seconds:.0f} s: {good} as stated, {len(done) - good} not"]

    def _line(self, *cells: str) -> list[str]:
        wrapped = [wrap(cell, width) for cell, width in zip(cells, self._widths, strict=True)]
        return [
            "  ".join(f"{part:{width}}" for part, width in zip(parts, self._widths, strict=True)).rstrip()
            for parts in zip_longest(*wrapped, fillvalue="")
        ]


def _outcome(verdict: drill.Verdict) -> str:
    parts = (
        (verdict.caught, f"caught {len(verdict.caught)}"),
        (verdict.missed, f"MISSED {len(verdict.missed)}"),
        (verdict.invented, f"INVENTED {len(verdict.invented)}"),
    )
    return ", ".join(text for items, text in parts if items) or "nothing invented"
