"""``gpuipc-doctor prolog``: what a batch system runs in front of every job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuipc_doctor import isolation
from gpuipc_doctor.cli import options
from gpuipc_doctor.prolog import clock, guard
from gpuipc_doctor.prolog.duty import Order, do, settle

DEFAULT_BUDGET_S = 8.0


class Forgiving(click.Command):
    """Does not take its user's mistakes out on the node: they are said, and the job starts."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            error.show()
            click.echo(f"gpuipc-doctor: ERROR the prolog's command line is wrong: {error.format_message()}")
            raise SystemExit(0) from None


@click.command(cls=Forgiving)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Site config; without it the defaults of site-configs/generic.yaml hold.",
)
@click.option(
    "--budget",
    type=options.Seconds(),
    metavar="SECONDS",
    help="From the start of this process.  [default: 8]",
)
def command(*, config_file: Path | None, budget: float | None) -> None:
    """Test this node in front of a job.

    Runs the checks of the prolog tier, prints one line and exits: with 0 where the job may start, with 12
    (FAIL) or 11 (could not tell) where the policy of the site config drains the node. Ends within the budget
    and one second, whatever hangs. Serves as Prolog, Epilog and HealthCheckProgram of Slurm alike.

    A mistake on the command line or in the config is said, and exits with 0.
    """
    isolation.isolate()
    started_at = clock.started_at()
    order = Order(started_at, config_file, budget)
    guard.run(lambda tell: do(order, tell), settle, ends_at=started_at + (budget or DEFAULT_BUDGET_S))
