"""Trials without a setting: how many, what they prove, and which failures they serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.model import Evidence, EvidenceKind, Finding, Trial
from gpuipc_doctor.probe_types import Ending, ProbeOutcome, RoleOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import causes
from gpuipc_doctor.run.causes import setting_trials
from gpuipc_doctor.run.conclusions import Ended, NotRun
from gpuipc_doctor.run.results import Entry, ResultLog
from gpuipc_doctor.site.config import SourcedValue
from gpuipc_doctor.supervise.start import environment_with
from tests.unit.run.test_causes import ROOMY, entry

SET = {"UCX_TLS": "rc_verb", "FI_PROVIDER": "psm2", "MPIR_CVAR_CH4_NETMOD": "ofi"}
PASSES = ProbeOutcome("", (), {}, {"rank 0": RoleOutcome("rank 0", Ending.COMPLETED)}, None, 1.0)
HANGS = ProbeOutcome(
    "", (), {}, {"rank 0": RoleOutcome("rank 0", Ending.HUNG, operation="MPI_Init_thread")}, "rank 0", 9.0
)
CRASHES = ProbeOutcome(
    *("", (), {}, {"rank 0": RoleOutcome("rank 0", Ending.CRASHED, operation="MPI_Init_thread")}),
    *("rank 0", 1.0),
)
CUT = ProbeOutcome("", (), {}, {}, None, 30.0, stopped="budget")
BUDGET = NotRun(Finding.skip("budget", "time budget exhausted"), "budget")


def explain(answers: Mapping[str, Ended], *failed: Entry, control: Ended = CRASHES) -> Iterator[str]:
    """The variables that were left out in turn, empty for a control. ``answers``: variable → the rerun
    without it; the others crash."""
    left_out: list[str] = []

    def rerun(planned: Any, env: Mapping[str, str], unset: frozenset[str], most_s: float) -> Ended:
        assert 0 < most_s <= setting_trials.TRIAL_S
        left_out.append("".join(unset))
        return answers.get(left_out[-1], CRASHES) if unset else control

    log = ResultLog()
    for number, each in enumerate(failed):
        each.planned.number = number  # type: ignore[misc]
        log._add(each)
    causes.explain(log, ROOMY, lambda: ROOMY, SET, rerun=rerun)
    return iter(left_out)


def test_setting_of_the_site_is_removed_from_its_config() -> None:
    failed, log = entry("abort at start"), ResultLog()
    log._add(failed)
    of_site = {"UCX_TLS": SourcedValue("rc_verb", "site.yaml:4")}
    causes.explain(
        *(log, ROOMY, lambda: ROOMY, {}),
        of_site=of_site,
        rerun=lambda planned, env, unset, most_s: PASSES if "UCX_TLS" in unset else CRASHES,
    )
    assert failed.reported[0].remedy == "remove UCX_TLS from site.yaml:4"


def test_process_is_started_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "rc")
    monkeypatch.setenv("LD_PRELOAD", "hook.so")
    additions = {"UCX_TLS": "sm", "LD_PRELOAD": "simulated.so", "OTHER": "1"}
    found = environment_with(additions, unset=frozenset(["UCX_TLS", "LD_PRELOAD"]))
    assert "UCX_TLS" not in found
    assert (found["LD_PRELOAD"], found["OTHER"]) == ("simulated.so", "1")  # the tool's own part stays


def summary(failed: Entry) -> str:
    return sentences.summary(failed.reported[0])


def test_two_settings_are_tried_and_the_third_is_mentioned() -> None:
    failed = entry("abort at start", "provider psm2 is unknown")
    assert list(explain({}, failed)) == ["FI_PROVIDER", "UCX_TLS"]  # the one that is named, then by the table
    assert summary(failed) == "it failed"
    assert sentences.evidence(failed.reported[0]) == ("also set here: MPIR_CVAR_CH4_NETMOD=ofi",)


def test_setting_without_which_the_probe_passes_is_tried_with_it_again() -> None:
    failed = entry("abort at start")
    assert list(explain({"UCX_TLS": PASSES}, failed)) == ["FI_PROVIDER", "UCX_TLS", ""]
    assert summary(failed).startswith("UCX_TLS=rc_verb (environment) chooses")


def test_rerun_with_logs_is_the_second_failure() -> None:
    failed = entry("abort at start")
    failed.trials.append(Evidence(EvidenceKind.RERUN, "same failure", {"outcome": "same"}))
    assert list(explain({"FI_PROVIDER": PASSES}, failed)) == ["FI_PROVIDER"]
    assert summary(failed).startswith("FI_PROVIDER=psm2")


def test_probe_that_also_passes_with_the_setting_proves_nothing() -> None:
    failed = entry("abort at start")
    list(explain({"FI_PROVIDER": PASSES}, failed, control=PASSES))
    assert failed.without["FI_PROVIDER"] is Trial.UNKNOWN
    assert summary(failed) == "it failed"


def test_probe_that_passed_when_rerun_is_not_tried() -> None:
    failed = entry("abort at start")
    failed.trials.append(Evidence(EvidenceKind.RERUN, "passed this time", {"outcome": "went-through"}))
    assert not list(explain({"FI_PROVIDER": PASSES}, failed))


@pytest.mark.parametrize("ended", [HANGS, CUT, BUDGET])
def test_trial_that_does_not_end_leaves_the_cause_untold(ended: Ended) -> None:
    failed = entry("abort at start")
    list(explain({"FI_PROVIDER": ended, "UCX_TLS": ended}, failed))
    assert set(failed.without.values()) == {Trial.UNKNOWN}
    assert summary(failed) == "it failed"
    assert failed.reported[0].remedy == "the right one"


def test_trial_that_hangs_like_the_probe_shows_that_the_setting_is_innocent() -> None:
    failed = entry("hang at start")
    list(explain({"FI_PROVIDER": HANGS, "UCX_TLS": HANGS}, failed))
    assert set(failed.without.values()) == {Trial.DOES_NOT_HELP}


def test_equal_failures_share_a_trial() -> None:
    failed = entry("abort at start"), entry("abort at start")
    assert list(explain({"FI_PROVIDER": PASSES}, *failed)) == ["FI_PROVIDER", ""]
    assert [summary(each).startswith("FI_PROVIDER") for each in failed] == [True, True]


def test_all_trials_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_trials, "TRIALS_S", 0.0)
    failed = entry("abort at start")
    assert not list(explain({"FI_PROVIDER": PASSES}, failed))
    assert summary(failed) == "it failed"


def test_line_that_a_passing_process_also_prints_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "rank 0.log").write_text("pid 7: Failed to initialize hmem iface FI_HMEM_ZE\n")
    failed = entry(
        "abort at start", "pid 8: Failed to initialize hmem iface FI_HMEM_ZE\nprovider x is unknown"
    )
    list(explain({"FI_PROVIDER": replace(PASSES, logs=str(tmp_path))}, failed))
    assert failed.outcome
    assert failed.outcome.roles["rank 0"].log_tail == ("provider x is unknown",)


@pytest.mark.parametrize(("failure", "kept"), [("isend", 0), ("killed", 1), ("hang at start", 0)])
def test_signal_by_which_a_launcher_ends_the_other_ranks_is_no_evidence(failure: str, kept: int) -> None:
    failed = entry(failure, "=   KILLED BY SIGNAL: 9 (Killed)")
    list(explain({}, failed))
    assert failed.outcome
    assert len(failed.outcome.roles["rank 0"].log_tail) == kept
