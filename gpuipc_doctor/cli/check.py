"""``gpuipc-doctor check``: run checks, print the health matrix, and exit with the result's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import LoadedCheck
from gpuipc_doctor.cli import bindings, formats, options, saved
from gpuipc_doctor.cli.progress import Silent, progress
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files.writing import OutputFile, make_directory
from gpuipc_doctor.model import Exit, Report, Tier
from gpuipc_doctor.present.terminal import COLUMNS, table
from gpuipc_doctor.present.text import counted, fold_subjects, wrap
from gpuipc_doctor.report import exits, sentences
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.preview import Preview
from gpuipc_doctor.run.request import Request

if TYPE_CHECKING:
    from gpuipc_doctor.site.config import SiteConfig

SHOWN = {("cuda", "hip"): "healthy-both", ("cuda",): "healthy-cuda", ("hip",): "healthy-hip"}
"""Installed bindings → the simulated node to suggest."""

OF_CHECKS = ("seed", "operations")
"""Options of checks that the command line can set."""


@click.command()
@click.argument("checks", nargs=-1, metavar="[CHECK]...")
@click.option("--all", "all_checks", is_flag=True, help="Run every check of the tier.")
@click.option(
    "--tier",
    type=options.Choice([tier.label for tier in Tier]),
    help="Depth of the run: prolog (seconds), acceptance (on H200s 23 s with one GPU, 31 with two, 50 with "
    "four, 126 with eight) or soak (long).  "
    "[default: acceptance]",
)
@options.node_options
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Probe only this device: cuda:0, a uuid, or an index if only one driver is found. May be repeated.",
)
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Also print how GPUs reach each other, and how many processes ran; with --dry-run, each probe.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of the matrix.")
@click.option(
    "--summary",
    is_flag=True,
    help="Print the summary that `fleet` reads. On ERROR, FAIL or --json, the JSON report precedes it.",
)
@click.option(
    "--output", type=options.FilePath(), metavar="FILE", help="Also write the JSON report to this file."
)
@click.option(
    "--since",
    type=options.FilePath(),
    metavar="REPORT",
    help="Also print what is new since this JSON report of the node.",
)
@options.seconds("--deadline", "Time limit per operation.")
@options.seconds("--budget", "Time limit of the whole run.")
@click.option(
    "--keep-logs",
    type=options.FilePath(),
    metavar="DIR",
    help="Keep each probe's logs and stacks in this directory.",
)
@click.option(
    "--plots",
    type=options.FilePath(),
    metavar="DIR",
    help="Plot the checks' time series into this directory, as SVG and PNG.",
)
@click.option(
    "--mpi-lib", callback=options.mpi_library, metavar="FILE", help="MPI library for the MPI checks."
)
@click.option(
    "--nccl-lib",
    callback=options.nccl_library,
    metavar="FILE",
    help="NCCL or RCCL library for the collective checks.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="TIMES",
    help="Repeat every probe, to find intermittent faults and to make `compare` reliable.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Number of nodes; with 2, also test messages and fabric handles between them.",
)
@click.option("--partner", metavar="NODE", help="Exchange messages only with NODE.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of random histories  [default: fixed; in soak, from host and time], and of the GPU that is "
    "tested first  [default: at random].",
)
@click.option(
    "--operations",
    type=click.IntRange(1),
    metavar="N",
    help="Number of steps of random histories.  [default: depends on the check and the number of devices; in "
    "soak, as many as 10 minutes allow]",
)
@click.option("--no-workarounds", is_flag=True, help="Do not try workarounds for failed checks.")
@click.option(
    "--isolate",
    is_flag=True,
    help="Run every probe in processes of its own; slower. Without it, only probes that failed are.",
)
@click.option("--accept-harm", is_flag=True, help="Also run probes known to harm nodes with these versions.")
@options.require
@click.option("--strict", is_flag=True, help="Exit with 10 when the worst finding is WARN.")
@click.option(
    "--exit-style",
    type=options.Choice(["default", "nagios"]),
    default="default",
    show_default=True,
    help="Exit codes: this tool's, or those of a Nagios plugin.",
)
@click.option("--dry-run", is_flag=True, help="List the devices and the planned probes, and stop.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    all_checks: bool,
    simulate: str | None,
    config_file: Path | None,
    as_json: bool,
    summary: bool,
    output: Path | None,
    keep_logs: Path | None,
    plots: Path | None,
    strict: bool,
    exit_style: str,
    dry_run: bool,
    verbose: bool,
    since: Path | None,
    **_: Any,  # other subcommands make the request themselves
) -> None:
    """Run checks on this node and print the health matrix.

    Name the checks to run (see `gpuipc-doctor list`) or give --all.
    """
    refuse_contradictions(ctx)
    config = with_options(ctx, options.site_config(config_file))
    if strange := options.not_of_this_node(config):
        say(strange)
    request = request_of(ctx, config)
    if dry_run:
        with options.node(simulate) as node:
            click.echo(_preview(engine.dry_run(request, config, node, Silent()), full=verbose))
        return
    if keep_logs:
        _prepare_logs(keep_logs)
    if plots:
        _prepare_plots(plots)
    if summary:
        from gpuipc_doctor.supervise import leftovers, scratch

        leftovers.sweep(scratch.usual())
    earlier = saved.report(since) if since else None
    file = _output(output)
    with options.node(simulate) as node:
        with progress() as watcher:
            report = engine.run(request, config, node, watcher)
        exit_code = exits.code(report, strict=strict, style="nagios" if exit_style == "nagios" else "default")
        written = _write(report, file, exit_code)
        if summary:
            click.echo(_summary(report, exit_code, full=as_json), nl=False)
        else:
            click.echo(
                _text(
                    report,
                    exit_code,
                    as_json=as_json,
                    exit_style=exit_style,
                    verbose=verbose,
                    earlier=earlier,
                ),
                nl=False,
            )
            if verbose and not as_json:
                click.echo(f"{report.processes} processes, {report.initialisations} driver initialisations")
        as_json = as_json or summary
        if all_checks and not as_json and exit_style == "default" and (shown := _could_be_shown(report)):
            click.echo(f"no GPU here; to see an example, run `gpuipc-doctor check --all --simulate {shown}`")
        if not as_json and (names := options.resembling(config, node, report.devices)):
            say(f"this node may belong to {' or '.join(f'{name} (use `--config {name}`)' for name in names)}")
        written = _draw(report, plots) and written
    ctx.exit(exit_code if written else exit_code or Exit.INTERNAL)


def refuse_contradictions(ctx: click.Context) -> None:
    """Raise `click.UsageError` for options that contradict each other."""
    named, all_checks = ctx.params["checks"], ctx.params["all_checks"]
    if named and all_checks:
        raise click.UsageError("--all runs every check of the tier; omit --all, or the names", ctx)
    if not named and not all_checks:
        raise click.UsageError("name the checks to run, or give --all", ctx)
    for_programs = ctx.params["as_json"] or ctx.params["summary"] or ctx.params["exit_style"] == "nagios"
    if ctx.params["since"] and (for_programs or ctx.params["dry_run"]):
        raise click.UsageError("--since is for the screen of a run; programs: `compare --json`", ctx)
    if ctx.params["operations"] is not None and named and not {*(able := _having("operations"))} & {*named}:
        raise click.UsageError(f"--operations is for {' and '.join(able)}: also name one of them", ctx)


def with_options(ctx: click.Context, config: SiteConfig) -> SiteConfig:
    """The site config with a check's options from the command line."""
    found = {check: dict(given) for check, given in config.options.items()}
    for option in (option for option in OF_CHECKS if ctx.params[option] is not None):
        for check in _having(option):
            found.setdefault(check, {})[option] = ctx.params[option]
            if option == "operations":  # the run must not end by time alone then
                found[check].setdefault("seconds", 1e6)
    return replace(config, options=found)


def _having(option: str) -> list[str]:
    """Ids of the built-in checks with this option."""
    loaded = (item.check for item in loader.load() if isinstance(item, LoadedCheck))
    return [check.id for check in loaded if option in check.options]


def request_of(ctx: click.Context, config: SiteConfig) -> Request:
    """The request from this command's options."""
    given = ctx.params
    return Request(
        checks=given["checks"],
        tier=Tier[given["tier"].upper()] if given["tier"] else config.tier,
        backend=given["backend"],
        devices=given["devices"],
        deadline_s=given["deadline"],
        budget_s=given["budget"],
        keep_logs=given["keep_logs"],
        mpi_lib=given["mpi_lib"],
        nccl_lib=given["nccl_lib"],
        nodes=2 if given["partner"] else given["nodes"],
        partner=given["partner"] or "",
        workarounds=not given["no_workarounds"],
        repeat=given["repeat"],
        isolate=given["isolate"],
        seed=given["seed"],
        required=given["required"],
        accept_harm=given["accept_harm"],
    )


def _could_be_shown(report: Report) -> str:
    """The simulated node to suggest; empty if a GPU is found or no binding is installed."""
    from gpuipc_doctor.simulator.build import has_compiler

    if not report.nothing_tested or report.devices or report.simulated or not has_compiler():
        return ""
    return SHOWN.get(bindings.usable(), "")


def _prepare_logs(directory: Path) -> None:
    """Require a new or empty directory, so that the logs of two runs do not mix."""
    with options.naming_option("--keep-logs", str(directory)):
        make_directory(directory, mode=0o700)
        if any(directory.iterdir()):
            raise click.BadParameter(
                f"{directory} is not empty; name a new directory", param_hint="--keep-logs"
            )


def _prepare_plots(directory: Path) -> None:
    """Test before the first probe whether pictures can be drawn and written."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise click.UsageError("--plots needs matplotlib: pip install matplotlib")
    with options.naming_option("--plots", str(directory)):
        make_directory(directory)
        OutputFile(directory / "picture.svg").close()


def _draw(report: Report, directory: Path | None) -> bool:
    """Plot the time series; returns whether that succeeded. Prints the files' names on standard error."""
    if directory is None:
        return True
    from gpuipc_doctor.report import plots

    names = []
    try:
        for picture in plots.pictures(report):
            for suffix, data in (("svg", picture.svg), ("png", picture.png)):
                OutputFile(directory / f"{picture.name}.{suffix}").write(data)
            names.append(picture.name)
    except (OSError, ImportError) as error:
        say(f"--plots: {error}")
        return False
    what = ", ".join(names) or "nothing to plot: no check that ran watches memory over time"
    say(f"drew in {directory}: {what}")
    return True


def _output(path: Path | None) -> OutputFile | None:
    if path is None:
        return None
    with options.naming_option("--output", f"cannot write {path}"):
        return OutputFile(path)


def _write(report: Report, file: OutputFile | None, exit_code: int) -> bool:
    """Write the JSON report; a failure is reported, and the report is still printed."""
    if file is None:
        return True
    from gpuipc_doctor.report import report_json

    try:
        file.write(report_json.dumps(report, exit_code=exit_code))
    except OSError as error:
        say(f"--output was not written: {error.strerror or error}")
        return False
    return True


def _text(
    report: Report,
    exit_code: int,
    *,
    as_json: bool,
    exit_style: str,
    verbose: bool,
    earlier: Report | None,
) -> str:
    if as_json:
        from gpuipc_doctor.report import report_json

        return report_json.dumps(report, exit_code=exit_code)
    from gpuipc_doctor.report import node_content

    page = formats.page()
    if exit_style == "nagios":
        return node_content.nagios(report, width=page["width"])
    news = []
    if earlier:
        from gpuipc_doctor.report import comparison_content
        from gpuipc_doctor.report.comparison import compare

        news.append(comparison_content.news(compare(earlier, report)))
    return node_content.screen(report, exit_code=exit_code, verbose=verbose, news=news, **page)


def _summary(report: Report, exit_code: int, *, full: bool) -> str:
    """The summary in one line, after the full report if ``full`` is set or the node did not pass."""
    import msgspec

    from gpuipc_doctor.fleet import summary
    from gpuipc_doctor.report import report_json

    found = summary.of(report, "", exit_code)
    lines = [summary.dumps(found)]
    if full or not found.is_well:
        text = report_json.dumps(report, exit_code=exit_code).encode()
        lines.insert(0, msgspec.json.format(text, indent=-1) + b"\n")
    return b"".join(lines).decode()


def _preview(preview: Preview, *, full: bool) -> str:
    """What would run, a line a check (``full``: a line a probe), and what would not, a sentence a reason."""
    probes = preview.plan.probes
    if full:
        rows = [
            (item.check.id, item.probe.subject, item.probe.name, f"{item.probe.deadline_s:g}")
            for item in probes
        ]
        shown = [table(rows, ("check", "subject", "probe", "deadline, s"), wrapped=2)]
    else:
        shown = [table([*_by_check(probes)], ("check", "on", "probes", "deadline, s"), wrapped=1)]
    if preview.ranks:
        told = [(rank.kind, rank.value, rank.where) for rank in preview.ranks]
        shown.append(table(told, ("for ranks", "", "set at"), wrapped=1))
    lines: list[str] = []
    said: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for result in preview.plan.concluded:
        key = (result.check, result.finding.status.value, sentences.summary(result.finding))
        said.setdefault(key, []).append(result.devices)
    for (check, status, why), subjects in said.items():
        where = f"{check} on {fold_subjects(subjects) or 'node'}"
        lines += wrap(f"{where}: {status}, {why}", COLUMNS, rest="  ")
    return "\n".join(["\n\n".join(shown), "", *lines, f"{counted(len(probes), 'probe')} would run."])


def _by_check(probes: Sequence[PlannedProbe]) -> Iterator[tuple[str, ...]]:
    groups: dict[str, list[PlannedProbe]] = {}
    for item in probes:
        groups.setdefault(item.check.id, []).append(item)
    for check, group in groups.items():
        subjects = dict.fromkeys(tuple(device.label for device in item.probe.devices) for item in group)
        deadline_s = max(item.probe.deadline_s for item in group)
        yield check, fold_subjects(subjects) or "node", str(len(group)), f"{deadline_s:g}"
