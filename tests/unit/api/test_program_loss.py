"""A loss of a program is measured in a second run, and blamed on the program only if both runs had it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Finding, Json, ProbeOutcome
from gpuipc_doctor.api.program_loss import judge_loss, repeat_if_lost
from gpuipc_doctor.model import Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import MIB, ONE, completed, ledger

ROLES: dict[str, Any] = {"program": lambda w: None, "onlooker": lambda w: None}


def run(kept: int, missing: int, **params: Json) -> ProbeOutcome:
    """A run whose program kept ``kept`` MiB, with ``missing`` MiB missing after its end."""
    records: dict[str, dict[str, Json]] = {
        "program": {"kept": kept * MIB},
        "onlooker": ledger({"the program ended": missing * MIB}),
    }
    roles = {role: completed(role, facts) for role, facts in records.items()}
    return ProbeOutcome("PyTorch", ONE, {"allocator": "PyTorch", **params}, roles, None, 1.0, 7.0)


def kept(done: ProbeOutcome) -> Finding | None:
    nbytes = done.records["program"]["kept"]
    return Finding.fail("keeps", "{kept:mib} kept", kept=nbytes) if nbytes else None


@pytest.mark.parametrize(
    ("first", "second", "status", "key"),
    [
        ((0, 0), None, None, ""),
        ((30, 0), (30, 0), Status.FAIL, "keeps"),
        ((30, 0), (50, 0), Status.FAIL, "keeps"),
        ((30, 0), (0, 0), Status.ERROR, "unexplained-change"),
        ((30, 30), (0, 0), Status.ERROR, "unexplained-change"),
        ((30, 0), (30, 30), Status.ERROR, "unexplained-change"),
        ((30, 30), (30, 30), Status.FAIL, "not-returned"),
        ((0, 30), (0, 31), Status.FAIL, "not-returned"),
        ((0, 30), (0, 0), None, ""),
        ((0, 30), (0, 90), None, ""),
        ((0, 30), (30, 0), Status.ERROR, "unexplained-change"),
    ],
)
def test_loss_is_blamed_only_if_both_runs_had_it(
    first: tuple[int, int], second: tuple[int, int] | None, status: Status | None, key: str
) -> None:
    again = list(repeat_if_lost(run(*first), ROLES, kept))
    assert len(again) == (second is not None)
    for probe in again:
        assert (probe.name, probe.devices, probe.roles, probe.deadline_s) == ("PyTorch", ONE, ROLES, 7.0)
        done = run(*second, **probe.params)
        assert not list(repeat_if_lost(done, ROLES, kept))
        found = judge_loss(done, kept)
        assert (found and found.status, found.key if found else "") == (status, key)
    if not again:
        assert judge_loss(run(*first), kept) is None


def test_loss_that_could_not_be_repeated_is_an_error_with_the_first_sentence() -> None:
    (probe,) = repeat_if_lost(run(30, 0), ROLES, kept)
    stopped = ProbeOutcome("PyTorch", ONE, probe.params, {}, None, 0.0, stopped="budget")
    found = judge_loss(stopped, kept)
    assert found
    assert found.status is Status.ERROR
    assert "which was not repeated (budget)" in sentences.summary(found)
    assert sentences.evidence(found) == ("30 MiB kept",)


def test_crash_of_the_second_run_is_its_finding() -> None:
    (probe,) = repeat_if_lost(run(30, 0), ROLES, kept)
    crashed = ProbeOutcome("PyTorch", ONE, probe.params, {}, "program", 0.0)
    assert judge_loss(crashed, kept) is None
    assert not list(repeat_if_lost(crashed, ROLES, kept))
