"""Checks of memory on a GPU of which a process that has nothing to do with them takes more and more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor import engine
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.config import SiteConfig
from gpuipc_doctor.model import Finding, Node, Status
from gpuipc_doctor.plan import Request
from tests.conformance.conftest import simulated_node
from tests.conformance.remote import Remote

pytestmark = pytest.mark.cuda

MIB = 1 << 20


@contextmanager
def stranger(node: Node, nbytes: int) -> Iterator[None]:
    """Takes so many bytes more each few milliseconds."""
    remote, over = Remote("cuda", env=node.env), threading.Event()

    def grow() -> None:
        while not over.wait(0.003):
            remote.gpu.alloc(nbytes)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        remote.exit()


def findings(node: Node, check: str, mpi: Path | None = None) -> dict[Status, list[Finding]]:
    request = Request(
        (check,),
        backend="cuda",
        devices=("cuda:0",),
        mpi_lib=str(mpi) if mpi else None,
        workarounds=False,
    )
    found: dict[Status, list[Finding]] = {}
    for result in engine.run(request, SiteConfig(), node, Silent()).results:
        if result.check == check:
            found.setdefault(result.finding.status, []).append(result.finding)
    return found


@pytest.mark.parametrize("check", ["driver-async-pool", "ipc-release"])
def test_what_others_take_is_not_blamed_on_the_driver(check: str) -> None:
    with simulated_node("healthy-cuda") as node, stranger(node, MIB // 4):
        found = findings(node, check)
    assert Status.PASS in found
    assert found.keys() <= {Status.PASS, Status.SKIP}


@pytest.mark.mpi
def test_what_others_take_is_not_blamed_on_mpi() -> None:
    library = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/lib/libmpi.so.12")
    with simulated_node("healthy-cuda") as node, stranger(node, 32 * MIB):
        found = findings(node, "mpi-cache-growth", library)
    assert found.keys() == {Status.PASS}


@pytest.mark.parametrize(
    ("check", "profile"), [("driver-async-pool", "pool-leak"), ("ipc-release", "leak-on-open")]
)
def test_what_the_driver_loses_is_found_beside_others(check: str, profile: str) -> None:
    with simulated_node(profile) as node, stranger(node, MIB // 4):
        assert Status.FAIL in findings(node, check)
