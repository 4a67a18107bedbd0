"""Tests of check ipc-reopen: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Json, Probe
from gpuipc_doctor.model import Status, Tier
from gpuipc_doctor.report import sentences
from tests.checks.judging import ONE, Records, check, conclude


def test_reopen_passes_and_reports_its_control() -> None:
    records: Records = {
        "exporter": {"exchanged": []},
        "importer": {"wrong": [], "exchanged": []},
    }
    (finding,) = conclude("ipc-reopen", records, probe="reset-primary")
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "3 segments reopened (reset-primary), 148 MiB verified"
    assert sentences.evidence(finding) == ("2 segments opened twice in the same context",)


@pytest.mark.parametrize(("role", "key"), [("exporter", "writes-lost"), ("importer", "later-writes-unseen")])
def test_data_written_after_the_second_open_must_arrive(role: str, key: str) -> None:
    records: dict[str, dict[str, Json]] = {
        "exporter": {"exchanged": []},
        "importer": {"wrong": [], "exchanged": []},
    }
    records[role]["exchanged"] = ["turn 1 of 5: 1 B wrong"]
    (finding,) = conclude("ipc-reopen", records)
    assert (finding.status, finding.key) == (Status.FAIL, key)


def test_reopen_fails_on_wrong_data() -> None:
    records: Records = {
        "exporter": {"exchanged": []},
        "importer": {"wrong": ["segment 2: 1 B wrong"], "exchanged": []},
    }
    (finding,) = conclude("ipc-reopen", records)
    assert (finding.status, sentences.evidence(finding)) == (Status.FAIL, ("segment 2: 1 B wrong",))


@pytest.mark.parametrize(
    ("tier", "variants"),
    [(Tier.PROLOG, ["destroy-context"]), (Tier.ACCEPTANCE, ["destroy-context", "reset-primary"])],
)
def test_prolog_runs_one_variant_only(tier: Tier, variants: list[str]) -> None:
    planned = check("ipc-reopen").probes(Context(ONE, tier=tier))
    assert [probe.name for probe in planned if isinstance(probe, Probe)] == variants
