"""Tests of check ipc-stale: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Finding, Json
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import GOOD, conclude, statuses

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


def test_new_data_passes_and_reports_the_reused_addresses() -> None:
    (finding,) = ipc_stale()
    assert finding.status is Status.PASS
    assert sentences.evidence(finding) == ("6 of 6 rounds reused the old address",)


def test_a_new_handle_at_a_new_address_proves_nothing() -> None:
    (finding,) = ipc_stale(reused=[False] * 6)
    assert finding.status is Status.SKIP
    assert sentences.summary(finding) == "no address was reused, so nothing was tested"


def test_one_reused_address_is_a_test() -> None:
    assert statuses(ipc_stale(reused=[False] * 5 + [True])) == GOOD


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
