"""Run the command as a user does, in its own process, and check what it leaves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.command_server import SERVER
from tests.waiting import LIMIT_S

SMALL_SHARE = str(Path(__file__).parents[1] / "fixtures/small-share.yaml")
"""A site config that makes checks with large memory transfers fast."""

SMALL_MESSAGES = str(Path(__file__).parents[1] / "fixtures/small-messages.yaml")
"""A site config with which no message takes as long as a short deadline."""

FEW_MESSAGES = str(Path(__file__).parents[1] / "fixtures/few-messages.yaml")
"""A site config with both: a small share of memory and few message sizes."""

RESTING = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # MPICH
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "I_MPI_THREAD_YIELD": "3",  # Intel MPI: after one poll, sleep for this many microseconds
    "I_MPI_THREAD_SLEEP": "100",
    "I_MPI_SPIN_COUNT": "1",
    "I_MPI_FABRICS": "shm",  # otherwise it also polls a network if there is one
}
"""Each library's variables that make a waiting rank release the processor."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def full(*row: object) -> object:
    """A row of parameters that is tested with `full` only."""
    return pytest.param(*row, marks=pytest.mark.full)


def cuda_ucx() -> dict[str, str]:
    """Variables that put PyPI's UCX, which has CUDA, in place of the one that an MPI brings."""
    (packages,) = Path(os.environ["GPUIPC_TEST_MPI"], "ucx", "lib").glob("python*/site-packages")
    libraries = f"{packages}/libucx/lib:{packages}/libucx_cu12.libs"
    return {"LD_LIBRARY_PATH": libraries, "UCX_MODULE_DIR": f"{packages}/libucx/lib/ucx"}


UCX_SETTINGS = {
    "mpich50": {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"},
    "openmpi": {"OMPI_MCA_pml": "ucx"},
}
"""Variables that make a library send device memory through a UCX with CUDA."""


def prefix_and_variables(library: str, backend: str) -> tuple[str, dict[str, str]]:
    """Prefix of a library, such as ``openmpi`` or ``openmpi-ucx``, and its variables for device memory."""
    name = library.removesuffix("-ucx")
    over_ucx = {**cuda_ucx(), **UCX_SETTINGS[name]} if name != library else {}
    return name, {"I_MPI_OFFLOAD": "1" if backend == "cuda" else "0", **over_ucx}


def evidence(finding: Mapping[str, Any]) -> list[str]:
    """The lines of evidence of a finding in a JSON report."""
    return [item["line"] for item in finding["evidence"]]


@pytest.fixture(scope="session", autouse=True)
def end_of_the_server() -> Iterator[None]:
    yield
    SERVER.close()


@pytest.fixture(scope="session")
def doctor() -> Command:
    """``doctor("check", "--all")`` runs ``gpuipc-doctor check --all`` and returns the completed process.

    It runs in a fork of `SERVER`. Tests of process start, signals or ``/proc`` start the command themselves.
    """
    return partial(SERVER.run, "gpuipc_doctor.cli.main", timeout=LIMIT_S)


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiting ranks sleep: two processors are too few for ranks that spin and other processes."""
    for name, value in RESTING.items():
        monkeypatch.setenv(name, value)
