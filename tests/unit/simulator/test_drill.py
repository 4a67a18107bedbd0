"""Comparing a run with its profile's expected findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.model import Finding, Status, Tier
from gpuipc_doctor.probe_types import Calls, Ending, RoleOutcome
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.simulator.drill import DrillResult, Row, callers, judge
from gpuipc_doctor.simulator.profile import Expectation, Expected

REOPEN = Expected("ipc-reopen", Status.FAIL, "destroy-context", ("cuIpcOpenMemHandle", "400"))
FAULTY = Expectation(12, (REOPEN,))
HEALTHY = Expectation(0, ())

FOUND = Row("ipc-reopen", "destroy-context", Status.FAIL, "cuIpcOpenMemHandle #4\nreturned 400")
FINE = Row("ipc-stale", "same-size", Status.PASS, "64 rounds")


def test_expected_finding_is_caught() -> None:
    verdict = judge(FAULTY, [FINE, FOUND], 12)
    assert verdict == DrillResult(
        ("ipc-reopen destroy-context FAIL mentioning 'cuIpcOpenMemHandle' and '400'",), (), ()
    )
    assert verdict.good


@pytest.mark.parametrize(
    "row",
    [
        Row("ipc-release", "destroy-context", Status.FAIL, FOUND.text),
        Row("ipc-reopen", "keep-context", Status.FAIL, FOUND.text),
        Row("ipc-reopen", "destroy-context", Status.ERROR, FOUND.text),
        Row("ipc-reopen", "destroy-context", Status.FAIL, "cuIpcOpenMemHandle #4 hung"),
    ],
    ids=["other check", "other probe", "other status", "other words"],
)
def test_other_bad_finding_is_missed_and_invented(row: Row) -> None:
    verdict = judge(FAULTY, [row], 12)
    assert not verdict.caught
    assert len(verdict.missed) == 1
    assert verdict.invented == (str(row),)
    assert not verdict.good


def test_finding_must_have_the_expected_subject() -> None:
    on_pairs = Expectation(12, (replace(REOPEN, subject="pair"),))
    assert judge(on_pairs, [replace(FOUND, subject="pair")], 12).good
    verdict = judge(on_pairs, [FOUND], 12)
    assert verdict.invented == (str(FOUND),)
    assert verdict.missed[0].startswith("ipc-reopen destroy-context FAIL on a pair")


def test_ucx_may_have_the_finding_expected_of_libfabric() -> None:
    check = "fabric-small-message"
    must = Expected(check, Status.FAIL, mentions=("tcp: 256 B",), key="crashed")
    libfabric = Row(check, "libfabric", Status.FAIL, "crashed\ntcp: 256 B", "node", "crashed")
    ucx = Row(check, "UCX", Status.FAIL, "crashed\ncuda: 256 B", key="crashed")
    assert judge(Expectation(12, (must,)), [libfabric], 12).good
    assert judge(Expectation(12, (must,)), [libfabric, ucx], 12).good
    assert judge(Expectation(12, (must,)), [ucx], 12).missed
    assert judge(Expectation(12, (must,)), [libfabric, replace(ucx, key="failed")], 12).invented
    assert judge(HEALTHY, [ucx], 12).invented


def test_finding_expected_sometimes_is_neither_missed_nor_invented() -> None:
    race = Expected("ipc-histories", Status.FAIL, key="data", at_times=True)
    expected = Expectation(12, (REOPEN, race))
    row = Row("ipc-histories", "", Status.FAIL, "memory is wrong", key="data")
    assert judge(expected, [FOUND], 12).good
    assert judge(expected, [FOUND, row], 12).good
    assert judge(expected, [FOUND, replace(row, key="crash")], 12).invented
    assert judge(expected, [row], 12).missed
    alone = Expectation(12, (race,))
    assert judge(alone, [FINE], 0).good
    assert judge(alone, [FINE], 11).missed
    assert judge(alone, [row], 0).missed
    assert judge(expected, [FINE], 0).missed


@pytest.mark.parametrize("status", [Status.WARN, Status.ERROR, Status.FAIL])
def test_bad_finding_on_a_healthy_node_is_invented(status: Status) -> None:
    row = Row("ipc-stale", "same-size", status, "stale bytes\nand more of it")
    assert judge(HEALTHY, [row], 0).invented == (f"ipc-stale {status.value}: stale bytes",)


def test_wrong_exit_code_is_missed() -> None:
    assert judge(FAULTY, [FOUND], 0).missed == ("exit 12 (it was 0)",)


@pytest.mark.parametrize(
    ("status", "call", "check", "invented"),
    [
        (Status.FAIL, "cuIpcOpenMemHandle", "ipc-new", False),
        (Status.FAIL, "cuIpcOpenMemHandle", "ipc-reopen", True),  # another finding of this check is expected
        (Status.FAIL, "cuMemAlloc", "ipc-new", True),
        (Status.FAIL, "", "ipc-new", True),
        (Status.WARN, "cuIpcOpenMemHandle", "ipc-new", True),
    ],
)
def test_finding_that_blames_the_faulty_call_is_not_invented(
    status: Status, call: str, check: str, invented: bool
) -> None:
    expectation = replace(FAULTY, faulted=frozenset({"cuIpcOpenMemHandle"}))
    row = Row(check, "", status, "it hung", call=call)
    verdict = judge(expectation, [FOUND, row], 12)
    assert bool(verdict.invented) is invented
    assert bool(verdict.let_off) is not invented


@pytest.mark.parametrize(
    ("text", "check", "is_let_off"),
    [
        ("failed once …\ncuIpcOpenMemHandle #3 hung (3 s)", "ipc-new", True),
        ("failed once …\ncuMemAlloc #3 hung (3 s)", "ipc-new", False),
        ("failed once …\ncuIpcOpenMemHandle #3 hung (3 s)", "ipc-reopen", False),
    ],
)
def test_failure_in_company_follows_from_the_faulty_call(text: str, check: str, is_let_off: bool) -> None:
    expectation = replace(FAULTY, faulted=frozenset({"cuIpcOpenMemHandle"}))
    row = Row(check, "", Status.WARN, text, key="failed-in-company")
    verdict = judge(expectation, [FOUND, row], 12)
    assert (bool(verdict.let_off), bool(verdict.invented)) == (is_let_off, not is_let_off)


GIVEN_UP = Row("ipc-reopen", "", Status.SKIP, "it had hung", key="given-up", call="cuIpcOpenMemHandle")
HUNG = Row("ipc-new", "", Status.FAIL, "cuIpcOpenMemHandle #1 hung", call="cuIpcOpenMemHandle")


@pytest.mark.parametrize(
    ("row", "other", "missed"),
    [
        (GIVEN_UP, HUNG, 0),
        (GIVEN_UP, FINE, 1),
        (replace(GIVEN_UP, call="cuCtxCreate"), HUNG, 1),
        (replace(GIVEN_UP, key="budget"), HUNG, 1),
        (replace(GIVEN_UP, check="ipc-stale"), HUNG, 1),
    ],
    ids=["given up", "nobody hung", "for another call", "for another reason", "another check"],
)
def test_check_skipped_after_hangs_must_run_alone(row: Row, other: Row, missed: int) -> None:
    hung = replace(FAULTY, faulted=frozenset({"cuIpcOpenMemHandle"}))
    verdict = judge(hung, [other, row], 12)
    assert (verdict.caught, len(verdict.missed), verdict.invented) == ((), missed, ())
    assert verdict.given_up == (() if missed else ("ipc-reopen",))
    assert not verdict.good
    assert verdict.with_rerun(judge(hung, [FOUND], 12)).good != bool(missed)
    assert not verdict.with_rerun(judge(hung, [FINE], 12)).good


def test_calls_of_a_check_have_the_profiles_names() -> None:
    made = RoleOutcome("importer", Ending.COMPLETED, calls=(Calls("hipIpcOpenMemHandle", 2, 0.1),))
    result = Result("ipc-new", Finding.ok("fine", "fine"), roles=(made,))
    report = Report("node", "", 1.0, Tier.ACCEPTANCE, "0", (), (), (), (result,), 1)
    made_by = callers(report)
    assert (made_by["ipc-open"], made_by["ipc-close"]) == ({"ipc-new"}, frozenset())
