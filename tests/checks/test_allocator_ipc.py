"""Tests of check allocator-ipc: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.model import Fact, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, check, conclude, metered


def ipc(probe: str, importer: Json = None, **exporter: Json) -> Finding:
    records: dict[str, dict[str, Json]] = {
        "exporter": exporter,
        "importer": importer or {"wrong": [], "exchanged": []},
    }
    (finding,) = conclude("allocator-ipc", records, ONE, probe)
    return finding


SHARED = {
    "exchanged": [],
    "one_handle": True,
    **metered({"the importer had closed everything": 0}),
    "offsets": [0, 3 * MIB],
    "piece": 20 * MIB,
    "kept": 20 * MIB,
}


@pytest.mark.parametrize(
    ("missing", "status"),
    [(0, Status.PASS), (20 * MIB, Status.FAIL), (70 * MIB, Status.ERROR), (-70 * MIB, Status.ERROR)],
)
def test_missing_memory_is_a_fail_only_up_to_the_shared_size(missing: int, status: Status) -> None:
    told = metered({"the importer had closed everything": missing})
    assert ipc("PyTorch", **{**SHARED, **told}).status is status


def test_shared_handle_and_kept_memory_are_evidence() -> None:
    assert sentences.evidence(ipc("PyTorch", **SHARED)) == (
        "two blocks of 3 MiB share one handle, at offsets 0, 3145728",
        "20 MiB that the allocator had released stayed in use until both blocks were closed",
    )


@pytest.mark.parametrize(
    ("exporter", "importer", "key"),
    [
        ([], {"wrong": ["1 B wrong"], "exchanged": []}, "other-memory"),
        ([], {"wrong": [], "exchanged": ["1 B wrong"]}, "later-writes-unseen"),
        (["1 B wrong"], {"wrong": [], "exchanged": []}, "writes-lost"),
    ],
)
def test_wrong_data_fails_in_both_directions(exporter: Json, importer: Json, key: str) -> None:
    finding = ipc("PyTorch", importer, **{**SHARED, "exchanged": exporter})
    assert (finding.status, finding.key) == (Status.FAIL, key)


def test_pytorch_is_also_tested_with_expandable_segments() -> None:
    facts = (
        Fact("pytorch", "2.11.0", "torch-2.11.0.dist-info"),
        Fact("cupy", "14.2.0", "cupy_cuda13x.dist-info"),
    )
    planned = check("allocator-ipc").probes(Context(ONE, facts))
    names = [probe.name for probe in planned if isinstance(probe, Probe)]
    assert sorted(names) == ["MemoryAsyncPool", "MemoryPool", "PyTorch", "PyTorch expandable"]


@pytest.mark.parametrize(
    ("probe", "kind", "status"),
    [
        ("MemoryPool", "plain", Status.FAIL),
        ("MemoryAsyncPool", "async-pool", Status.PASS),
        ("PyTorch", "vmm", Status.WARN),
        ("PyTorch expandable", "vmm", Status.PASS),
    ],
)
def test_refusal_fails_unless_documented_or_chosen(probe: str, kind: str, status: Status) -> None:
    assert ipc(probe, refused="INVALID_VALUE", kind=kind, chosen_by="SETTING=x").status is status
