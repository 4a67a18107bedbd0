"""``gpuipc-doctor memory``: device memory by process, once or continuously."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

import click

from gpuipc_doctor import node_name
from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.stdio import can_redraw
from gpuipc_doctor.files import writing
from gpuipc_doctor.model import Exit, Node, Status
from gpuipc_doctor.node import gpus, memory_content, memory_watching
from gpuipc_doctor.node.memory_content import Growth
from gpuipc_doctor.node.memory_usage import GpuUsers, History, Sample
from gpuipc_doctor.present.terminal import table
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.request import Request

DEFAULT_INTERVAL_S = 2.0

Show = Callable[[Sample, Growth], None]


@click.command()
@options.node_options
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C and show growth.")
@options.seconds("--interval", "Seconds between samples of --watch.  [default: 2]")
@click.option(
    "--log",
    "log_file",
    type=options.FilePath(),
    metavar="FILE",
    help="Append each sample of --watch to this file, as a line of JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one sample.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    backend: str,
    simulate: str | None,
    config_file: Path | None,
    watch: bool,
    interval: float | None,
    log_file: Path | None,
    as_json: bool,
) -> None:
    """Show how much memory of each GPU is in use, and by which processes.

    Reads NVML for NVIDIA GPUs, else the kernel. No context is created, so no device memory is used. Also
    lists processes with device files open but without memory on a GPU, and files of CUDA, NCCL, vLLM, PyTorch
    and UCX in /dev/shm that no process has open. Nothing is removed. GPUs are numbered in PCI order. To
    practise without a GPU: --simulate gpu-users. With
    --watch, growth is per minute over the last 30 samples; "level" means that no growth is distinguishable.
    """
    if not watch and (interval or log_file):
        raise click.UsageError("--interval and --log need --watch", ctx)
    if watch and as_json:
        raise click.UsageError("--json prints one sample; to write each of --watch, use --log", ctx)
    config = options.site_config(config_file)
    backends = Request(backend=backend).backends
    seconds = (interval or DEFAULT_INTERVAL_S) if watch else 0.0
    with options.node(simulate) as node, _log(log_file) as file, _screen(node, watch) as show:
        history, samples, heading = History(), list[Sample](), _heading(node)
        names = {"host": node_name.below(node.root), "simulated": node.simulated}

        def listen(sample: Sample) -> None:
            history.add(sample)
            if file:
                file.write(f"{memory_content.log_line(sample, history.growth, **names)}\n")
            if watch:
                show(sample, history.growth)
            else:
                samples.append(sample)

        start_up_s = config.start_up_s
        end = memory_watching.watch(node, backends, seconds, listen, start_up_s=start_up_s, users=not watch)
    for sample in samples:
        if as_json:
            click.echo(memory_content.dumps(sample, history.growth, users=end.users, **names))
        else:
            _once(sample, history.growth, end.users, heading)
    if not as_json:
        click.echo("".join(f"{line}\n" for line in memory_content.beside(end.users)), nl=False)
    if end.trouble:
        remedy = f"; {end.trouble.remedy}" if end.trouble.remedy else ""
        click.echo(
            f"gpuipc-doctor: {end.trouble.status.value} {sentences.summary(end.trouble)}{remedy}", err=True
        )
        ctx.exit(Exit.FAIL if end.trouble.status is Status.FAIL else Exit.ERROR)
    if end.absent:
        click.echo(f"gpuipc-doctor: no GPU whose memory can be read: {'; '.join(end.absent)}", err=True)
        ctx.exit(Exit.NOTHING)


def _log(path: Path | None) -> AbstractContextManager[IO[str] | None]:
    if path is None:
        return nullcontext()
    with options.naming_option("--log", f"cannot write {path}"):
        return os.fdopen(writing.open_to_append(path), "a", buffering=1, encoding="utf-8")


def _heading(node: Node) -> str:
    simulated = f"SIMULATED (profile {node.simulated}): no real GPU was read" if node.simulated else ""
    return "\n".join(filter(None, (gpus.untried_here(node.root), simulated)))


@contextmanager
def _screen(node: Node, watch: bool) -> Iterator[Show]:
    """A function that shows the samples of --watch: as a table, redrawn on a terminal; otherwise as lines."""
    heading = _heading(node)
    if watch and can_redraw(sys.stdout):
        with _redrawn(heading) as show:
            yield show
        return
    if watch and heading:
        click.echo(heading)
    yield _lines


def _once(sample: Sample, growth: Growth, users: GpuUsers | None, heading: str) -> None:
    if heading:
        click.echo(heading)
    columns = len(memory_content.HEADERS) - 1  # one sample shows no growth
    rows = [row[:columns] for row in memory_content.rows(sample, growth, users)]
    click.echo(table(rows, memory_content.HEADERS[:columns], wrapped=1))


def _lines(sample: Sample, growth: Growth) -> None:
    for line in memory_content.lines(sample, growth):
        click.echo(line)


@contextmanager
def _redrawn(heading: str) -> Iterator[Show]:
    """The table of the latest sample, redrawn in place; the last table stays on the screen."""
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def show(sample: Sample, growth: Growth) -> None:
            shown = table(list(memory_content.rows(sample, growth)), memory_content.HEADERS, wrapped=1)
            above = f"{memory_content.time(sample)} · Ctrl-C ends"
            lines = [*filter(None, [heading]), above, "", *shown.splitlines()]
            height = shutil.get_terminal_size().lines - 1
            live.update(Text("\n".join(lines[:height])), refresh=True)

        yield show
