"""What a run of the prolog is asked to do, by its command line and by the batch system."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Order(NamedTuple):
    """``started_at``: `time.monotonic()` seconds. ``budget_s``: None leaves it to the config."""

    started_at: float
    config: Path | None = None
    budget_s: float | None = None
    explain: bool = False
    """Say how it is decided, and leave no trace of it."""
    gpus: str = ""
    """The job's, as ``SLURM_JOB_GPUS`` has them; empty for all."""
    job: str = ""
    """The job's id, for the log."""
