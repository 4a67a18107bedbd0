"""Evidence that a control's findings add to failures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuipc_doctor.api import Check, Context, Control, Finding, Probe
from gpuipc_doctor.model import EvidenceKind, Tier
from gpuipc_doctor.probe_types import Launch, ProbeOutcome
from gpuipc_doctor.report import sentences
from gpuipc_doctor.report_types import CheckInfo
from gpuipc_doctor.run import causes
from gpuipc_doctor.run.causes import controls
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.results import ResultLog

FAIL, PASS = Finding.fail("bad", "bad"), Finding.ok("good", "good")
SKIP, ERROR = Finding.skip("no", "no"), Finding.error("odd", "odd")
HERE, ACROSS = Launch(("mpiexec",)), Launch(("srun",), nodes=2)


class Tested(Check):
    id = "tested"
    title = "tested"

    def probes(self, ctx: Context) -> Iterable[Probe]:
        return []


class TheControl(Tested):
    id = "the-control"
    control = Control("tested", right="right without ({check})", wrong="wrong without, too ({check})")


def attached(
    finding: Finding, *controlled: tuple[Finding, Launch | None], launch: Launch = HERE
) -> list[str]:
    """The evidence attached to a failing finding if its control has these findings."""
    log = ResultLog()
    for check in (Tested(), TheControl()):
        log.announce(CheckInfo(check.id, check.title, Tier.ACCEPTANCE))
    every = [(Tested(), finding, launch), *((TheControl(), one, where) for one, where in controlled)]
    for number, (check, one, where) in enumerate(every):
        planned = PlannedProbe(number, check, Path("x.py"), Probe("", {}, launch=where))
        log.keep(planned, ProbeOutcome("", (), {}, {}, None, 0.1), [one])
    causes.explain(log, {}, dict, {}, checks=[Tested(), TheControl()])
    [result] = [result for result in log.results() if result.check == "tested"]
    assert all(item.kind is EvidenceKind.CONTROL for item in result.finding.evidence)
    return list(sentences.evidence(result.finding))


def test_passed_and_failed_control() -> None:
    assert attached(FAIL, (PASS, None)) == ["right without (the-control)"]
    assert attached(FAIL, (FAIL, None)) == ["wrong without, too (the-control)"]
    assert attached(FAIL, (PASS, None), (FAIL, None)) == ["wrong without, too (the-control)"]


@pytest.mark.parametrize("nothing", [SKIP, ERROR])
def test_control_without_a_result_adds_nothing(nothing: Finding) -> None:
    assert attached(FAIL, (nothing, None)) == []


def test_nothing_is_added_without_a_failure() -> None:
    assert attached(PASS, (PASS, None)) == []


def test_control_between_nodes_is_not_one_within_a_node() -> None:
    assert attached(FAIL, (PASS, None), launch=ACROSS) == []
    assert attached(FAIL, (PASS, None), (FAIL, ACROSS)) == ["right without (the-control)"]
    assert attached(FAIL, (PASS, None), (FAIL, ACROSS), launch=ACROSS) == ["wrong without, too (the-control)"]


def with_settings(first: Finding, second: Finding, env: dict[str, str]) -> list[list[str]]:
    """The evidence of two probes of a check; the second ran with more settings."""
    log = ResultLog()
    log.announce(CheckInfo("tested", "tested", Tier.ACCEPTANCE))
    for number, (finding, name, more) in enumerate([(first, "growing", {}), (second, "IPC off", env)]):
        launch = Launch(("mpiexec",), {"BASE": "1", **more})
        planned = PlannedProbe(number, Tested(), Path("x.py"), Probe(name, {}, launch=launch))
        log.keep(planned, ProbeOutcome("", (), {}, {}, None, 0.1), [finding])
    controls.compare_settings(log)
    return [list(sentences.evidence(result.finding)) for result in log.results()]


def test_equal_failure_with_more_settings_is_a_control() -> None:
    said = "same finding with IPC=0 (IPC off)"
    assert with_settings(FAIL, FAIL, {"IPC": "0"}) == [[said], [said]]


@pytest.mark.parametrize(
    ("second", "env"), [(PASS, {"IPC": "0"}), (FAIL, {}), (Finding.fail("other", "other"), {"IPC": "0"})]
)
def test_different_result_or_equal_settings_are_no_control(second: Finding, env: dict[str, str]) -> None:
    assert with_settings(FAIL, second, env) == [[], []]
