"""Tests of check ipc-reopen: planned probes, and findings from recorded results."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Context, Finding, Json, Probe
from gpuipc_doctor.model import Status, Tier
from gpuipc_doctor.report import sentences
from tests.checks.judging import ONE, check, conclude


def reopen(exporter: Json = (), importer: Json = (), wrong: Json = ()) -> Finding:
    records = {"exporter": {"exchanged": exporter}, "importer": {"wrong": wrong, "exchanged": importer}}
    (finding,) = conclude("ipc-reopen", records, probe="reset-primary")
    return finding


def test_reopen_passes_and_reports_its_control() -> None:
    finding = reopen()
    assert finding.status is Status.PASS
    assert sentences.summary(finding) == "3 segments reopened (reset-primary), 148 MiB verified"
    assert sentences.evidence(finding) == ("2 segments opened twice in the same context",)


@pytest.mark.parametrize(
    ("where", "key"),
    [("exporter", "writes-lost"), ("importer", "later-writes-unseen"), ("wrong", "wrong-data")],
)
def test_wrong_data_at_either_end_fails(where: str, key: str) -> None:
    finding = reopen(**{where: ["turn 1 of 5: 1 B wrong"]})
    assert (finding.status, finding.key) == (Status.FAIL, key)
    assert sentences.evidence(finding) == ("turn 1 of 5: 1 B wrong",)


@pytest.mark.parametrize(
    ("tier", "variants"),
    [(Tier.PROLOG, ["destroy-context"]), (Tier.ACCEPTANCE, ["destroy-context", "reset-primary"])],
)
def test_prolog_runs_one_variant_only(tier: Tier, variants: list[str]) -> None:
    planned = check("ipc-reopen").probes(Context(ONE, tier=tier))
    assert [probe.name for probe in planned if isinstance(probe, Probe)] == variants
