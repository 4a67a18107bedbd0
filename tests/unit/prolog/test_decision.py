"""The prolog's line and exit code for a report, by the site's policy."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor.api.leak_report import holders
from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.prolog import concerns, decision
from gpuipc_doctor.prolog.decision import MAX_LINE, Concern, Decision, Kind
from gpuipc_doctor.report_types import Report, Result
from gpuipc_doctor.run.conclusions import IN_COMPANY
from gpuipc_doctor.site.policy import Action, PrologConfig
from tests import golden
from tests.sample_reports import FAULT, PROPERTY, gpus, healthy, replaced, reports, seed_002

UUIDS = ("GPU-8f3a1c52-77de-4b0a-9c1e-2f64d1b0a9e1", "GPU-0b6e3d1f-5a44-4c77-8a55-93c0e2f7b6d2")

POLICY = PrologConfig()

DRAIN_ALL = PrologConfig(*[Action.DRAIN] * len(Kind))


def decided(report: Report, policy: PrologConfig = POLICY) -> Decision:
    return decision.decide(concerns.concerns(report), policy, concerns.passed(report))


def ended(finding: Finding, ending: Ending = Ending.DRIVER_ERROR, stopped: str = "") -> Report:
    """A report in which a probe of ``ipc-reopen`` ended in this way on the first of the GPUs."""
    role = RoleOutcome("importer", ending, operation="cuIpcOpenMemHandle", occurrence=8, step=STEP)
    result = Result("ipc-reopen", finding, ("cuda:0",), "destroy-context", roles=(role,), stopped=stopped)
    devices = tuple(replace(gpu, uuid=uuid) for gpu, uuid in zip(gpus(2), UUIDS, strict=True))
    return replaced(healthy(gpus(2)), result, devices=devices)


HUNG = "importer: cuIpcOpenMemHandle #8{step:aside}"

STEP = "second open, in a new context, of segment 1, 146064 B"

FAIL = ended(Finding.fail("", f"{HUNG} returned {FAULT.name} ({FAULT.code})", step=STEP))
UNKILLABLE = ended(Finding.fail("", f"{HUNG} hung and cannot be killed", step=STEP), Ending.UNKILLABLE)
BUDGET = ended(Finding.error("", f"{HUNG} had not returned", step=STEP), Ending.STOPPED, "budget")
SLOW_TO_DIE = ended(
    Finding.error("", f"{HUNG} had not returned", step=STEP), Ending.UNKILLABLE, stopped="budget"
)
LATE = ended(Finding.skip("", "budget; run it alone"), Ending.STOPPED, "budget")
"""There was no time for the first of two GPUs; the second passed."""
NOT_REACHED = replace(
    LATE,
    results=tuple(
        result
        for result in LATE.results
        if result.check != "ipc-reopen" or result.finding.status is not Status.PASS
    ),
)
ERROR = ended(Finding.error("", "importer: the worker did not start"), Ending.NOT_STARTED)
FULL = ended(
    Finding.error(
        "out-of-memory",
        "importer: cuMemAlloc #1 returned CUDA_ERROR_OUT_OF_MEMORY (2): too little device memory is free to "
        "test with",
        *holders(
            {"pid": pid, "name": name, "held": gib << 30, "whose": "not part of this run"}
            for pid, name, gib in ((815, "jupyter", 2), (4711, "train", 138))
        ),
    )
)
NOTHING = replaced(healthy(gpus(1)), probes_run=0)
INTERRUPTED = replaced(healthy(gpus(1)), interrupted=True)


@pytest.mark.parametrize(
    ("report", "kind", "code"),
    [
        (FAIL, Kind.FAIL, 12),
        (UNKILLABLE, Kind.UNKILLABLE, 12),
        (SLOW_TO_DIE, Kind.BUDGET, 11),
        (BUDGET, Kind.BUDGET, 11),
        (NOT_REACHED, Kind.BUDGET, 11),
        (ERROR, Kind.ERROR, 11),
        (ended(Finding.error("no-room", "no room: process 4711 holds 138 GiB")), Kind.BUSY, 11),
        (ended(Finding.error("memory-lost", "memory lost")), Kind.BUSY, 11),
        (NOTHING, Kind.ERROR, 11),
        (INTERRUPTED, Kind.ERROR, 11),
    ],
)
def test_each_kind_drains_only_by_its_own_key(report: Report, kind: Kind, code: int) -> None:
    for action, other in itertools.product(Action, Action):
        keys = {f"on_{kind.value}": other for kind in Kind} | {f"on_{kind.value}": action}
        answer = decided(report, PrologConfig(**keys))
        assert (answer.action, answer.exit_code) == (action, code if action is Action.DRAIN else 0)


def test_gpu_that_no_check_could_test_is_no_pass() -> None:
    one, other = gpus(2)
    skip = Finding.skip("", f"{other.label} has no multi-process")
    results = (
        Result("ipc-reopen", Finding.ok("", "reopened"), (one.label,)),
        Result("ipc-reopen", skip, (other.label,)),
    )
    answer = decided(replace(healthy((one, other)), results=results), DRAIN_ALL)
    assert answer.exit_code == 11
    assert answer.text == f"ERROR {other.label} was not tested: {other.label} has no multi-process"


def test_gpu_that_hung_or_failed_in_company_is_tested_apart_before_the_next_job() -> None:
    once = ended(Finding.warn(IN_COMPANY, "failed once"), Ending.COMPLETED)
    assert decided(once, DRAIN_ALL).exit_code == 0
    hung = ended(Finding.fail("hung", "hung"), Ending.HUNG)
    assert [concerns.came_to_an_end(report) for report in (once, hung, FAIL)] == [False, False, True]
    assert concerns.came_to_an_end(healthy(gpus(2)))


@pytest.mark.parametrize("report", [healthy(gpus(1)), healthy(gpus(4))])
def test_healthy_node_exits_with_0_under_any_policy(report: Report) -> None:
    assert (decided(report, DRAIN_ALL).exit_code, decided(report, DRAIN_ALL).action) == (0, None)


def test_gpus_for_which_there_was_no_time_do_not_count_if_another_passed() -> None:
    answer = decided(LATE, DRAIN_ALL)
    assert (answer.action, answer.exit_code) == (None, 0)
    assert answer.text.startswith("PASS")
    assert "on cuda:1 (no time for cuda:0)" in answer.text
    assert not concerns.came_to_an_end(LATE)  # so it is no stored pass


def test_only_certain_failures_drain_by_default() -> None:
    reports = (FAIL, UNKILLABLE, BUDGET, NOT_REACHED, ERROR, NOTHING, INTERRUPTED)
    assert [decided(report).exit_code for report in reports] == [12, 12, 0, 0, 0, 0, 0]


def test_documented_policy_is_that_of_the_program() -> None:
    text = (Path(__file__).parents[3] / "docs/slurm.md").read_text()
    rows = re.findall(r"^\| .* \| `on_(\w+)` \| (\w+) \| (\d+) \|$", text, flags=re.MULTILINE)
    by_default = {kind: decision.decide([Concern(kind, "")], POLICY).action for kind in Kind}
    assert sorted(rows) == sorted(
        (kind.value, action.value, str(kind.exit_code)) for kind, action in by_default.items() if action
    )


def test_shadow_mode_never_drains() -> None:
    shadow = DRAIN_ALL._replace(shadow=True)
    for report in (FAIL, UNKILLABLE, BUDGET, ERROR, NOTHING):
        answer = decided(report, shadow)
        assert answer.exit_code == 0
        assert answer.line.startswith("gpuipc-doctor: would drain, but shadow mode is on: ")


def test_lines() -> None:
    """The lines with uuids of their real length."""
    simulated = POLICY._replace(simulate="hang-init")
    cases = {
        "pass": decided(healthy(gpus(4))),
        "fail": decided(FAIL),
        "fail, a known issue on four GPUs": decided(seed_002()),
        "fail, in shadow mode": decided(FAIL, POLICY._replace(shadow=True)),
        "fail, not in the share": decided(FAIL, POLICY._replace(breaker={"share": 0.0})),
        "fail, ignored": decided(FAIL, POLICY._replace(on_fail=Action.IGNORE)),
        "unkillable": decided(UNKILLABLE),
        "budget, in a call": decided(BUDGET),
        "budget, before the probe": decided(NOT_REACHED),
        "error": decided(ERROR),
        "out of memory": decided(FULL),
        "nothing tested": decided(NOTHING),
        "interrupted": decided(INTERRUPTED),
        "simulated": decided(FAIL, simulated),
    }
    rows = (f"{name}: exit {case.exit_code}\n  {case.line}\n" for name, case in cases.items())
    golden.check("prolog/lines.txt", "".join(rows))


def test_stated_share_of_the_nodes_may_drain() -> None:
    may = [decision.place(f"node{number:04}") < 0.1 for number in range(2000)]
    assert 120 < sum(may) < 280
    assert all(0 <= decision.place(f"node{number:04}") < 1 for number in range(10))


@PROPERTY
@given(reports, st.sampled_from(Action), st.booleans())
def test_line_is_one_printable_line_of_limited_length(report: Report, action: Action, shadow: bool) -> None:
    answer = decided(report, PrologConfig(*[action] * len(Kind), shadow=shadow))
    assert answer.line.isprintable()
    assert len(answer.line) <= MAX_LINE
    assert answer.exit_code in ((0, 11, 12) if action is Action.DRAIN and not shadow else (0,))


@given(
    st.builds(
        PrologConfig,
        *[st.sampled_from(Action)] * len(Kind),
        shadow=st.booleans(),
        breaker=st.just({}) | st.builds(dict, share=st.floats(0, 1)),
        simulate=st.text(),
    )
)
def test_policy_survives_the_transfer_to_another_process(policy: PrologConfig) -> None:
    assert PrologConfig.read(policy.written()) == policy


def test_gpu_that_lacks_a_feature_by_design_never_drains() -> None:
    lacks = Finding.skip("not-supported", "{kinds}, which has no such feature", kinds="cuda:0 is a vGPU")
    report = replaced(healthy(gpus(1)), Result("ipc-reopen", lacks, ("cuda:0",)), devices=gpus(1))
    report = replace(report, results=tuple(r for r in report.results if not r.devices or r.finding is lacks))
    said = decided(report, DRAIN_ALL)
    assert said.exit_code == 0
    assert "SKIP on cuda:0: cuda:0 is a vGPU, which has no such feature" in said.line
    for key in ("incapable", "unfit"):
        result = Result("ipc-reopen", replace(lacks, key=key), ("cuda:0",))
        assert decided(replace(report, results=(result,)), DRAIN_ALL).exit_code == 0
    unknown = replace(lacks, key="no-ranks")
    other = replace(report, results=(Result("ipc-reopen", unknown, ("cuda:0",)),))
    assert decided(other, DRAIN_ALL).exit_code == 11
