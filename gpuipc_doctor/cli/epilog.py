"""``gpuipc-doctor epilog``: look at the node after every job, for a batch system."""

from __future__ import annotations

from pathlib import Path

import click

from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.prolog import ExitZeroOnUsageError, PathNotLookedAt
from gpuipc_doctor.prolog import after_job, isolation


@click.command(cls=ExitZeroOnUsageError)
@options.config(
    "Site config; without it /etc/gpuipc-doctor/site.yaml, else the defaults.", type=PathNotLookedAt()
)
@options.seconds("--budget", "Time limit from the start of this process.  [default: 8]")
def command(*, config_file: Path | None, budget: float | None) -> None:
    """Look at this node after a job.

    Prints one line: which error counters of the job's GPUs (SLURM_JOB_GPUS, else all) rose since the job's
    prolog, and which processes, memory and files in /dev/shm the job left. Nothing is tested or removed and
    no context is created. Ends within the budget plus one second, whatever hangs.

    \b
    Exit codes:
      0      everything else, also if it could not tell
      12     a counter rose as far as the site config's `epilog_fail` says, and `on_fail` is drain
    """
    isolation.isolate()
    after_job.run(config_file, budget)
