"""``gpuipc-doctor drill``: output and exit codes, with the runs themselves replaced."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuipc_doctor.cli import drill
from gpuipc_doctor.model import Finding, Tier
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.report_types import Result as ReportResult
from gpuipc_doctor.simulator import drilling, profile
from gpuipc_doctor.vendors import AMD, SUPPORTED

HEALTHY = Report(
    host="node",
    started="2026-11-20T12:00:00+00:00",
    elapsed_s=1.0,
    tier=Tier.ACCEPTANCE,
    tool_version="0",
    devices=(),
    inventory=(),
    checks=(),
    results=(ReportResult("ipc-stale", Finding.ok("", "fine")),),
    probes_run=1,
)
OVERLAP = Finding.fail(
    "", "a stale mapping overlaps it", "cuIpcOpenMemHandle returned CUDA_ERROR_ALREADY_MAPPED (208)"
)
OVERLAPPING = replace(HEALTHY, results=(ReportResult("ipc-stale", OVERLAP),))

NO_BINDING = replace(AMD, binding=AMD.binding._replace(modules=("no_such_module",)))
"""AMD, with a binding that is not installed."""


@pytest.fixture(autouse=True)
def replaced_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(task: drilling.Task) -> tuple[Report, float]:
        reports = {"already-mapped": OVERLAPPING, "hang-init": replace(HEALTHY, interrupted=True)}
        return reports.get(task.name, HEALTHY), 1.25

    monkeypatch.setattr(drill, "_run", run)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(drill.command, ["--backend", "cuda", *arguments], terminal_width=80)


def test_findings_missed_in_some_repetitions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([OVERLAPPING, HEALTHY, OVERLAPPING])
    monkeypatch.setattr(drill, "_run", lambda *_: (next(outcomes), 1.0))
    ran = invoke("--repeat", "3", "already-mapped")
    assert ran.exit_code == 12
    [row] = [" ".join(line.split()) for line in ran.output.splitlines() if line.startswith("already-mapped")]
    assert "MISSED 2, 2 of 3" in row
    assert ran.output.splitlines()[-1] == "3 drills in 3 s: 2 as expected, 1 not"


def test_findings_on_the_real_mpi_library_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    not_aware = ReportResult("mpi-gpu-aware", Finding.fail("", "it takes no device pointers"))
    report = replace(HEALTHY, results=(*HEALTHY.results, not_aware))
    monkeypatch.setattr(drill, "_run", lambda *_: (report, 1.0))
    assert invoke("--mpi-lib", sys.executable, "healthy-cuda").exit_code == 0


def by_check(monkeypatch: pytest.MonkeyPatch, everything: Report, alone: Report) -> list[str | None]:
    """Replace the runs by these reports, of all checks and of one; returns the requested checks."""
    asked: list[str | None] = []

    def run(task: drilling.Task) -> tuple[Report, float]:
        asked.append(task.check)
        return (alone if task.check else everything), 1.0

    monkeypatch.setattr(drill, "_run", run)
    return asked


CALL = {"call": "cuMemImportFromShareableHandle"}
HUNG = ReportResult("ipc-new", Finding.fail("hung", "{call} hung", **CALL))
GIVEN_UP = ReportResult("ipc-vmm", Finding.skip("given-up", "it had hung in {call}", **CALL))


@pytest.mark.parametrize("alone", [(GIVEN_UP, HUNG), HEALTHY.results])
def test_check_that_did_not_run_or_finds_nothing_alone_missed_the_fault(
    monkeypatch: pytest.MonkeyPatch, alone: tuple[ReportResult, ...]
) -> None:
    by_check(monkeypatch, replace(HEALTHY, results=(HUNG, GIVEN_UP)), replace(HEALTHY, results=alone))
    ran = invoke("vmm-hang-import")
    assert ran.exit_code == 12
    assert "nothing invented" not in ran.output
    assert "MISSED    vmm-hang-import on cuda: ipc-vmm" in ran.output


def test_ctrl_c_ends_the_drill_with_its_results() -> None:
    ran = invoke("healthy-cuda", "hang-init", "healthy-both")
    assert ran.exit_code == 130
    assert ran.output.splitlines()[-1] == "1 drill in 1 s: 1 as expected, 0 not, 2 not completed"


def test_named_profile_that_cannot_run_is_reported_and_exits_with_11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUPPORTED, "hip", NO_BINDING)
    ran = CliRunner().invoke(drill.command, ["amd-ipc-reopen", "healthy-single"])
    assert ran.exit_code == 11
    assert ran.stdout.splitlines()[-2:] == [
        "NOT RUN   amd-ipc-reopen: the profile needs hip, but hip-python is not installed",
        "1 drill in 1 s: 1 as expected, 0 not",
    ]
    alone = invoke("--json", "healthy-hip")
    assert alone.exit_code == 11
    outcome = json.loads(alone.stdout)
    assert (outcome["good"], outcome["drills"]) == (False, [])
    assert outcome["not_run"] == {"healthy-hip": "the profile needs hip, but hip-python is not installed"}
    assert invoke("stale-data", "healthy-hip").exit_code == 12
    monkeypatch.setattr(drill.profile, "names", lambda: ["healthy-cuda", "healthy-hip"])
    assert invoke().exit_code == 0


def test_named_profile_of_another_backend_is_reported() -> None:
    ran = invoke("healthy-hip")
    assert ran.exit_code == 11
    assert "NOT RUN   healthy-hip: the profile needs hip, which --backend excludes" in ran.output


def test_every_line_fits_80_columns_and_the_screen_says_simulated() -> None:
    ran = invoke()
    assert ran.output.splitlines()[0] == "SIMULATED"
    assert max(map(len, ran.output.splitlines())) <= 80


def test_json_has_the_same_content() -> None:
    ran = invoke("--json", "stale-data", "healthy-cuda")
    outcome = json.loads(ran.output)
    assert outcome["simulated"] is True
    assert outcome["good"] is False
    assert [(drill["profile"], drill["backend"], drill["good"]) for drill in outcome["drills"]] == [
        ("stale-data", "cuda", False),
        ("healthy-cuda", "cuda", True),
    ]
    assert "exit 12 (it was 0)" in outcome["drills"][0]["verdict"]["missed"]


def test_profile_without_expectations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("description: Nothing.\n")
    ran = invoke(str(path))
    assert ran.exit_code == 2
    assert "lacks the key 'expect'" in ran.output


def test_faults_of_mpi_are_drilled_with_an_mpi_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill.profile, "names", lambda: ["healthy-both", "healthy-single", "mpi-segv"])
    assert invoke().output.splitlines()[-1].startswith("2 drills")
    assert invoke("--mpi-lib", sys.executable).output.splitlines()[-1].startswith("3 drills")


@pytest.mark.parametrize(
    ("name", "is_given"),
    [
        ("healthy-single", True),
        ("mpi-segv", True),
        ("mpi-wrong-fabric-right", True),
        ("already-mapped", False),
        ("cxi-healthy", False),
        ("fabric-wrong-byte", False),
    ],
)
def test_mpi_is_passed_for_faults_of_mpi_and_healthy_nodes(name: str, is_given: bool) -> None:
    request = drilling.request(profile.load(name), "cuda", "/opt/mpi/lib/libmpi.so.12", None)
    assert bool(request.mpi_lib) is is_given


def test_named_faults_of_mpi_require_an_mpi() -> None:
    ran = invoke("mpi-segv")
    assert ran.exit_code == 2
    assert "mpi-segv has faults of MPI; name a library with --mpi-lib" in ran.output


def test_backend_without_its_binding_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUPPORTED, "hip", NO_BINDING)
    ran = CliRunner().invoke(drill.command, ["healthy-both"])
    assert "hip is skipped: hip-python is not installed" in ran.stderr
    assert [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("healthy-both")] == [
        "cuda"
    ]


def test_single_check_is_compared_with_its_own_expectations() -> None:
    ran = invoke("--check", "ipc-stale", "already-mapped", "vmm-wrong-byte")
    assert ran.exit_code == 0
    rows = [" ".join(line.split()) for line in ran.output.splitlines()]
    assert "already-mapped cuda ipc-stale FAIL caught 1 1.2" in rows
    assert "vmm-wrong-byte cuda nothing nothing invented 1.2" in rows


def test_update_writes_unexpected_findings_of_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text(
        "description: A fault.\nextends: healthy-cuda\nexpect:\n  exit: 0\n  findings:\n"
        "    - {check: ipc-reopen, status: WARN}\n"
    )
    lost = replace(HEALTHY, results=(ReportResult("ipc-new", Finding.fail("lost", "lost")),))
    monkeypatch.setattr(drill, "_run", lambda *_: (lost, 1.0))
    assert invoke("--check", "ipc-new", str(path)).exit_code == 12
    before = path.read_text()
    ran = invoke("--check", "ipc-new", "--update", str(path))
    assert ran.exit_code == 0, ran.output
    assert "    - {check: ipc-new, status: FAIL, key: lost}\n" in path.read_text()
    assert path.read_text().startswith(before.replace("exit: 0", "exit: 12"))
    assert invoke("--check", "ipc-new", str(path)).exit_code == 0


def test_update_writes_findings_of_one_backend_with_that_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text(
        "description: A fault.\nextends: healthy-both\nexpect:\n  exit: 12\n  findings:\n"
        "    - {check: ipc-reopen, status: FAIL}\n"
    )
    status = {"cuda": Finding.fail("lost", "lost"), "hip": Finding.warn("odd", "odd")}
    monkeypatch.setattr(
        drill,
        "_run",
        lambda task: (replace(HEALTHY, results=(ReportResult("ipc-new", status[task.backend]),)), 1.0),
    )
    ran = CliRunner().invoke(drill.command, ["--check", "ipc-new", "--update", str(path)])
    assert ran.exit_code == 0, ran.output
    assert path.read_text().endswith(
        "    - {check: ipc-new, status: FAIL, key: lost, backend: cuda}\n"
        "    - {check: ipc-new, status: WARN, key: odd, backend: hip}\n"
    )


def test_update_requires_a_check() -> None:
    ran = invoke("--update", "already-mapped")
    assert ran.exit_code == 2
    assert "--update needs --check" in ran.output
