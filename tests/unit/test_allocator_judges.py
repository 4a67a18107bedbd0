"""What the allocator checks conclude, and where they cannot tell; for faults see e2e/test_allocators.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuipc_doctor.allocator import installed
from gpuipc_doctor.api import Context
from gpuipc_doctor.model import Fact, Finding, Json, Status, Tier
from tests.unit.test_check_judges import ONE, conclude, gpu

MIB = 1 << 20


def growth(used: Sequence[float], others: float = 0.0, live: float = 200.0) -> Finding:
    """``used``: MiB in each round, then when all is freed, and twice after giving back."""
    samples = {
        "used": [mib * MIB for mib in used],
        "reserved": [mib * MIB for mib in used],
        "allocated": [live * MIB for _ in used],
        "seconds": list(range(len(used))),
    }
    program = {
        "live": live * MIB,
        "rounds": len(used) - 3,
        "samples": samples,
        "call": "MemoryPool.free_all_blocks",
        "release_s": {"idle": 0.001, "beside": 0.052, "kernel": 0.05},
    }
    records: dict[str, dict[str, Json]] = {"program": program, "onlooker": {"left": others * MIB}}
    (finding,) = conclude("allocator-growth", records, ONE, "MemoryPool")
    return finding


CLIMBING = [200 + 20 * n for n in range(20)]
LEVEL = [200, 300, 400, *[600] * 17]


def test_a_cache_that_levels_off_and_comes_back_passes_and_tells_what_giving_back_waits_for() -> None:
    finding = growth([*LEVEL, 600, 0, 0])
    assert finding.status is Status.PASS
    assert finding.summary == (
        "MemoryPool: levels off at 3.0 times what is allocated; "
        "MemoryPool.free_all_blocks gave back 600.0 MiB of 600.0 MiB"
    )
    assert finding.evidence == (
        "MemoryPool.free_all_blocks waits for kernels: 1.0 ms, and 52.0 ms beside one of 50 ms",
    )


@pytest.mark.parametrize(
    ("used", "others", "status"),
    [
        ([*CLIMBING, 580, 0, 0], 0, Status.FAIL),
        ([*CLIMBING, 580, 400, 400], 0, Status.FAIL),
        ([*CLIMBING, 580, 400, 400], 400, Status.ERROR),
        ([*LEVEL, 600, 30, 30], 0, Status.FAIL),
        ([*LEVEL, 600, 30, 30], 30, Status.ERROR),
        ([*LEVEL, 600, 0, 30], 0, Status.FAIL),
        ([*LEVEL, 600, 0, 0], 30, Status.PASS),
        ([*LEVEL, 600, 1, 1], 0, Status.PASS),
        ([200, 900, *[1300] * 18, 1300, 0, 0], 0, Status.WARN),
    ],
)
def test_growth_is_the_programs_only_where_its_end_takes_it_along(
    used: Sequence[float], others: float, status: Status
) -> None:
    assert growth(used, others).status is status


def pressure(**changes: Any) -> list[Finding]:
    samples = {"used": [0, 900 * MIB, changes.pop("kept", 0)], "reserved": [], "allocated": [], "seconds": []}
    bystander = {"wrong": changes.pop("overwritten", ""), "left": changes.pop("others", 0)}
    program = {
        "room": 1000 * MIB,
        "samples": samples,
        "wrong": [],
        "refused": "",
        "releases_s": [0.002],
        "call": "torch.cuda.empty_cache",
        **changes,
    }
    return conclude("allocator-pressure", {"program": program, "bystander": bystander}, ONE, probe="PyTorch")


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, [Status.PASS]),
        ({"overwritten": "1 of 2 B wrong"}, [Status.FAIL]),
        ({"wrong": ["block 1 of 3: 1 B wrong"], "refused": "asked for 1 MiB"}, [Status.FAIL, Status.FAIL]),
        ({"kept": 30 * MIB}, [Status.FAIL]),
        ({"kept": 30 * MIB, "others": 30 * MIB}, [Status.ERROR]),
        ({"others": 30 * MIB}, [Status.PASS]),
    ],
)
def test_pressure_tells_whose_memory_is_missing(changes: dict[str, Any], statuses: list[Status]) -> None:
    assert [finding.status for finding in pressure(**changes)] == statuses


def ipc(probe: str, **exporter: Json) -> Finding:
    records: dict[str, dict[str, Json]] = {"exporter": exporter, "importer": {"wrong": []}}
    (finding,) = conclude("allocator-ipc", records, ONE, probe)
    return finding


SHARED = {"one_handle": True, "offsets": [0, 3 * MIB], "piece": 20 * MIB, "kept": 20 * MIB}


@pytest.mark.parametrize(
    ("missing", "status"),
    [(0, Status.PASS), (20 * MIB, Status.FAIL), (70 * MIB, Status.ERROR), (-70 * MIB, Status.ERROR)],
)
def test_only_what_was_shared_can_be_kept(missing: int, status: Status) -> None:
    assert ipc("PyTorch", **SHARED, missing=missing).status is status


@pytest.mark.parametrize(
    ("probe", "kind", "status"),
    [
        ("MemoryPool", "plain", Status.FAIL),
        ("MemoryAsyncPool", "async-pool", Status.PASS),
        ("PyTorch", "vmm", Status.WARN),
        ("PyTorch expandable", "vmm", Status.PASS),
    ],
)
def test_a_refusal_is_bad_where_none_was_documented_or_chosen(probe: str, kind: str, status: Status) -> None:
    assert ipc(probe, refused="INVALID_VALUE", kind=kind, chosen_by="SETTING=x").status is status


@pytest.mark.parametrize(
    ("facts", "backend", "names"),
    [
        (
            [Fact("cupy", "14.2.0", "cupy_cuda13x-14.2.0.dist-info")],
            "cuda",
            ("MemoryPool", "MemoryAsyncPool"),
        ),
        ([Fact("cupy", "14.2.0", "cupy_cuda13x-14.2.0.dist-info")], "hip", ()),
        ([Fact("cupy", "13.6.0", "cupy_rocm_5_0-13.6.0.dist-info")], "hip", ("MemoryPool",)),
        ([Fact("pytorch", "2.11.0", "torch-2.11.0.dist-info")], "cuda", ("PyTorch",)),
        ([Fact("pytorch", "2.11.0+rocm7.0", "torch-2.11.0+rocm7.0.dist-info")], "hip", ("PyTorch",)),
        ([Fact("pytorch", "2.11.0+cpu", "torch-2.11.0+cpu.dist-info")], "cuda", ()),
        ([Fact("cupy", None, "no cupy*-*.dist-info in Python's path")], "cuda", ()),
    ],
)
def test_allocators_are_those_of_libraries_built_for_the_device(
    facts: list[Fact], backend: str, names: tuple[str, ...]
) -> None:
    assert installed(facts, backend) == names


def test_allocators_are_tested_on_one_device_of_each_backend_and_in_soak_on_all() -> None:
    facts = (Fact("pytorch", "2.11.0", "torch-2.11.0.dist-info"),)
    devices = (gpu(0), gpu(1), gpu(0, "hip"))
    assert Context(devices, facts).allocators == ((devices[0], "PyTorch"),)
    soak = Context(devices, facts, tier=Tier.SOAK)
    assert soak.allocators == ((devices[0], "PyTorch"), (devices[1], "PyTorch"))
