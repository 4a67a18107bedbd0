"""Suppressed findings stay visible."""

from __future__ import annotations

from datetime import date

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Result, Status
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.results import suppress
from gpuipc_doctor.site.config import Waiver

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


def test_other_keys_and_good_findings_are_not_suppressed() -> None:
    assert wished(LEAKS, "ipc-release.other") == LEAKS
    fine = Result("ipc-release", Finding.ok("leaks", "none"))
    assert wished(fine) == fine
