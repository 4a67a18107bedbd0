"""Memory checks on a GPU while an unrelated process allocates more and more memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.model import EvidenceKind, Finding, MemoryShare, Node, Status
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig
from tests.conformance.conftest import simulated_node
from tests.conformance.remote import Remote

pytestmark = pytest.mark.cuda

MIB = 1 << 20

MOST_ALLOCATIONS = 4000
"""Half of what a simulated node has room for. A busy machine takes so long that more would be made, and
the driver then returns CUDA_ERROR_OPERATING_SYSTEM (304)."""


@contextmanager
def stranger(node: Node, nbytes: int) -> Iterator[None]:
    """Allocate ``nbytes`` more every few milliseconds in an unrelated process."""
    remote, over = Remote("cuda", env=node.env), threading.Event()

    def grow() -> None:
        for _ in range(MOST_ALLOCATIONS):
            if over.wait(0.003):
                break
            remote.gpu.alloc(nbytes)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        remote.exit()


def findings(
    node: Node, *checks: str, mpi: Path | None = None, most_gib: float = 0.65
) -> dict[Status, list[Finding]]:
    request = Request(
        checks,
        backend="cuda",
        devices=("cuda:0",),
        mpi_lib=str(mpi) if mpi else None,
        workarounds=False,
    )
    found: dict[Status, list[Finding]] = {}
    config = SiteConfig(memory=MemoryShare(most_gib=most_gib))  # moving much memory is slow here
    for result in engine.run(request, config, node, Silent()).results:
        if result.check in checks:
            found.setdefault(result.finding.status, []).append(result.finding)
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "check", ["ipc-release", pytest.param("driver-pool-release", marks=pytest.mark.full)]
)
def test_memory_of_others_is_not_blamed_on_the_driver(check: str) -> None:
    with simulated_node("healthy-cuda") as node, stranger(node, MIB // 4):
        found = findings(node, check)
    assert Status.PASS in found
    assert found.keys() <= {Status.PASS, Status.SKIP}


@pytest.mark.full
@pytest.mark.parametrize(
    ("check", "profile"),
    [
        ("driver-pool-release", "pool-leak"),
        pytest.param("ipc-release", "leak-on-open", marks=pytest.mark.full),
    ],
)
def test_leak_of_the_driver_is_found_on_a_busy_gpu(check: str, profile: str) -> None:
    with simulated_node(profile) as node, stranger(node, MIB // 4):
        assert Status.FAIL in findings(node, check)


def test_holders_are_listed_if_too_little_memory_is_free() -> None:
    with simulated_node("mpi-leak-sender") as node:  # of 4 GiB
        remote = Remote("cuda", env=node.env)
        remote.gpu.alloc((4 << 30) - 20 * MIB)
        (finding,) = findings(node, "driver-init", "ipc-release")[Status.ERROR]
        remote.exit()
    (holder,) = (item for item in finding.evidence if item.kind is EvidenceKind.HOLDER)
    assert finding.key == "no-room"
    assert holder.values["name"].startswith("python")
    assert holder.values["held"] >= (4 << 30) - 20 * MIB
    assert "its parent is alive" in holder.values["about"]


@pytest.mark.full
def test_memory_released_late_is_a_warning_with_the_seconds(tmp_path: Path) -> None:
    """The next probe waits until the memory is released, because a late release would hide a loss."""
    profile = tmp_path / "late.yaml"
    profile.write_text(
        "description: What a process has when it ends stays taken for two and a half seconds more.\n"
        "extends: healthy-single\nfaults:\n  - {call: exit, do: late, ms: 2500}\n"
    )
    with simulated_node(str(profile)) as node:
        found = findings(node, "ipc-pool", "ipc-release")
    assert found.keys() == {Status.PASS, Status.WARN}
    exited, killed = found[Status.WARN]
    assert exited.values["end"] == "the importer exited with it open"
    assert killed.values["end"] == "the importer was killed with it open"
    assert exited.values["waited"] > 2
