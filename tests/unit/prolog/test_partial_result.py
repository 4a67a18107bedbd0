"""Results known while checks run; they decide if the run does not finish."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuipc_doctor.model import Finding, Json
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.prolog.decision import Concern, Kind
from gpuipc_doctor.prolog.guard import Answers, Channel
from gpuipc_doctor.prolog.partial_result import KnownSoFar, PartialResult
from gpuipc_doctor.report_types import Result
from gpuipc_doctor.site.policy import Action, PrologConfig

BAD = KnownSoFar(bad=(Concern(Kind.FAIL, "FAIL it is bad"),))


class Kept(Channel):
    """The last results that the guard was asked to keep."""

    def __init__(self) -> None:
        self.known: Any = None
        self.told: Answers = {}

    def keep(self, known: Json, answers: Answers) -> None:
        self.known, self.told = json.loads(json.dumps(known)), answers

    def doing(self, what: str) -> None:
        pass


@pytest.mark.parametrize("kind", [Kind.UNKILLABLE, Kind.ERROR, Kind.BUDGET])
def test_known_failure_drains_whatever_ends_the_test(kind: Kind) -> None:
    decided = BAD.decide(kind, "the budget was exhausted")
    assert (decided.exit_code, decided.text) == (12, "FAIL it is bad")
    assert BAD.answers[kind.value] == (12, "gpuipc-doctor: FAIL it is bad")


def test_known_results_survive_the_transfer_to_another_process() -> None:
    known = BAD._replace(policy=PrologConfig(on_fail=Action.LOG, log="/l"), results=({"check": "x"},))
    assert KnownSoFar.read(json.loads(json.dumps(known.written()))) == known


@pytest.mark.parametrize(("patient", "code"), [(False, 0), (True, 12)])
def test_unkillable_process_counts_against_the_node_after_enough_time(patient: bool, code: int) -> None:
    known = KnownSoFar(is_patient=patient)
    assert known.decide(Kind.UNKILLABLE, "pid 1 cannot be killed").exit_code == code
    assert known.answers["unkillable"] == (code, "")


def test_node_outside_the_share_does_not_drain() -> None:
    answers = BAD._replace(policy=PrologConfig(breaker={"share": 0.0})).answers
    assert [code for code, _ in answers.values()] == [0, 0, 0]
    assert (
        "would drain, but prolog.breaker.share (0) exempts this node: FAIL it is bad" in answers["error"][1]
    )


def test_results_and_running_checks_are_kept() -> None:
    kept = Kept()
    so_far = PartialResult(kept, KnownSoFar(), ())
    so_far.started("ipc-reopen cuda:0 x", "ipc-reopen on cuda:0", 1.0)
    assert kept.known["results"] == [
        {"check": "ipc-reopen", "status": "ERROR", "summary": "ipc-reopen on cuda:0 had not ended"}
    ]
    assert kept.told["budget"] == (0, "")
    so_far.finished("ipc-reopen cuda:0 x")
    role = RoleOutcome("importer", Ending.HUNG, operation="cuIpcOpenMemHandle", occurrence=1)
    so_far.concluded(Result("ipc-reopen", Finding.fail("hung", "it hung"), ("cuda:0",), roles=(role,)))
    assert [(row["check"], row["status"]) for row in kept.known["results"]] == [("ipc-reopen", "FAIL")]
    assert kept.told["budget"] == (12, "gpuipc-doctor: FAIL ipc-reopen: it hung")


def test_unknown_result_is_not_a_failure() -> None:
    kept = Kept()
    so_far = PartialResult(kept, KnownSoFar(), ())
    so_far.concluded(Result("ipc-reopen", Finding.error("", "no idea"), ("cuda:0",)))
    assert kept.known["bad"] == []
