"""``gpuipc-doctor memory``: who holds how much device memory, once or as it goes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.memory import memory_content, watching
from gpuipc_doctor.memory.history import History
from gpuipc_doctor.memory.usage import Sample
from gpuipc_doctor.model import Exit, Node, Status
from gpuipc_doctor.present.terminal import table
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.request import Request

DEFAULT_INTERVAL_S = 2.0


@click.command()
@options.node_options
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, and tell what grows.")
@options.seconds("--interval", "Between two samples of --watch.  [default: 2]")
@click.option(
    "--log",
    "log_file",
    type=options.FilePath(),
    metavar="FILE",
    help="Append each sample of --watch there, as a line of JSON.",
)
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
) -> None:
    """Show how much memory of each GPU is in use, and by which processes.

    What NVML tells of NVIDIA's GPUs, and the kernel of AMD's. No context is made, so no device memory is
    taken.
    With --watch, growth is that of a minute, over the latest 30 samples; "level" where a level use would look
    the same.
    """
    if not watch and (interval or log_file):
        raise click.UsageError("--interval and --log need --watch", ctx)
    config = options.site_config(config_file)
    backends = Request(backend=backend).backends
    seconds = (interval or DEFAULT_INTERVAL_S) if watch else 0.0
    with options.node(simulate) as node, _log(log_file) as file, _screen(node, watch) as screen:
        history = History()

        def listen(sample: Sample) -> None:
            history.add(sample)
            if file:
                line = memory_content.log_line(
                    sample, history.growth, host=_host(node), simulated=node.simulated
                )
                file.write(f"{line}\n")
            screen.show(sample, history)

        end = watching.watch(node, backends, seconds, listen, start_up_s=config.start_up_s)
    if end.trouble:
        remedy = f"; {end.trouble.remedy}" if end.trouble.remedy else ""
        click.echo(
            f"gpuipc-doctor: {end.trouble.status.value} {sentences.summary(end.trouble)}{remedy}", err=True
        )
        ctx.exit(Exit.FAIL if end.trouble.status is Status.FAIL else Exit.ERROR)
    if end.absent:
        click.echo(f"gpuipc-doctor: no GPU whose memory can be read: {'; '.join(end.absent)}", err=True)
        ctx.exit(Exit.NOTHING)


def _host(node: Node) -> str:
    return (Path(node.root) / "proc/sys/kernel/hostname").read_text().strip()


@contextmanager
def _log(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    with options.blaming("--log", f"cannot write {path}"):
        file = path.open("a", buffering=1, encoding="utf-8")
    with file:
        yield file


class Screen(Protocol):
    def show(self, sample: Sample, history: History) -> None: ...


@contextmanager
def _screen(node: Node, watch: bool) -> Iterator[Screen]:
    """A table once; while watching, one that is redrawn on a terminal, and lines elsewhere."""
    heading = f"SIMULATED (profile {node.simulated}): no real GPU was looked at" if node.simulated else ""
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if watch and can_redraw:
        with Redrawn(heading) as screen:
            yield screen
        return
    if heading:
        click.echo(heading)
    yield Lines() if watch else Once()


class Once:
    def show(self, sample: Sample, history: History) -> None:
        columns = len(memory_content.HEADERS) - 1  # one sample tells nothing of growth
        rows = [row[:columns] for row in memory_content.rows(sample, history.growth)]
        click.echo(table(rows, memory_content.HEADERS[:columns], wrapped=1))


class Lines:
    def show(self, sample: Sample, history: History) -> None:
        for line in memory_content.lines(sample, history.growth):
            click.echo(line)


class Redrawn:
    """The table of the latest sample, in its place; the last one stays."""

    def __init__(self, heading: str) -> None:
        from rich.live import Live

        self._heading = heading
        self._live = Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, sample: Sample, history: History) -> None:
        from rich.text import Text

        shown = table(list(memory_content.rows(sample, history.growth)), memory_content.HEADERS, wrapped=1)
        lines = [
            *filter(None, [self._heading]),
            f"{memory_content.time(sample)} · Ctrl-C ends",
            "",
            *shown.splitlines(),
        ]
        height = shutil.get_terminal_size().lines - 1
        self._live.update(Text("\n".join(lines[:height])), refresh=True)

    def __enter__(self) -> Redrawn:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
