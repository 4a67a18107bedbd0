"""Run the command as a user does, in a process of its own, and see what it leaves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.command_stem import STEM
from tests.waiting import LIMIT_S

SMALL_SHARE = str(Path(__file__).parents[1] / "fixtures/small-share.yaml")
"""A site config under which checks that move much memory are quick."""

SMALL_MESSAGES = str(Path(__file__).parents[1] / "fixtures/small-messages.yaml")
"""One under which no message takes as long as a short deadline."""

FEW_MESSAGES = str(Path(__file__).parents[1] / "fixtures/few-messages.yaml")
"""One with both, a small share of memory and few sizes of messages."""

RESTING = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # MPICH
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "I_MPI_THREAD_YIELD": "3",  # Intel MPI: sleep, for so many microseconds, after one look
    "I_MPI_THREAD_SLEEP": "100",
    "I_MPI_SPIN_COUNT": "1",
    "I_MPI_FABRICS": "shm",  # it polls a network, too, where there may be one
}
"""What has a rank that waits leave the processor, by each library's own switches."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def evidence(finding: Mapping[str, Any]) -> list[str]:
    """The lines of evidence of a finding in a JSON report."""
    return [item["line"] for item in finding["evidence"]]


@pytest.fixture(scope="session", autouse=True)
def end_of_the_stem() -> Iterator[None]:
    yield
    STEM.close()


@pytest.fixture(scope="session")
def doctor() -> Command:
    """``doctor("check", "--all")`` runs ``gpuipc-doctor check --all`` and returns how it ended.

    In a fork of `STEM`. What is about the start of a process, signals or ``/proc`` starts one itself.
    """
    return partial(STEM.run, "gpuipc_doctor.cli.main", timeout=LIMIT_S)


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks spin while they wait: two processors are then too few for them and for what runs beside them."""
    for name, value in RESTING.items():
        monkeypatch.setenv(name, value)
