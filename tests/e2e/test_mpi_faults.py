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

from gpuipc_doctor.model import Relation, Report, RoleOutcome, Status
from gpuipc_doctor.report import exits, sentences
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
HIP_WITH = "mpich50"
"""The library that is also tested with HIP's memory; libraries hardly depend on the GPU's vendor."""

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

OF_LARGE = "mpi-wrong-large"
"""The fault of large messages. The others send small ones: large messages are tested here, and on healthy
nodes."""

HISTORIES = "mpi-histories"
"""The check that searches for the shortest history that fails: twenty launches, half of a fault's time."""

SEARCHED_IN_TURN = ("mpi-guard-overwritten",)
"""Faults that `HISTORIES` meets only where marked `full`: test_mpi_histories.py has its fault in every run.

Without it, the messages are tested on one device.
"""

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


def combinations(number: int, stated: Profile) -> list[tuple[str, str]]:
    """Libraries and vendors with which a fault is met: what MPI does wrong is injected into each in one way.

    One of the libraries, by the fault's place in the list, and HIP's memory with one fault of four, of those
    whose library with CUDA's memory is another. The drill has the others.
    """
    chosen = IN_EVERY_RUN.get(stated.name, list(LIBRARIES)[number % len(LIBRARIES)])
    is_flawed = chosen == "impi" and COLLECTIVES in stated.expect["cuda"].checks  # by flaws of its own
    return [(chosen, "hip" if is_flawed else "cuda"), *([(HIP_WITH, "hip")] if number % 4 == 2 else [])]


def runs() -> list[object]:
    """Faults with one library each in every run; `full`: all combinations."""
    stated = {name: profile.load(name) for name in profile.names()}
    faulty = [name for name, one in stated.items() if one.needs_mpi and not one.needs_fabric]
    faulty.remove(MANY_RANKS)
    return [
        pytest.param(
            *run, left_out, id="-".join(run) + also, marks=[at_once(library), *([pytest.mark.full] * rare)]
        )
        for number, name in enumerate(faulty)
        for library, backend in combinations(number, stated[name])
        for run in [(name, library, backend)]
        for is_chosen in [backend == "cuda" and IN_EVERY_RUN.get(name) == library]
        for left_out, also, rare in (
            [(HISTORIES, "", False), ("", "-searched", True)]
            if is_chosen and name in SEARCHED_IN_TURN
            else [("", "", not is_chosen)]
        )
    ]


def without(check: str, stated: Profile) -> Profile:
    """The profile as it is where this check does not run."""
    expect = {
        backend: replace(expected, findings=tuple(one for one in expected.findings if one.check != check))
        for backend, expected in stated.expect.items()
    }
    return replace(stated, expect=expect)


@pytest.mark.full
@pytest.mark.parametrize("library", [pytest.param(one, marks=at_once(one)) for one in ("mpich50", "openmpi")])
def test_ranks_that_hang_if_there_are_many_are_told_and_pairs_pass(library: str) -> None:
    stated = profile.load(MANY_RANKS)
    command = ("mpi-small-message", "--simulate", MANY_RANKS, "--mpi-lib", path_of(library))
    report, _ = check(*command, "--config", SMALL_MESSAGES, "--deadline", str(stated.deadline_s))
    holds(stated, "cuda", report)


@pytest.mark.parametrize(("name", "library", "backend", "left_out"), runs())
def test_fault_of_mpi_is_found_and_nothing_else(name: str, library: str, backend: str, left_out: str) -> None:
    stated = without(left_out, profile.load(name))
    deadline = ["--deadline", str(stated.deadline_s)] if stated.deadline_s else []
    expected = stated.expect[backend]
    checks = expected.checks or (GROWTH,)
    config = SMALL_SHARE if name == OF_LARGE else FEW_MESSAGES if GROWTH in checks else SMALL_MESSAGES
    report, _ = check(
        *checks,
        *("--simulate", name, "--backend", backend, "--mpi-lib", path_of(library)),
        *("--config", config, "--no-workarounds", *deadline, *(("--device", "0") if left_out else ())),
    )
    holds(stated, backend, report)
    told = [result for result in report.results if " #" in sentences.summary(result.finding)]
    hung = [result.roles[0] for result in told if "hung (" in sentences.summary(result.finding)]
    assert bool(hung) == ("-hang-" in name)
    assert all(map(shows_cxi, hung))
    if name == "mpi-hang-init":  # no message failed, so there is none to leave out and no rest to try
        assert [role.step for role in hung] == [""]
    if name in ("mpi-hang-16", "mpi-crash-256"):
        assert CXI_ISSUE in {join.issue for join in report.joins if join.relation is Relation.UNKNOWN}
        for result in told:
            assert any(line.endswith("cxil_map() failed: -22") for line in result.roles[0].log_tail)


@pytest.mark.full  # unit tests have the same series
@pytest.mark.parametrize(
    ("buffers", "status", "says"),
    [
        (16, Status.WARN, "about 16 freed buffers are kept on the sender's device"),
        (44, Status.FAIL, "used memory may level off at 44 freed buffers; "),
    ],
)
def test_bound_is_reported_in_soak_only_if_exceeded_twice(
    tmp_path: Path, buffers: int, status: Status, says: str
) -> None:
    """76 small buffers follow 12 large ones: with 44 kept, used memory ends at the large ones' level."""
    node = tmp_path / "cache.yaml"
    node.write_text(
        "description: The sender keeps large buffers.\nextends: healthy-both\nmpi-faults:\n"
        f"  - {{call: MPI_Send, memory: device, min: 1 MiB, do: leak, keeps: {buffers}}}\n"
    )
    report, _ = check(
        *(GROWTH, "--tier", "soak", "--simulate", str(node), "--backend", "cuda"),
        *("--mpi-lib", path_of("mpich50"), "--config", SMALL_SHARE, "--no-workarounds"),
    )
    [growing] = [result.finding for result in report.results if result.probe == "growing"]
    assert growing.status is status
    assert any(line.startswith(says) for line in (sentences.summary(growing), *sentences.evidence(growing)))


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
