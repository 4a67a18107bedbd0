"""Tests of check ipc-stale: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import conclude, statuses

RIGHT = [""] * 6
ONE_WRONG = ["", "new segment (larger, old mapping closed) shows the old data", *[""] * 4]


def ipc_stale(
    reused: Json = (True,) * 6,
    old: Json = RIGHT,
    new: Json = RIGHT,
    overlap: Json = (),
    same_handles: Json = (),
    expected: str = "differs",
    exporters: Json = (),
    importers: Json = (),
) -> list[Finding]:
    exporter = {
        "reused": reused,
        "same_handles": same_handles,
        "expected": expected,
        "exchanged": exporters,
    }
    importer = {"old": old, "new": new, "overlap": overlap, "exchanged": importers}
    return conclude("ipc-stale", {"exporter": exporter, "importer": importer})


@pytest.mark.parametrize(
    ("reused", "status"),
    [([True] * 6, Status.PASS), ([False] * 5 + [True], Status.PASS), ([False] * 6, Status.SKIP)],
)
def test_new_data_is_a_test_if_an_address_was_reused(reused: Json, status: Status) -> None:
    (finding,) = ipc_stale(reused=reused)
    assert finding.status is status
    assert sentences.evidence(finding) == (f"{sum(reused)} of 6 rounds reused the old address",)


def test_wrong_data_at_a_reused_address_is_stale() -> None:
    (finding,) = ipc_stale(new=ONE_WRONG)
    assert (finding.status, finding.key) == (Status.FAIL, "stale")
    assert sentences.evidence(finding) == (ONE_WRONG[1],)


@pytest.mark.parametrize("wrong", [{"old": ONE_WRONG}, {"new": ONE_WRONG, "reused": [True, False] * 3}])
def test_wrong_data_without_a_reused_address_is_not_stale(wrong: dict[str, Json]) -> None:
    (finding,) = ipc_stale(**wrong)
    assert (finding.status, finding.key) == (Status.FAIL, "wrong-data")
    assert "reused" not in sentences.summary(finding)
    assert sentences.evidence(finding) == (ONE_WRONG[1],)


@pytest.mark.parametrize(
    ("seen", "key"),
    [("overlap", "overlap"), ("exporters", "writes-lost"), ("importers", "later-writes-unseen")],
)
def test_new_handle_that_does_not_open_or_later_shows_wrong_data_fails(seen: str, key: str) -> None:
    (finding,) = ipc_stale(**{seen: ["new segment (larger, old mapping open)"]})
    assert (finding.status, finding.key) == (Status.FAIL, key)
    assert sentences.evidence(finding) == ("new segment (larger, old mapping open)",)


@pytest.mark.parametrize(
    ("expected", "found"), [("differs", [Status.WARN, Status.PASS]), ("same", [Status.PASS])]
)
def test_repeated_handle_is_a_finding_if_handles_should_differ(expected: str, found: list[Status]) -> None:
    assert statuses(ipc_stale(same_handles=["larger"], expected=expected)) == found
