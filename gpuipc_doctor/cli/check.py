"""``gpuipc-doctor check``: run checks, print the health matrix, and exit with the result's code."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.cli import check_options, formats, options, run_as
from gpuipc_doctor.cli.check_options import CheckOptions
from gpuipc_doctor.cli.progress import Silent, progress
from gpuipc_doctor.cli.stdio import say
from gpuipc_doctor.files import python, writing
from gpuipc_doctor.model import Exit, Finding, Status
from gpuipc_doctor.present.text import counted
from gpuipc_doctor.report import exits
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.run import engine, preview_content
from gpuipc_doctor.vendors import SUPPORTED, installed


@click.command()
@check_options.add
@click.option("--user", metavar="NAME", is_eager=True, expose_value=False, callback=run_as.user,
              help="As root, run everything as this user, with all groups of theirs; files are read and "
                   "written as them.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Run checks on this node and print the health matrix.

    Name the checks to run (see `gpuipc-doctor list`) or give --all.
    """
    asked = CheckOptions(**given)
    options.require_mpi_library(asked.mpi_lib)
    if not asked.simulate:  # simulated nodes have files of their own
        options.require_nccl_library(asked.nccl_lib)
    asked.refuse_contradictions()
    run_as.warn_root()
    config = asked.site_config()
    if strange := options.not_of_this_node(config):
        say(strange)
    request = asked.request(config)
    others = _nodes_of_collectives(asked)
    if asked.dry_run:
        with options.node(asked.simulate) as node:
            preview = engine.dry_run(request, config, node, Silent())
            click.echo(preview_content.text(preview, full=asked.verbose))
        return
    file = _prepare_output(asked)
    earlier = _saved(asked.since) if asked.since else None
    with options.node(asked.simulate) as node:
        with progress() as watcher:
            report = engine.run(request, config, node, watcher)
        if others and not report.interrupted:
            report = _with_collectives(report, others, asked)
        exit_code = exits.code(report, strict=asked.strict, nagios=asked.exit_style == "nagios")
        written = _write(report, file, exit_code)
        written = _draw(report, asked.plots) and written
        exit_code = exit_code if written else exit_code or Exit.INTERNAL
        click.echo(_text(asked, report, exit_code, earlier), nl=False)
        if asked.all_checks and not asked.for_programs and asked.exit_style == "default":
            _name_example(report)
    ctx.exit(exit_code)


def _nodes_of_collectives(asked: CheckOptions) -> list[str]:
    """The nodes over which collectives run, too; none unless asked for. Raises `click.UsageError`."""
    from gpuipc_doctor.fleet import nodeset

    if asked.nodes < 2 or asked.partner or not asked.all_checks:
        return []
    named = os.environ.get("SLURM_JOB_NODELIST")
    found = nodeset.expand(named) if named else []
    if len(found) < asked.nodes and asked.nodes > 2:
        there = counted(len(found), "node")
        asks = asked.nodes
        raise click.UsageError(f"--nodes {asks}: the allocation has {there}; run salloc -N {asks}")
    return found[: asked.nodes] if len(found) > 1 else []


def _with_collectives(report: Report, nodes: Sequence[str], asked: CheckOptions) -> Report:
    """The report, with the results of `fleet collectives` over the nodes."""
    from gpuipc_doctor.fleet import collective_report
    from gpuipc_doctor.report import json_documents, report_json
    from gpuipc_doctor.supervise import tree

    given = [("--backend", asked.backend), ("--nccl-lib", asked.nccl_lib), ("--config", asked.config_file),
             ("--simulate", asked.simulate), *(("--device", device) for device in asked.devices)]  # fmt: skip
    words = [word for option, value in given if value for word in (option, str(value))]
    with tempfile.TemporaryDirectory(prefix="gpuipc-doctor-") as into:
        command = ["fleet", "collectives", "--into", into, "--json", "-w", ",".join(nodes)]
        if asked.budget:
            command.append(f"--budget={max(asked.budget - report.elapsed_s, 1)}")
        running = subprocess.Popen(
            [*python.module("gpuipc_doctor"), *command, "--", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C reaches it once
        )
        # It then ends its ranks on all nodes, and reports.
        with tree.interruptible(lambda: running.send_signal(signal.SIGINT)):
            told, said = running.communicate()
    try:
        over = report_json.loads(told)
    except json_documents.BadDocument:
        why = said.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("Error: ")
        skipped = Finding.skip("not-over-nodes", "not run over several nodes: {why}", why=why)
        is_refused = running.returncode == Exit.USAGE
        finding = skipped if is_refused else replace(skipped, status=Status.ERROR)
        info, result = collective_report.INFO, Result(collective_report.INFO.id, finding)
        return replace(report, checks=(*report.checks, info), results=(*report.results, result))
    return replace(
        report,
        checks=(*report.checks, *over.checks),
        results=(*report.results, *over.results),
        elapsed_s=report.elapsed_s + over.elapsed_s,
        interrupted=over.interrupted,
    )


def _prepare_output(asked: CheckOptions) -> writing.OutputFile | None:
    """Refuse before the first probe what cannot be written; remove what killed runs left. The file of
    ``--output``."""
    if asked.keep_logs:  # new or empty, so that the logs of two runs do not mix
        with options.naming_option("--keep-logs", str(asked.keep_logs)):
            writing.make_directory(asked.keep_logs, mode=0o700)
            if any(asked.keep_logs.iterdir()):
                says = f"{asked.keep_logs} is not empty; name a new directory"
                raise click.BadParameter(says, param_hint="--keep-logs")
    if asked.plots:
        if util.find_spec("matplotlib") is None:
            raise click.UsageError("--plots needs matplotlib: pip install matplotlib")
        with options.naming_option("--plots", str(asked.plots)):
            writing.make_directory(asked.plots)
            writing.OutputFile(asked.plots / "picture.svg").close()
    if asked.summary:
        from gpuipc_doctor.supervise import leftovers, scratch

        leftovers.sweep(scratch.usual())
    if asked.output is None:
        return None
    with options.naming_option("--output", f"cannot write {asked.output}"):
        return writing.OutputFile(asked.output)


def _name_example(report: Report) -> None:
    """Name a simulated node, if no GPU is found and a binding is installed."""
    from gpuipc_doctor.simulator.build import has_compiler

    is_without_gpu = report.nothing_tested and not report.devices and not report.simulated
    usable = [backend for backend in installed() if not SUPPORTED[backend].experimental]
    if is_without_gpu and usable and has_compiler():
        shown = "healthy-both" if len(usable) > 1 else f"healthy-{usable[0]}"
        click.echo(f"no GPU here; to see an example, run `gpuipc-doctor check --all --simulate {shown}`")


def _saved(file: Path) -> Report:
    from gpuipc_doctor.cli import saved

    return saved.report(file)


def _draw(report: Report, directory: Path | None) -> bool:
    """Plot the time series; returns whether that succeeded. Prints the files' names on standard error."""
    if directory is None:
        return True
    from gpuipc_doctor.report import plots

    names = []
    try:
        for picture in plots.pictures(report):
            for suffix, data in (("svg", picture.svg), ("png", picture.png)):
                writing.OutputFile(directory / f"{picture.name}.{suffix}").write(data)
            names.append(picture.name)
    except (OSError, ImportError) as error:
        say(f"--plots: {error}")
        return False
    what = ", ".join(names) or "nothing to plot: no check that ran watches memory over time"
    say(f"drew in {directory}: {what}")
    return True


def _write(report: Report, file: writing.OutputFile | None, exit_code: int) -> bool:
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


def _text(asked: CheckOptions, report: Report, exit_code: int, earlier: Report | None) -> str:
    if asked.summary:
        return _summary(report, exit_code, full=asked.as_json)
    if asked.as_json and asked.p2p:
        from gpuipc_doctor.report import p2p

        return p2p.KIND.dumps(p2p.content(report, exit_code))
    if asked.as_json:
        from gpuipc_doctor.report import report_json

        return report_json.dumps(report, exit_code=exit_code)
    from gpuipc_doctor.report import node_content

    page = formats.page()
    counts = (
        f"{report.processes} processes, {report.initialisations} driver initialisations\n" * asked.verbose
    )
    if asked.exit_style == "nagios":
        return node_content.nagios(report, width=page["width"]) + counts
    news = []
    if earlier:
        from gpuipc_doctor.report import comparison_content
        from gpuipc_doctor.report.comparison import compare

        news.append(comparison_content.news(compare(earlier, report)))
    shown = node_content.screen(
        report,
        exit_code=exit_code,
        verbose=asked.verbose,
        pairs=asked.p2p,
        news=news,
        file=str(asked.output or ""),
        **page,
    )
    return shown + counts


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
