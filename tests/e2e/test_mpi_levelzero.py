"""Real Intel MPI over the simulated driver of Intel GPUs, through the real loader of Level Zero."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LOADER
from tests.e2e.conftest import FEW_MESSAGES, Command, evidence
from tests.e2e.test_levelzero import LEGACY, OPAQUE, node

pytestmark = [pytest.mark.ze, pytest.mark.mpi, pytest.mark.usefixtures("resting")]

SETTINGS = {
    "I_MPI_OFFLOAD": "1",
    "I_MPI_OFFLOAD_FAST_MEMCPY": "0",  # it maps descriptors of device memory; simulated ones cannot be mapped
}

Findings = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture
def findings(doctor: Command, tmp_path: Path) -> Callable[..., Findings]:
    """``findings(check, faults=…, driver=…)``: findings of one check by probe and status."""

    def run(
        *checks: str, driver: str = LEGACY, count: int = 1, faults: str = "[]", **env: str
    ) -> dict[tuple[str, str], list[dict[str, Any]]]:
        library = str(Path(os.environ["GPUIPC_TEST_MPI"], "impi/lib/libmpi.so.12"))
        ended = doctor(
            *("check", *checks, "--simulate", node(tmp_path, driver, count, faults), "--mpi-lib", library),
            *("--config", FEW_MESSAGES, "--json"),
            *(() if "workarounds" in env else ("--no-workarounds",)),
            env={**os.environ, "LD_LIBRARY_PATH": LOADER, **SETTINGS, **env},
        )
        found: Findings = {}
        for result in json.loads(ended.stdout)["results"]:
            if result["check"] in checks:
                finding = result["finding"]
                found.setdefault((result["check"], finding["status"]), []).append(finding)
        return found

    return run


PASSING = ("mpi-gpu-aware", "mpi-small-message", "mpi-stale-buffer", "mpi-first-touch")


@pytest.mark.parametrize("driver", [LEGACY, pytest.param(OPAQUE, marks=pytest.mark.full)])
def test_healthy_node_passes(findings: Callable[..., Findings], driver: str) -> None:
    assert findings(*PASSING, driver=driver).keys() == {(check, "PASS") for check in PASSING}


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        ({"I_MPI_OFFLOAD": "0"}, "set I_MPI_OFFLOAD=1"),
        ({"I_MPI_OFFLOAD_MODE": "cuda"}, "set I_MPI_OFFLOAD_MODE=level_zero"),
        (
            {"I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY": "/nowhere/libze_loader.so.1"},
            "set I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY to the path of libze_loader.so.1",
        ),
    ],
)
def test_setting_that_is_missing_is_named(
    findings: Callable[..., Findings], env: dict[str, str], remedy: str
) -> None:
    ((finding,),) = findings("mpi-gpu-aware", **env).values()
    assert (finding["status"], finding["remedy"]) == ("FAIL", remedy)


@pytest.mark.full  # the library's default
def test_descriptors_by_pidfd_carry_messages(findings: Callable[..., Findings]) -> None:
    found = findings("mpi-small-message", I_MPI_OFFLOAD_IPC_MODE="pidfd")
    assert found.keys() == {("mpi-small-message", "PASS")}


def test_mapping_of_freed_memory_is_stale_data(findings: Callable[..., Findings]) -> None:
    found = findings("mpi-stale-buffer", faults="[{call: ipc-open, from: 2, do: stale}]")
    ((finding,),) = found.values()
    assert finding["status"] == "FAIL"
    assert "delivered data of a freed buffer" in finding["summary"]


@pytest.mark.full
def test_nothing_is_opened_without_ipc(findings: Callable[..., Findings]) -> None:
    """The same fault cannot be met: the library copies through the host."""
    stale = "[{call: ipc-open, from: 2, do: stale}]"
    found = findings("mpi-stale-buffer", faults=stale, I_MPI_OFFLOAD_IPC="0")
    assert found.keys() == {("mpi-stale-buffer", "PASS")}


@pytest.mark.full  # a minute
def test_growth_is_found_with_its_cures(findings: Callable[..., Findings]) -> None:
    found = findings("mpi-cache-growth", count=2, workarounds="tried")
    (bad,) = found["mpi-cache-growth", "FAIL"]
    assert bad["summary"].startswith("used memory on the sender's device grows by 24 MiB each iteration")
    tried = [line for line in evidence(bad) if line.startswith("Tried ")]
    assert [line.partition(", ")[0] for line in tried] == [
        "Tried I_MPI_OFFLOAD_CACHE_MAX_SIZE=1: helps",
        "Tried I_MPI_OFFLOAD_IPC=0: helps",
    ]
    assert len(found["mpi-cache-growth", "PASS"]) == 2


@pytest.mark.full  # likewise
def test_bound_of_16_buffers_is_a_warning(findings: Callable[..., Findings]) -> None:
    found = findings("mpi-cache-growth", count=2, I_MPI_OFFLOAD_CACHE_MAX_SIZE="16")
    (bad,) = found["mpi-cache-growth", "WARN"]
    assert bad["key"] == "keeps-many"
    assert "I_MPI_OFFLOAD_CACHE_MAX_SIZE" in bad["remedy"]


@pytest.mark.full  # likewise
def test_driver_that_closes_nothing_is_told_from_a_cache(findings: Callable[..., Findings]) -> None:
    skipped = "[{call: ipc-close, do: skip}]"
    found = findings("mpi-cache-growth", count=2, faults=skipped, workarounds="tried")
    (bad, *_) = found["mpi-cache-growth", "FAIL"]
    tried = [line for line in evidence(bad) if line.startswith("Tried ")]
    assert tried[0].startswith("Tried I_MPI_OFFLOAD_CACHE_MAX_SIZE=1: does not help")
    assert tried[1].startswith("Tried I_MPI_OFFLOAD_IPC=0: helps")
