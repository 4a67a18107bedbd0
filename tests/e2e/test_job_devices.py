"""Ranks of real MPI libraries on simulated devices, with faults of the fault library: seeds 000, 001."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.cli import options
from gpuipc_doctor.job import here
from gpuipc_doctor.job.document import Cause
from gpuipc_doctor.job.selection import NoSuchJob, Request
from gpuipc_doctor.model import Node
from tests.e2e.test_job import job, nothing_is_stopped

MIB = 1 << 20

pytestmark = [pytest.mark.mpi, pytest.mark.cuda]


@contextmanager
def simulated_job(profile: str, library: str, nbytes: int, log: Path) -> Iterator[tuple[int, Node]]:
    """Yields the launcher of two ranks that exchange messages from device memory, and their node."""
    with (
        options.node(profile) as node,
        job(library, f"device:{nbytes}", 2, log, **node.env, **node.rank_env) as launcher,
    ):
        yield launcher, node


@pytest.mark.full  # two ranks that send for 12 s; unit tests have such slopes
@pytest.mark.parametrize("library", ["mpich50", pytest.param("openmpi", marks=pytest.mark.full)])
def test_growth_of_device_memory_has_a_rank_and_a_slope(library: str, tmp_path: Path) -> None:
    """Seed 000. A message costs the receiver 4 MiB and a descriptor, so the two slopes must agree."""
    with (
        simulated_job("mpi-leak-receiver", library, MIB, tmp_path / "log") as (launcher, node),
        nothing_is_stopped(launcher),
    ):
        report = here.report(Request(pids=(launcher,)), "", tmp_path, watches_s=12.0, node=node)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.GROWS, (1,)), report
    grown = {each.what: each for each in report.growth if each.rank == 1}
    of_ranks = {each.rank for each in report.growth} - {None}  # simulated memory is in the node's /dev/shm
    assert of_ranks == {1}
    messages = grown["descriptors"].per_minute
    assert grown["device memory"].per_minute == pytest.approx(4 * MIB * messages, rel=0.05)
    assert grown["device memory"].low <= 4 * MIB * messages <= grown["device memory"].high * 1.05
    assert [rank.gpus for rank in report.ranks] == [("cuda:0",), ("cuda:1",)]


@pytest.mark.full
@pytest.mark.parametrize("library", ["impi", "mpich50"])
def test_message_of_sixteen_bytes_that_never_arrives(library: str, tmp_path: Path) -> None:
    """Seed 001: the receiver hangs in an MPI call from which the sender has returned."""
    with (
        simulated_job("mpi-hang-16", library, 16, tmp_path / "log") as (launcher, node),
        nothing_is_stopped(launcher),
    ):
        report = here.report(Request(pids=(launcher,)), "", tmp_path, node=node)
    assert (report.verdict.cause, report.verdict.blamed) == (Cause.MESSAGE_LOST, (1,)), report
    assert report.verdict.operation == "MPI_Recv"


def test_jobs_are_found_by_their_gpu(tmp_path: Path) -> None:
    with simulated_job("mpi-leak-receiver", "mpich50", 16, tmp_path / "log") as (_, node):
        report = here.report(Request(), "cuda:1", tmp_path, node=node)
        with pytest.raises(NoSuchJob, match="GPU cuda:7 not found"):
            here.report(Request(), "cuda:7", tmp_path, node=node)
    assert [rank.rank for rank in report.ranks] in ([0, 1], [1]), "the job of the process on the GPU"
    assert report.ranks[-1].gpus == ("cuda:1",)
