"""Only probes known to harm nodes with the versions found are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig
from tests.conformance.conftest import simulated_node

VMM = {("ipc-handles", "VMM memory")}
KILLS = {
    ("ipc-pool", "exporter gone"),
    ("ipc-release", "kill"),
    ("ipc-vmm", "exporter gone"),
    ("ipc-vmm", "importer gone"),
}


@pytest.mark.hip
@pytest.mark.parametrize(
    ("rocm", "accepted", "left_out"),
    [
        ("6.4.3", False, VMM),  # whether it is affected is unknown
        ("7.0.0", False, VMM),
        ("7.1.1", False, VMM | KILLS),
        ("7.1.1", True, set()),
    ],
)
def test_probes_that_harm_a_rocm_release_are_skipped(
    tmp_path: Path, rocm: str, accepted: bool, left_out: set[tuple[str, str]]
) -> None:
    profile = tmp_path / "node.yaml"
    profile.write_text(f"description: A ROCm.\nextends: healthy-hip\nversions:\n  rocm: {rocm}\n")
    checks = ("ipc-handles", "ipc-pool", "ipc-release", "ipc-vmm")
    request = Request(checks, backend="hip", devices=("hip:0",), accept_harm=accepted)
    with simulated_node(str(profile)) as node:
        plan = engine.dry_run(request, SiteConfig(), node, Silent()).plan
    said = {(result.check, result.probe) for result in plan.concluded if result.finding.key == "would-harm"}
    assert said == left_out
    assert not left_out & {(planned.check.id, planned.probe.name) for planned in plan.probes}
    assert {planned.check.id for planned in plan.probes} == set(checks)
