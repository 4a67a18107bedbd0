"""Tests of check fabric-info: findings from recorded results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpuipc_doctor.api import Context
from gpuipc_doctor.model import Fact, Finding, Status
from gpuipc_doctor.probe_types import FabricStack, Probe, Program, StatedFabric
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
    adapter: dict[str, str] | None = None,
    programs: Mapping[str, Any] = {},
    stated: object = None,
    **seen: object,
) -> list[Finding]:
    adapters = [ADAPTER | adapter] if adapter is not None else []
    record = {
        "libfabric": "2.3.1",
        "interfaces": [OFFERED],
        "adapters": adapters,
        "ports": {},
        "health": [],
        "broken": {},
        **seen,
    }
    params = {"programs": programs, "known": [], "status_dir": None, "stated": stated}
    asked = {name: value for name, value in record.items() if value is not None}
    return conclude("fabric-info", {"fabric": asked}, (), **params)


def test_healthy_adapter_passes() -> None:
    [finding] = told({}, ucx="1.22.0")
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "libfabric 2.3.1, UCX 1.22.0, 1 adapter, all listed"
    assert "cxi0 (hsn0): link up, speed BS_200G, link layer retry on, loopback off" in sentences.evidence(
        finding
    )


@pytest.mark.parametrize(
    ("adapter", "seen", "status", "key"),
    [
        ({}, {"interfaces": []}, Status.FAIL, "not-offered"),
        ({"link": "down"}, {}, Status.FAIL, "link-down"),
        ({}, {"interfaces": [OFFERED | {"state": "down"}]}, Status.FAIL, "link-down"),
        ({"loopback": "internal"}, {}, Status.WARN, "loopback"),
        ({"retries": "off"}, {}, Status.WARN, "no-link-retry"),
    ],
)
def test_a_dead_or_unusual_adapter_is_a_finding(
    adapter: dict[str, str], seen: dict[str, object], status: Status, key: str
) -> None:
    [finding] = told(adapter, **seen)
    assert (finding.status, finding.key) == (status, key)


def test_reason_why_an_adapter_is_not_offered_is_reported() -> None:
    [finding] = told({"left_out": "its retry handler is not running"}, interfaces=[])
    assert sentences.summary(finding) == ("libfabric does not list cxi0 (its retry handler is not running)")
    assert finding.remedy.startswith("fix the cause named in brackets")


def test_programs_outside_path_are_reported() -> None:
    [finding] = told({}, {"fi_info": ["/opt/cray/libfabric/2.3.1/bin/fi_info", "not on PATH"]})
    assert (finding.status, finding.key) == (Status.WARN, "outside-path")
    assert "export PATH=/opt/cray/libfabric/2.3.1/bin:$PATH" in finding.remedy


def test_library_without_a_provider_is_reported_with_its_program() -> None:
    [finding] = told(None, {"fi_info": ["/usr/bin/fi_info", "PATH"]}, interfaces=[])
    assert (finding.status, finding.key) == (Status.WARN, "offers-nothing")
    assert sentences.summary(finding) == "libfabric has no usable provider: /usr/bin/fi_info lists none"


@pytest.mark.parametrize(
    ("ended", "status", "says"),
    [
        ("crashed", Status.FAIL, "fi_info crashed: SIGSEGV"),
        ("failed", Status.FAIL, "fi_info failed: SIGSEGV"),
        ("cannot start", Status.ERROR, "fi_info cannot start: SIGSEGV"),
        ("silent", Status.ERROR, "fi_info: SIGSEGV"),
    ],
)
def test_programs_that_list_nothing_are_reported(ended: str, status: Status, says: str) -> None:
    broken = {"fi_info": {"ended": ended, "said": "SIGSEGV"}}
    [finding] = told(None, {"fi_info": ["/usr/bin/fi_info", "PATH"]}, interfaces=None, broken=broken)
    assert (finding.status, sentences.summary(finding)) == (status, says)


def test_without_fi_info_there_is_no_finding_on_adapters() -> None:
    record = {"adapters": [ADAPTER], "ports": {}, "health": [], "broken": {}}
    params = {"programs": {}, "known": [], "status_dir": None, "stated": None}
    [finding] = conclude("fabric-info", {"fabric": record}, (), **params)
    assert (finding.status, finding.key) == (Status.WARN, "cannot-ask")


def test_failed_results_of_hpes_check_are_reported() -> None:
    results = [
        {"check": name, "result": result, "file": "/var/cxi/0", "when": "2026-11-22 10:00+00:00"}
        for name, result in (("pci_check", "Pass"), ("mac_check", "Skip"), ("link_flap_check", "Fail"))
    ]
    [finding] = told({}, health=results)
    assert (finding.status, finding.key) == (Status.FAIL, "healthcheck")
    assert sentences.summary(finding) == "HPE's cxi_healthcheck reports: link_flap_check"
    assert statuses(told({}, health=results[:2])) == GOOD


def test_directory_without_results_is_reported() -> None:
    record = {"adapters": [], "ports": {}, "health": [], "broken": {}}
    params = {"programs": {}, "known": [], "status_dir": "/var/cxi", "stated": None}
    [finding] = conclude("fabric-info", {"fabric": record}, (), **params)
    assert (finding.status, finding.key) == (Status.WARN, "no-results")


@pytest.mark.parametrize(
    "fact",
    [Fact("ucx", None, "nowhere"), Fact("mpich", "5.0.2", "/lib"), Fact("cxi-devices", None, "nowhere")],
)
def test_without_a_fabric_the_skip_names_the_packages(fact: Fact) -> None:
    [finding] = check("fabric-info").probes(Context(inventory=(fact,)))
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
def test_each_kind_of_fabric_is_probed(
    facts: tuple[Fact, ...], programs: dict[str, Program], known: list[str]
) -> None:
    [probe] = check("fabric-info").probes(Context(inventory=facts, fabric=FabricStack(programs)))
    assert isinstance(probe, Probe)
    assert probe.params["known"] == known
    assert list(probe.params["programs"]) == list(programs)


def test_providers_are_listed_if_there_are_any() -> None:
    [some], [none] = told({}), told(None, interfaces=[])
    assert "fi_info lists cxi" in sentences.evidence(some)
    assert not any("lists" in line for line in sentences.evidence(none))


# -- the fabric that the site config states -----------------------------------------------------------

NONE_LISTED: dict[str, tuple[str, ...]] = {"cxi": (), "verbs": (), "efa": (), "opa": ()}


def planned(name: str, facts: tuple[Fact, ...] = (), **listed: tuple[str, ...]) -> list[Probe | Finding]:
    stack = FabricStack(stated=StatedFabric(name, "x.yaml:3"), adapters=NONE_LISTED | listed)
    return list(check("fabric-info").probes(Context(inventory=facts, fabric=stack)))


@pytest.mark.parametrize(
    ("stated", "what", "sought"),
    [
        ("cxi", "HPE Slingshot", "cxi_ss1"),
        ("verbs", "InfiniBand or RoCE", "mlx5_ib"),
        ("efa", "AWS EFA", "driver efa"),
        ("opa", "Omni-Path", "driver hfi1"),
    ],
)
def test_a_stated_fabric_without_an_adapter_fails(stated: str, what: str, sought: str) -> None:
    [fail, skip] = planned(stated)
    assert isinstance(fail, Finding)
    assert (fail.status, fail.key) == (Status.FAIL, "no-adapter")
    said = f"no {what} adapter found; x.yaml:3 says this node has {stated}"
    assert sentences.summary(fail) == said
    assert sought in fail.remedy
    assert "if the node has no such adapter, correct x.yaml:3" in fail.remedy
    assert isinstance(skip, Finding)
    assert skip.key == "no-fabric"


def test_adapters_listed_instead_of_the_stated_fabric_are_reported_and_not_probed() -> None:
    fact = Fact("cxi-devices", "cxi0", "/sys/class/cxi")
    [fail, probe] = planned("verbs", (fact,), cxi=("cxi0",))
    assert isinstance(fail, Finding)
    assert sentences.evidence(fail) == ("the kernel lists cxi0 (cxi)",)
    assert isinstance(probe, Probe)
    assert probe.params["stated"] is None


@pytest.mark.parametrize("stated", ["tcp", "cxi"])
def test_tcp_needs_no_adapter(stated: str) -> None:
    keys = [finding.key for finding in planned(stated) if isinstance(finding, Finding)]
    assert ("no-adapter" in keys) is (stated == "cxi")


VERBS = ["verbs", "x.yaml:3", ["mlx5_0", "mlx5_1"]]
OVER_VERBS = {"provider": "verbs;ofi_rxm", "domain": "mlx5_0", "kind": "FI_EP_RDM", "state": "up"}
OVER_TCP = OVER_VERBS | {"provider": "tcp"}


def test_no_active_port_is_a_fail() -> None:
    ports = {"mlx5_0/1": "DOWN", "mlx5_1/1": "INIT"}
    [finding] = told(stated=VERBS, ports=ports, interfaces=[OVER_VERBS])
    assert (finding.status, finding.key) == (Status.FAIL, "no-active-port")
    assert sentences.summary(finding) == (
        "no port of mlx5_0, mlx5_1 is active; x.yaml:3 says this node has verbs"
    )
    assert sentences.evidence(finding) == ("mlx5_0/1 is DOWN", "mlx5_1/1 is INIT")
    [finding] = told(stated=VERBS, ports=ports | {"mlx5_1/1": "ACTIVE"}, interfaces=[OVER_VERBS])
    assert sentences.summary(finding) == "libfabric 2.3.1, verbs on mlx5_0, mlx5_1"


@pytest.mark.parametrize(
    ("stated", "seen", "offered"),
    [
        (VERBS, {"interfaces": [OVER_VERBS]}, True),
        (VERBS, {"interfaces": [OVER_TCP], "transports": ["tcp", "rc_mlx5"]}, True),
        (VERBS, {"interfaces": [OVER_TCP], "transports": ["tcp"]}, False),
        (VERBS, {"interfaces": [OVER_TCP]}, False),
        (VERBS, {"interfaces": None, "transports": ["tcp"]}, False),
        (VERBS, {"interfaces": None, "transports": ["rc_mlx5"]}, True),
        (VERBS, {"interfaces": None}, True),
        (["tcp", "x.yaml:3", None], {"interfaces": [OVER_TCP]}, True),
        (["tcp", "x.yaml:3", None], {"interfaces": [OVER_VERBS]}, False),
        (["cxi", "x.yaml:3", ["cxi0"]], {"interfaces": [OVER_TCP]}, True),
        (["efa", "x.yaml:3", ["efa_0"]], {"interfaces": [OVER_VERBS | {"provider": "efa"}]}, True),
        (["efa", "x.yaml:3", ["efa_0"]], {"interfaces": [OVER_TCP]}, False),
        (["opa", "x.yaml:3", ["hfi1_0"]], {"interfaces": [OVER_VERBS | {"provider": "psm2"}]}, True),
        (["opa", "x.yaml:3", ["hfi1_0"]], {"interfaces": [OVER_VERBS]}, False),
    ],
)
def test_stated_fabric_that_no_library_offers_is_reported(
    stated: object, seen: dict[str, object], offered: bool
) -> None:
    [finding] = told(stated=stated, **seen)
    assert finding.key == ("offered" if offered else "stated-not-offered")
    if not offered:
        assert finding.status is Status.WARN
        assert "which this node has according to x.yaml:3" in sentences.summary(finding)


def test_libraries_without_the_stated_fabric_are_reported_with_their_offers() -> None:
    [finding] = told(stated=VERBS, interfaces=[OVER_TCP, OVER_TCP], transports=[])
    assert sentences.evidence(finding)[:1] == ("fi_info lists tcp",)
    assert not any("ucx_info" in line for line in sentences.evidence(finding))
