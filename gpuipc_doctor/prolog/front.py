"""The prolog, once its command line is read."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NoReturn

from gpuipc_doctor.policy import BUDGET_S
from gpuipc_doctor.prolog import clock, duty, guard
from gpuipc_doctor.prolog.order import Order


def run(config: Path | None, budget_s: float | None = None, *, explain: bool = False) -> NoReturn:
    """Test this node in front of the job that the batch system's variables name, and exit."""
    order = Order(
        clock.started_at(),
        config,
        budget_s,
        explain,
        gpus=os.environ.get("SLURM_JOB_GPUS", ""),
        job=os.environ.get("SLURM_JOB_ID", ""),
    )
    ends_at = order.started_at + (budget_s or BUDGET_S)
    guard.run(partial(duty.do, order), partial(duty.settle, order), ends_at=ends_at)
