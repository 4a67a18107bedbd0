"""Every fault of a driver: the command reports what the profile expects, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.model import Exit, MemoryShare, Status
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.simulator import drill, profile
from gpuipc_doctor.simulator.profile import Expectation, Profile
from tests.command_server import SERVER
from tests.e2e.conftest import Command
from tests.waiting import LIMIT_S, until

SHARED_MEMORY = Path("/dev/shm")


HEALTHY = "healthy-single"

ODD = {
    "counter-lags": ("cuda", "driver-pool-release", "ipc-pool", "ipc-release"),
    "dmabuf-none": ("cuda", "ipc-dmabuf"),
    "fabric-not-permitted": ("cuda", "ipc-fabric"),
    "granule-16-mib": ("cuda", "ipc-vmm", "ipc-vmm-release"),
    "healthy-imex": ("cuda", "ipc-fabric"),
    "nvlink-not-supported": ("cuda", "gpu-health"),
    "setsid-grandchild": ("cuda", "driver-pool-reuse", "ipc-handles"),
    "slow-driver": ("hip", "ipc-concurrent", "ipc-reopen", "ipc-stale"),
    "stderr-flood": ("cuda", "ipc-handles"),
}
"""Odd nodes → the driver and checks that they could mislead and that must find nothing there."""

FAULTY = {
    "abort-ipc-open": ("cuda", "ipc-histories"),
    "amd-vmm-context-import": ("hip", "ipc-vmm"),
    "close-leaks-odd-size": ("cuda", "ipc-release"),
    "close-snapshots": ("hip", "ipc-pool", "ipc-concurrent"),
    "copy-on-device-skipped": ("cuda", "ipc-peer", "driver-pool-reuse"),
    "dmabuf-leaks-descriptors": ("hip", "ipc-dmabuf"),
    "dmabuf-wrong-offset": ("cuda", "ipc-dmabuf"),
    "error-then-hang": ("hip", "ipc-reopen"),
    "fabric-handle-wrong-byte": ("cuda", "ipc-fabric"),
    "hang-init": ("cuda", "driver-init"),
    "ignores-sigterm": ("cuda", "ipc-handles"),
    "ipc-leaks-descriptors": ("cuda", "ipc-release"),
    "kernels-lose-adds": ("cuda", "ipc-kernels"),
    "nvidia-455.32.00": ("cuda", "known-versions"),
    "nvlink-fabric-error": ("cuda", "gpu-health"),
    "pool-never-trims": ("hip", "driver-pool-release"),
    "stale-part": ("hip", "ipc-stale"),
    "unmap-wipes-later": ("cuda", "ipc-vmm-release"),
}
"""Faulty nodes → the driver and checks that meet the fault in every run.

So each check finds a fault once, and a process crashes, hangs, ignores SIGTERM or loses a descriptor. Of
other effects on these calls, tests/checks judges what the roles then record, and the drill runs all.
"""

CHECKS_LET_OFF = {
    "error-export-unexportable": 4,  # the eighth export of a process may be any check's of its tour
    "error-then-hang": 9,
    "sticky-error": 6,
    "out-of-memory-falsely": 4,
}
"""Profile → most checks that may blame the faulty call although the profile does not expect it: one more than
seen when all nodes were drilled, as room for a new check. A call that fails once and then hangs has most."""

ELSEWHERE_LET_OFF = 2

STATED = [
    stated
    for stated in map(profile.load, profile.names())
    # Faults of MPI are in test_mpi_faults.py, of libfabric in test_fabric.py, of NCCL in test_collectives.py.
    if stated.expect and not (stated.needs_mpi or stated.needs_fabric or stated.has_collectives)
]


def differs(stated: Profile) -> bool:
    """Whether something else is expected on the other vendor's driver."""
    return len({frozenset(map(str, expected.findings)) for expected in stated.expect.values()}) > 1


def run(stated: Profile, backend: str, *more: object) -> object:
    marks = getattr(pytest.mark, backend)
    return pytest.param(stated, backend, *more, id=f"{stated.name}-{backend}", marks=marks)


CAN_FAIL = {
    found.check
    for stated in STATED
    for expected in stated.expect.values()
    for found in expected.findings
    if found.status is Status.FAIL
}


def in_every_run() -> list[object]:
    """The odd nodes, and each check on a node with a fault that it finds, with one vendor's driver each."""
    return [
        run(stated, backend, tuple(checks))
        for stated in STATED
        if stated.name in (chosen := FAULTY | ODD)
        for backend, *checks in [chosen[stated.name]]
    ]


def test_each_check_that_can_fail_finds_a_fault_in_every_run() -> None:
    assert {check for _, *checks in FAULTY.values() for check in checks} >= CAN_FAIL


_ALLOCATORS = "the fault is an allocator's, not a driver's: tests/e2e/test_allocators.py"

WITHOUT_PROFILE = {
    "allocator-growth": _ALLOCATORS,
    "allocator-ipc": _ALLOCATORS,
    "allocator-pressure": _ALLOCATORS,
    "allocator-stream-reuse": _ALLOCATORS,
    "collective-speed": "only a site config says what is too slow: tests/checks/test_collective_speed.py",
    "dcgm-diag": "only runs on request, and dcgmi is no driver: tests/e2e/test_dcgm.py",
    "environment": "only a site config makes a setting a FAIL: tests/unit/run/test_site_expectations.py",
    "known-versions": "without a site config a version is a WARN: tests/checks/test_known_versions.py",
    "mpi-gpu-aware": "every MPI accepts simulated device memory: tests/checks/test_mpi_gpu_aware.py",
}
"""Checks that fail on no simulated node → why, and the test in which they do."""


def test_each_check_fails_on_a_simulated_node_or_says_why_not() -> None:
    failing = {
        found.check
        for stated in map(profile.load, profile.names())
        for expected in stated.expect.values()
        for found in expected.findings
        if found.status is Status.FAIL
    }
    assert loader.built_in().keys() - failing == WITHOUT_PROFILE.keys()
    assert [why for why in WITHOUT_PROFILE.values() if not Path(why.rpartition(": ")[2]).is_file()] == []


def part(expected: Expectation, checks: Sequence[str]) -> Expectation:
    """The expectation where only these checks run."""
    findings = tuple(found for found in expected.findings if found.check in checks)
    worst = max((found.status for found in findings), key=lambda status: status.severity, default=None)
    code = {Status.FAIL: Exit.FAIL, Status.ERROR: Exit.ERROR}.get(worst, Exit.OK) if worst else Exit.OK
    return replace(expected, findings=findings, exit_code=min(code, expected.exit_code))


@pytest.mark.parametrize(("stated", "backend", "checks"), in_every_run())
def test_fault_is_found_and_nothing_is_left(
    stated: Profile, backend: str, checks: tuple[str, ...], tmp_path: Path
) -> None:
    """One device, unless pairs are expected; without devices, `check --all`, which then tests nothing."""
    expected = stated.expect[backend]
    is_of_pairs = any(found.subject == "pair" or found.check == "ipc-peer" for found in expected.findings)
    asked = (*checks, *(() if is_of_pairs else ("--device", "0"))) if stated.devices else ("--all",)
    some = replace(stated, expect={backend: part(expected, checks)})
    find(some, backend, tmp_path, *asked)


@pytest.mark.full
@pytest.mark.parametrize(
    ("stated", "backend", "whole"),
    [
        run(stated, backend, number % 9 == 0)
        for number, stated in enumerate(STATED)
        for place, backend in enumerate(stated.expect)
        if place == number % len(stated.expect) or differs(stated)
    ],
)
def test_checks_find_what_the_profile_expects_and_nothing_else(
    stated: Profile, backend: str, whole: bool, tmp_path: Path
) -> None:
    """All checks on every ninth node, elsewhere those that must find something; one vendor's driver, in turn.

    Both drivers are simulated by the same code. The drill runs all checks on all nodes with both.
    """
    expected = stated.expect[backend]
    whole = whole or expected.exit_code == Exit.NOTHING  # that code is of a request that needs a GPU
    find(stated, backend, tmp_path, *(("--all",) if whole or not expected.checks else expected.checks))


def find(stated: Profile, backend: str, directory: Path, *checks: str) -> None:
    """Assert that these checks report everything that the profile expects, and nothing else."""
    command = [*checks, "--simulate", stated.name, "--backend", backend]
    if stated.deadline_s:
        command += ["--deadline", str(stated.deadline_s)]
    if stated.memory != MemoryShare():
        config = directory / "share.yaml"
        config.write_text(f"memory: {{most_gib: {stated.memory.most_gib}}}\n")
        command += ["--config", str(config)]
    report, code = check(*command)
    assert report.simulated == stated.name
    expected = stated.expect[backend]
    verdict = drill.judge(expected, drill.rows(report), code)
    assert verdict.missed == (), [*map(str, drill.rows(report))]
    assert verdict.invented == ()
    few_are_let_off(stated, expected, report)
    for given_up in verdict.given_up:
        assert checks != (given_up,)
        alone = replace(stated, expect={backend: expected.of(given_up)})
        find(alone, backend, directory, given_up)


def few_are_let_off(stated: Profile, expected: Expectation, report: Report) -> None:
    """Assert that few checks fail without being expected, on any number of devices."""
    checks = {row.check for row in drill.rows(report) if drill.follows(row, expected)}
    assert len(checks) <= CHECKS_LET_OFF.get(stated.name, ELSEWHERE_LET_OFF), checks


def check(*arguments: str) -> tuple[Report, int]:
    """Run ``gpuipc-doctor check``, and assert that it leaves nothing; returns its report and exit code."""
    tag = f"GPUIPC_TEST_RUN={uuid.uuid4()}"
    name, _, value = tag.partition("=")
    shared_before = ours_in_shared_memory()
    ended = SERVER.run(
        *("gpuipc_doctor.cli.main", "check", "--json", *arguments),
        env={**os.environ, name: value},
        timeout=LIMIT_S,
    )
    assert processes_with(tag) == []
    assert left_in_shared_memory(shared_before) == set()
    assert ended.stderr == ""
    return report_json.loads(ended.stdout), ended.returncode


def processes_with(tag: str) -> list[str]:
    """Command lines of the running processes that inherited the environment of this run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if tag.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def ours_in_shared_memory() -> set[Path]:
    return set(SHARED_MEMORY.glob("gpuipc*")) if SHARED_MEMORY.is_dir() else set()


def left_in_shared_memory(before: set[Path]) -> set[Path]:
    """New files in shared memory whose names are in no process's command line or environment."""
    left = ours_in_shared_memory() - before

    def gone() -> bool:
        in_use = " ".join(map(_names, Path("/proc").glob("[0-9]*")))
        left.intersection_update(path for path in ours_in_shared_memory() if str(path) not in in_use)
        return not left

    with suppress(AssertionError):
        until("nothing is left", gone, limit_s=30.0)
    return left


def _names(process: Path) -> str:
    """Command line and environment of a process."""
    try:
        told = b"".join((process / file).read_bytes() for file in ("cmdline", "environ"))
    except OSError:
        return ""
    return told.replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("faults", "exit_code", "says"),
    [
        ([], 0, "with each exit with it open would have been detected in 24 rounds"),
        ([{"call": "exit", "do": "leak", "bytes": "2 MiB"}], 12, "grows by 2 MiB with each exit"),
    ],
    ids=["healthy", "2 MiB"],
)
def test_soak_finds_losses_of_an_exit_too_small_for_one_exit(
    doctor: Command, tmp_path: Path, faults: list[dict[str, str]], exit_code: int, says: str
) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        json.dumps({"description": ".", "extends": HEALTHY, "faults": faults, "expect": {"exit": 0}})
    )
    arguments = ("--tier", "soak", "--simulate", str(node), "--backend", "cuda", "--json")
    ended = doctor("check", "ipc-release", *arguments)
    assert ended.returncode == exit_code, ended.stdout
    (finding,) = (
        result["finding"] for result in json.loads(ended.stdout)["results"] if result["probe"] == "many exits"
    )
    assert says in "\n".join([finding["summary"], *(line["line"] for line in finding["evidence"])])
