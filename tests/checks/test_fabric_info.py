"""What the check fabric-info concludes from what its role recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpuipc_doctor.api import Context
from gpuipc_doctor.model import FabricStack, Fact, Finding, Probe, Program, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, check, conclude, statuses

ADAPTER = {
    "name": "cxi0",
    "link": "up",
    "speed": "BS_200G",
    "retries": "on",
    "loopback": "off",
    "interface": "hsn0",
    "left_out": "",
}
OFFERED = {"provider": "cxi", "domain": "cxi0", "kind": "FI_EP_RDM", "state": "up"}


def told(
    adapter: dict[str, str] | None = None, programs: Mapping[str, Any] = {}, **seen: object
) -> list[Finding]:
    adapters = [ADAPTER | adapter] if adapter is not None else []
    record = {"libfabric": "2.3.1", "interfaces": [OFFERED], "adapters": adapters, "health": [], **seen}
    params = {"programs": programs, "known": [], "status_dir": None}
    return conclude("fabric-info", {"fabric": record}, (), **params)


def test_what_is_here() -> None:
    [finding] = told({}, ucx="1.22.0")
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "libfabric 2.3.1, UCX 1.22.0, 1 adapter, all offered"
    assert "cxi0 (hsn0): link up, speed BS_200G, link layer retry on, loopback off" in sentences.evidence(
        finding
    )


@pytest.mark.parametrize(
    ("adapter", "seen", "key"),
    [
        ({}, {"interfaces": []}, "not-offered"),
        ({"link": "down"}, {}, "link-down"),
        ({}, {"interfaces": [OFFERED | {"state": "down"}]}, "link-down"),
    ],
)
def test_a_dead_adapter_fails(adapter: dict[str, str], seen: dict[str, object], key: str) -> None:
    [finding] = told(adapter, **seen)
    assert (finding.status, finding.key) == (Status.FAIL, key)


def test_why_an_adapter_is_not_offered_is_said() -> None:
    [finding] = told({"left_out": "its retry handler is not running"}, interfaces=[])
    assert sentences.summary(finding) == (
        "libfabric offers cxi0 to nobody (its retry handler is not running)"
    )


@pytest.mark.parametrize(
    ("adapter", "key"), [({"loopback": "internal"}, "loopback"), ({"retries": "off"}, "no-link-retry")]
)
def test_settings_of_a_port_are_pointed_out(adapter: dict[str, str], key: str) -> None:
    [finding] = told(adapter)
    assert (finding.status, finding.key) == (Status.WARN, key)


def test_programs_outside_path_are_pointed_out() -> None:
    [finding] = told({}, {"fi_info": ["/opt/cray/libfabric/2.3.1/bin/fi_info", "not on PATH"]})
    assert (finding.status, finding.key) == (Status.WARN, "outside-path")
    assert "export PATH=/opt/cray/libfabric/2.3.1/bin:$PATH" in finding.remedy


def test_without_fi_info_nothing_is_concluded_of_adapters() -> None:
    record = {"adapters": [ADAPTER], "health": []}
    params = {"programs": {}, "known": [], "status_dir": None}
    [finding] = conclude("fabric-info", {"fabric": record}, (), **params)
    assert (finding.status, finding.key) == (Status.WARN, "cannot-ask")


def test_what_hpes_check_found_is_told_and_what_passed_is_not() -> None:
    results = [
        {"check": name, "result": result, "file": "/var/cxi/0", "when": "2026-11-22 10:00+00:00"}
        for name, result in (("pci_check", "Pass"), ("mac_check", "Skip"), ("link_flap_check", "Fail"))
    ]
    [finding] = told({}, health=results)
    assert (finding.status, finding.key) == (Status.FAIL, "healthcheck")
    assert sentences.summary(finding) == "HPE's cxi_healthcheck has found: link_flap_check"
    assert statuses(told({}, health=results[:2])) == GOOD


def test_a_directory_without_results_is_named() -> None:
    record = {"adapters": [], "health": []}
    params = {"programs": {}, "known": [], "status_dir": "/var/cxi"}
    [finding] = conclude("fabric-info", {"fabric": record}, (), **params)
    assert (finding.status, finding.key) == (Status.WARN, "no-results")


def test_with_nothing_to_look_at_it_says_what_would_bring_it() -> None:
    [finding] = check("fabric-info").probes(Context(inventory=(Fact("ucx", None, "nowhere"),)))
    assert isinstance(finding, Finding)
    assert (finding.status, finding.key) == (Status.SKIP, "no-fabric")
    assert "--mpi-lib" in finding.remedy


@pytest.mark.parametrize(
    ("facts", "programs", "known"),
    [
        (
            (Fact("libfabric", "2.3.1", "/lib"), Fact("mpich", "5.0.2", "/lib")),
            {},
            ["libfabric 2.3.1 (/lib)"],
        ),
        ((Fact("cxi-devices", "cxi0", "/sys/class/cxi"),), {}, []),
        ((Fact("cxi-devices", None, "no /sys/class/cxi"),), {"fi_info": Program("/bin/fi_info", "PATH")}, []),
    ],
)
def test_whatever_there_is_is_looked_at(
    facts: tuple[Fact, ...], programs: dict[str, Program], known: list[str]
) -> None:
    [probe] = check("fabric-info").probes(Context(inventory=facts, fabric=FabricStack(programs)))
    assert isinstance(probe, Probe)
    assert probe.params["known"] == known
    assert list(probe.params["programs"]) == list(programs)


@pytest.mark.parametrize("fact", [Fact("mpich", "5.0.2", "/lib"), Fact("cxi-devices", None, "nowhere")])
def test_what_is_no_fabric_is_not(fact: Fact) -> None:
    [finding] = check("fabric-info").probes(Context(inventory=(fact,)))
    assert isinstance(finding, Finding)
    assert finding.key == "no-fabric"


def test_the_providers_are_told_where_there_are_any() -> None:
    [some], [none] = told({}), told(None, interfaces=[])
    assert "fi_info offers cxi" in sentences.evidence(some)
    assert not any("offers" in line for line in sentences.evidence(none))
