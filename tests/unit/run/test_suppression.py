"""Suppressed findings stay visible."""

from __future__ import annotations

from datetime import date

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.api.capabilities import lacking
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.run.results import demand, suppress
from gpuipc_doctor.site.config import ExpectedGpus, Waiver

LEAKS = Result("ipc-release", Finding.fail("leaks", "{lost:mib} are lost", "seen", lost=2**20), ("cuda:0",))
TODAY = date(2026, 11, 22)


def wished(result: Result, key: str = "ipc-release.leaks", until: date | None = None) -> Result:
    return suppress(result, {key: Waiver("ticket 4711", "site.yaml:9", until)}, TODAY)


@pytest.mark.parametrize("until", [None, TODAY])
def test_suppressed_finding_is_a_skip_with_line_and_reason(until: date | None) -> None:
    finding = wished(LEAKS, until=until).finding
    assert finding.status is Status.SKIP
    says = "FAIL ipc-release.leaks is suppressed at site.yaml:9: ticket 4711"
    assert sentences.summary(finding) == says
    assert sentences.evidence(finding) == ("1 MiB are lost", "seen")


def test_finding_counts_after_the_last_day_and_says_so() -> None:
    finding = wished(LEAKS, until=date(2026, 11, 21)).finding
    assert (finding.status, finding.key) == (Status.FAIL, "leaks")
    says = "the suppression at site.yaml:9 ended on 2026-11-21 (ticket 4711)"
    assert sentences.evidence(finding) == ("seen", says)


@pytest.mark.parametrize(
    ("capabilities", "lacking", "status"),
    [
        ({}, ["legacy-ipc"], Status.SKIP),
        ({"legacy-ipc": Status.FAIL}, ["legacy-ipc"], Status.FAIL),
        ({"legacy-ipc": Status.WARN}, ["contexts", "legacy-ipc"], Status.WARN),
        ({"legacy-ipc": Status.WARN, "contexts": Status.FAIL}, ["contexts", "legacy-ipc"], Status.FAIL),
        ({"vmm-ipc": Status.FAIL}, ["legacy-ipc"], Status.SKIP),
    ],
)
def test_demanded_capability_has_the_sites_status(
    capabilities: dict[str, Status], lacking: list[str], status: Status
) -> None:
    skip = Finding.skip("not-supported", "it is a vGPU", remedy="nothing to repair", lacking=lacking)
    gpus = ExpectedGpus(where="site.yaml:3", capabilities=capabilities)
    finding = demand(Result("ipc-reopen", skip, ("cuda:0",)), gpus).finding
    assert finding.status is status
    demanded = status is not Status.SKIP
    assert ("site.yaml:3 demands" in "".join(sentences.evidence(finding))) is demanded
    assert ("nothing to repair" in finding.remedy) is not demanded


def test_demand_does_not_change_what_has_a_status() -> None:
    fine = Result("ipc-reopen", Finding.ok("right", "reopened", lacking=["legacy-ipc"]))
    assert demand(fine, ExpectedGpus(capabilities={"legacy-ipc": Status.FAIL})) == fine


@pytest.mark.parametrize(
    ("call", "capability"),
    [
        ("cuIpcGetMemHandle", "legacy-ipc"),
        ("hipIpcOpenMemHandle", "legacy-ipc"),
        ("cuMemPoolExportToShareableHandle", "pool-ipc"),
        ("cuMemPoolCreate", "memory-pools"),
        ("cuMemAllocFromPoolAsync", "memory-pools"),
        ("cuMemCreate", "vmm-ipc"),
        ("hipMemExportToShareableHandle", "vmm-ipc"),
    ],
)
def test_unsupported_call_names_the_capability(call: str, capability: str) -> None:
    assert lacking(call) == [capability]


def test_other_keys_and_good_findings_are_not_suppressed() -> None:
    assert wished(LEAKS, "ipc-release.other") == LEAKS
    fine = Result("ipc-release", Finding.ok("leaks", "none"))
    assert wished(fine) == fine
