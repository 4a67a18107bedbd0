"""Tests of check allocator-pressure: planned probes, and findings from recorded results."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, check, conclude, drawn, metered, outcome


def pressure(**changes: Any) -> list[Finding]:
    lost = {"lost": changes.pop("lost")} if "lost" in changes else {}
    return conclude("allocator-pressure", records(**changes), ONE, probe="PyTorch", **lost)


def records(**changes: Any) -> dict[str, dict[str, Json]]:
    samples = {"used": [0, 900 * MIB, changes.pop("kept", 0)], "reserved": [], "allocated": [], "seconds": []}
    after = {"missing": changes.pop("others", 0), "waited_s": changes.pop("waited_s", 0.1)}
    bystander = {"wrong": changes.pop("overwritten", ""), **metered({"the program ended": after})}
    program = {
        "room": 1000 * MIB,
        "samples": samples,
        "wrong": [],
        "refused": "",
        "releases_s": [0.002],
        "call": "torch.cuda.empty_cache",
        **metered(moves=changes.pop("moves", True)),
        **changes,
    }
    return {"program": program, "onlooker": bystander}


KEPT = {"found": {"key": "keeps", "says": "30 MiB kept", "values": {}}, "missing": 0}
"""Results of a first run that lost memory."""


@pytest.mark.parametrize(
    ("releases_s", "says"),
    [
        ([0.002, 0.004], "memory ran out 2 times; the allocator then released its cache within 4 ms"),
        ([], "the allocator never needed to release its cache"),
    ],
)
def test_memory_released_under_pressure_is_reported(releases_s: list[float], says: str) -> None:
    (finding,) = pressure(releases_s=releases_s)
    assert sentences.evidence(finding) == (says,)


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, [Status.PASS]),
        ({"overwritten": "1 of 2 B wrong"}, [Status.FAIL]),
        ({"wrong": ["block 1 of 3: 1 B wrong"], "refused": "asked for 1 MiB"}, [Status.FAIL, Status.FAIL]),
        ({"kept": 30 * MIB}, [Status.FAIL]),
        ({"lost": KEPT, "kept": 50 * MIB}, [Status.FAIL]),
        ({"lost": KEPT}, [Status.ERROR]),
        ({"lost": {"found": None, "missing": 30 * MIB}, "others": 30 * MIB}, [Status.FAIL]),
        ({"kept": 30 * MIB, "others": 30 * MIB}, [Status.ERROR]),
        ({"others": 30 * MIB}, [Status.PASS]),
        ({"waited_s": 4.0}, [Status.WARN]),
        ({"kept": 30 * MIB, "moves": False}, [Status.ERROR]),
    ],
)
def test_pressure_shows_whose_memory_is_missing(changes: dict[str, Any], statuses: list[Status]) -> None:
    assert [finding.status for finding in pressure(**changes)] == statuses


@pytest.mark.parametrize(
    ("changes", "runs"),
    [({}, 0), ({"kept": 30 * MIB}, 1), ({"kept": 30 * MIB, "wrong": ["block 1 of 3: 1 B wrong"]}, 0)],
)
def test_only_lost_memory_with_correct_data_is_looked_at_in_another_run(
    changes: dict[str, Any], runs: int
) -> None:
    done = outcome(records(**changes), ONE, "PyTorch")
    assert len(list(check("allocator-pressure").again(done))) == runs


def test_samples_are_drawn_with_marks() -> None:
    program = {
        "room": 1000 * MIB,
        "samples": {
            **{name: [n * MIB for n in range(3)] for name in ("used", "reserved", "allocated")},
            "seconds": [0.0, 1.0, 2.0],
            "marks": [(1.0, "all freed")],
        },
    }
    (drawing,) = drawn("allocator-pressure", {"program": program}, ONE, "PyTorch")
    assert drawing.title == "PyTorch: repeated fills of up to 1000.0 MiB"
    assert (drawing.at, [mark.text for mark in drawing.marks]) == ((0.0, 1.0, 2.0), ["all freed"])
