"""Tests of check ipc-concurrent: planned probes, and findings from recorded results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.api import Context, Device, Finding, Json, Probe, Tier
from gpuipc_doctor.api.slopes import last_third
from gpuipc_doctor.model import MemoryShare, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import Kept, check, conclude, gpu

WRONG = ["round 2, 4194304 B, at 0: 1 B wrong"]
OTHERS = ("newcomer", "importer-1", "importer-2", "importer-3")
ABLE = frozenset({"legacy-ipc", "vmm-ipc", "multi-process"})


def seen(
    wrong: Json = (), lost: Json = (), exports: int = 90, where: str = "importer-2", *, large: bool = True
) -> list[Finding]:
    records: dict[str, dict[str, Json]] = {role: {"wrong": []} for role in OTHERS}
    records[where] = {"wrong": wrong}
    records["exporter"] = {"lost": lost, "exports": exports, "verified": 16 << 20}
    return conclude("ipc-concurrent", records, sizes=[1, 4 << 20], rounds=8, large=large)


@pytest.mark.parametrize(
    ("told", "status", "key"),
    [
        ({}, Status.PASS, "right"),
        ({"lost": WRONG}, Status.FAIL, "writes-lost"),
        ({"exports": 0}, Status.SKIP, "not-concurrent"),
        ({"exports": 0, "wrong": WRONG}, Status.FAIL, "wrong-data"),
        ({"lost": WRONG, "wrong": WRONG}, Status.FAIL, "wrong-data"),  # one cause, one finding
    ],
)
def test_data_and_exports_make_one_finding(told: dict[str, Json], status: Status, key: str) -> None:
    (finding,) = seen(**told)
    assert (finding.status, finding.key) == (status, key)
    if key == "right":
        says = "3 importers opened 8 segments at the same time, 16 MiB correct"
        assert sentences.summary(finding) == says


@pytest.mark.parametrize("role", OTHERS)
def test_wrong_data_fails_and_names_the_role(role: str) -> None:
    (finding,) = seen(WRONG, where=role)
    assert (finding.status, finding.key) == (Status.FAIL, "wrong-data")
    assert any(role in line for line in sentences.evidence(finding))


@pytest.mark.parametrize("large", [True, False])
def test_untested_large_segments_are_reported(large: bool) -> None:
    (finding,) = seen(large=large)
    assert any("not tested" in line for line in sentences.evidence(finding)) is not large


def planned(*devices: Device, most_gib: float = 2.0, tier: Tier = Tier.ACCEPTANCE) -> list[Probe]:
    context = Context(devices, memory=MemoryShare(most_gib=most_gib), tier=tier)
    return [probe for probe in check("ipc-concurrent").probes(context) if isinstance(probe, Probe)]


def able(index: int, *peers: str) -> Device:
    return replace(gpu(index), capabilities=ABLE, peers=frozenset(peers))


@pytest.mark.parametrize(("most_gib", "largest"), [(2.0, 0), (2.1, 2), (4.1, 4)])
def test_large_segments_are_shared_as_far_as_the_share_of_memory_reaches(
    most_gib: float, largest: int
) -> None:
    probes = planned(able(0), most_gib=most_gib)
    large = [probe for probe in probes if probe.name.endswith("large")]
    assert [probe.params["sizes"][0] >> 30 for probe in large] == ([largest] * 2 if largest else [])
    assert all(probe.exclusive for probe in large)
    assert {probe.params["sizes"][0] for probe in probes if probe not in large} == {1}
    assert {probe.params["large"] for probe in probes} == {bool(largest)}


@pytest.mark.parametrize("tier", [Tier.ACCEPTANCE, Tier.SOAK])
def test_only_the_first_newcomer_of_a_kind_ends_and_only_soak_writes_large_segments_whole(tier: Tier) -> None:
    probes = planned(able(0), able(1), most_gib=20.0, tier=tier)
    small = [probe for probe in probes if not probe.exclusive]
    assert [bool(probe.ends) for probe in small] == [True, True, False, False]
    assert all(probe.params["whole"] for probe in small)
    assert {probe.params["whole"] for probe in probes if probe.exclusive} == {tier is Tier.SOAK}


def test_a_pair_shares_descriptors_if_both_devices_can() -> None:
    plain = replace(able(1, "cuda:0"), capabilities=ABLE - {"vmm-ipc"})
    assert {probe.name for probe in planned(able(0), plain)} == {"handles"}


@pytest.mark.parametrize("lossy", [0, 1])
def test_loss_with_the_segments_of_one_size_is_found(lossy: int) -> None:
    """ROCm 7.2.4 loses a descriptor and 4 MiB of addresses with each segment of 4 MiB."""
    handles = next(probe for probe in planned(able(0)) if probe.name == "handles")
    sizes = handles.params["sizes"]
    left = [
        sum(number % len(sizes) == lossy for number in range(done))
        for done in range(handles.params["rounds"])
    ]
    records: dict[str, dict[str, Json]] = {role: {"wrong": []} for role in OTHERS}
    loss = {"times": 1, "descriptors": last_third(left)}
    records["exporter"] = {"lost": [], "exports": 9, "verified": 1, Kept("usage"): {"shared segment": loss}}
    (finding,) = conclude("ipc-concurrent", records, rounds=len(left), large=True)
    assert finding.key == "descriptors-left"
    assert sentences.summary(finding) == "exporter: open descriptors grow by 0.5 with each shared segment"
