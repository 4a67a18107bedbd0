"""``gpuipc-doctor prolog``: test the node before every job, for a batch system."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from gpuipc_doctor.cli import options, stdio
from gpuipc_doctor.prolog import answer, isolation


class ExitZeroOnUsageError(click.Command):
    """Reports a wrong command line and exits with 0, so that the node is not drained and the job starts."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            from gpuipc_doctor.cli import wrong_usage

            said = wrong_usage.line(error)
            line = f"gpuipc-doctor: ERROR invalid command line: {said}"
            for number, say in ((2, partial(click.echo, said, err=True)), (1, partial(click.echo, line))):
                try:
                    if number == 1 or not os.path.samestat(os.fstat(1), os.fstat(2)):  # a reader of both
                        say()
                except OSError:  # no reader: not the node's fault
                    stdio.give_up(number)
            raise SystemExit(0) from None


class PathNotLookedAt(options.FilePath):
    """A path that only the guard's child looks at, because any look at it may hang."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Path(value) if os.fspath(value) else super().convert(value, param, ctx)


@click.command(cls=ExitZeroOnUsageError)
@options.config(
    "Site config; without it /etc/gpuipc-doctor/site.yaml, else the defaults.", type=PathNotLookedAt()
)
@options.seconds(
    "--budget",
    "Time limit from the start of this process.  [default: the config's, or 8, "
    "with up to 1 more for many GPUs]",
)
def command(*, config_file: Path | None, budget: float | None) -> None:
    """Test this node before a job.

    Runs the checks of the prolog tier on the job's GPUs (SLURM_JOB_GPUS, else all) and prints one line. Ends
    within the budget plus one second, whatever hangs. Needs no PATH, HOME, TMPDIR or terminal. Serves as
    Slurm's Prolog, Epilog and HealthCheckProgram.

    \b
    Exit codes:
      0      the job may start, or the command line or config has a mistake
      11     could not tell, and the site config's policy drains the node
      12     FAIL, and the policy drains the node
      other  the tool failed: do not drain
    """
    isolation.isolate()
    answer.run(config_file, budget)
