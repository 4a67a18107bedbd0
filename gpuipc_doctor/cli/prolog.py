"""``gpuipc-doctor prolog``: what a batch system runs in front of every job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.cli import options, stdio
from gpuipc_doctor.prolog import answer, isolation


class ExitZeroOnUsageError(click.Command):
    """Does not take a user's mistake out on the node: it is said, and the job starts."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            line = f"gpuipc-doctor: ERROR the prolog's command line is wrong: {error.format_message()}"
            for number, say in ((2, error.show), (1, partial(click.echo, line))):
                try:
                    say()
                except OSError:  # nobody takes it; that is not the node's fault, either
                    stdio.give_up(number)
            raise SystemExit(0) from None


@click.command(cls=ExitZeroOnUsageError)
@options.config("Site config; without it /etc/gpuipc-doctor/site.yaml, else the defaults.")
@options.seconds("--budget", "From the start of this process.  [default: the config's, or 8]")
def command(*, config_file: Path | None, budget: float | None) -> None:
    """Test this node in front of a job.

    Runs the checks of the prolog tier on the job's GPUs (SLURM_JOB_GPUS, else all), prints one line and
    exits: with 0 where the job may start; where the site config's policy drains the node with 12 (FAIL) or
    11 (it could not tell). Ends within the budget and one second, whatever hangs. Any other code is that of
    a tool that is broken, and no reason to drain.

    The same command serves as Prolog, as Epilog and as HealthCheckProgram of Slurm. It needs no PATH, HOME,
    TMPDIR or terminal. A mistake on its command line or in the config is said, and exits with 0.
    """
    isolation.isolate()
    answer.run(config_file, budget)
