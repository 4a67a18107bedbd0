"""The tool's own needs: on one node no host name, no route, and no more than 64 KiB of /dev/shm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import FEW_MESSAGES, RESTING, evidence
from tests.e2e.test_mpi_checks import LIBRARIES
from tests.e2e.test_mpi_start import OPEN_MPI
from tests.waiting import LIMIT_S

ALONE = ("unshare", "--mount", "--uts", "--net", "--propagation", "private", "sh", "-c")
NO_NAME = "hostname nowhere-x7 && ip link set lo up"
SMALL = "mount -t tmpfs -o size=64k none /dev/shm"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or not (shutil.which("ip") and shutil.which("hostname"))
    or subprocess.run([*ALONE, f"{NO_NAME} && {SMALL}"], capture_output=True).returncode != 0,
    reason="needs root, namespaces (unshare), ip and hostname",
)

MPI_CHECKS = ("mpi-start", "mpi-small-message", "mpi-stale-buffer", "mpi-first-touch", "mpi-collectives")
MORE = ("mpi-gpu-aware", "mpi-cache-growth", "mpi-histories")


def run(prelude: str, *command: str) -> tuple[dict[str, list[dict[str, object]]], int]:
    """The findings of each check in namespaces of their own, and the exit code."""
    options = ("--config", FEW_MESSAGES, "--no-workarounds", "--json")
    program = (sys.executable, "-m", "gpuipc_doctor", "check", *command, *options)
    ended = subprocess.run(
        [*ALONE, f'{prelude} && exec "$@"', "sh", *program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **OPEN_MPI, **RESTING},
    )
    assert ended.stderr == ""
    found: dict[str, list[dict[str, object]]] = {}
    for result in json.loads(ended.stdout)["results"]:
        found.setdefault(result["check"], []).append(result["finding"])
    return found, ended.returncode


def with_library(name: str) -> tuple[str, str]:
    return "--mpi-lib", str(Path(os.environ["GPUIPC_TEST_MPI"], name, LIBRARIES[name]))


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_of_each_library_start_without_a_host_name_or_a_route(library: str) -> None:
    run_and_pass(library, "mpi-start")


@pytest.mark.mpi
@pytest.mark.full
def test_mpi_checks_run_without_a_host_name_or_a_route() -> None:
    run_and_pass("mpich50", *MPI_CHECKS, *MORE)


def run_and_pass(library: str, *checks: str) -> None:
    node = ("--simulate", "healthy-hip" if library == "impi" else "healthy-single")
    found, code = run(NO_NAME, *checks, *node, *with_library(library))
    assert code == 0, found
    for check in checks:
        assert {"PASS"} <= {finding["status"] for finding in found[check]} <= {"PASS", "SKIP"}, found[check]


@pytest.mark.mpi
@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_small_shared_memory_is_a_librarys_failure_only(library: str) -> None:
    """Ranks of a library may need more. Then /dev/shm stands first; no check's own code fails."""
    checks = ("mpi-start", "mpi-small-message")
    found, _ = run(
        f"{NO_NAME} && {SMALL}", "ipc-reopen", *checks, "--simulate", "healthy-single", *with_library(library)
    )
    assert {finding["status"] for finding in found["ipc-reopen"]} == {"PASS"}
    bad = [finding for check in checks for finding in found[check] if finding["status"] in ("FAIL", "ERROR")]
    for finding in bad:
        assert evidence(finding)[0].startswith("/dev/shm has 0"), finding


@pytest.mark.full
@pytest.mark.cuda
def test_collectives_meet_without_a_name_a_route_or_shared_memory() -> None:
    """The simulated library needs none; a real NCCL has needs of its own, which the preflight names."""
    found, code = run(f"{NO_NAME} && {SMALL}", "collective-start", "--simulate", "collectives-two")
    assert (code, {finding["status"] for finding in found["collective-start"]}) == (0, {"PASS"})
