"""Memory that an allocator's process uses, on a device whose count moves by itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Finding, Json, ProbeOutcome
from gpuipc_doctor.api.program_memory import judge_hidden, judge_loss, repeat_if_lost, used_since_the_start
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import RoleOutcome
from tests.checks.judging import JUMPING, MIB, ONE, completed, drifting, metered


def program(used: list[float], own: list[float | None], idle: Any = ()) -> RoleOutcome:
    """``used`` and ``own``: MiB after each second."""
    samples: Json = {
        "used": [each * MIB for each in used],
        "own": [each if each is None else each * MIB for each in own],
        "seconds": [float(number + 1) for number in range(len(used))],
    }
    return completed("program", {"samples": samples, **metered(idle=idle)})


UNKNOWN: list[float | None] = [None, None]


@pytest.mark.parametrize(
    ("idle", "own", "used"),
    [
        ((), [50, 0], [52, 4]),  # a counter that stands still: losses without an owner count
        (drifting(2), [50, 0], [50, 0]),
        (drifting(2), UNKNOWN, [0, 0]),
        (JUMPING, [50, 0], [50, 0]),
    ],
)
def test_the_process_itself_is_counted_if_the_device_count_moves(
    idle: Any, own: list[float | None], used: list[float]
) -> None:
    assert used_since_the_start(program([52, 4], own, idle)) == [each * MIB for each in used]


@pytest.mark.parametrize(
    ("idle", "own", "after", "hidden"),
    [
        ((), UNKNOWN, (), False),
        (drifting(20), UNKNOWN, (), True),
        (JUMPING, UNKNOWN, (), True),
        (JUMPING, [50, 0], (), False),
        (JUMPING, [50, 0], JUMPING, True),  # what the process leaves when it ends
    ],
)
def test_loss_that_a_moving_count_may_hide_is_an_error(
    idle: Any, own: list[float | None], after: Any, hidden: bool
) -> None:
    ended = metered({"the program ended": {"missing": 0}}, idle=after)
    onlooker = completed("onlooker", ended)
    found = judge_hidden(program([52, 4], own, idle), onlooker)
    assert bool(found) is hidden
    if found:
        assert (found.status, found.key) == (Status.ERROR, "counter-moves")


ROLES: dict[str, Any] = {"program": lambda w: None, "onlooker": lambda w: None}


def run(kept: int, missing: int, **params: Json) -> ProbeOutcome:
    """A run whose program kept ``kept`` MiB, with ``missing`` MiB missing after its end."""
    records: dict[str, dict[str, Json]] = {
        "program": {"kept": kept * MIB},
        "onlooker": metered({"the program ended": missing * MIB}),
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


def test_crash_of_the_second_run_is_its_finding() -> None:
    (probe,) = repeat_if_lost(run(30, 0), ROLES, kept)
    crashed = ProbeOutcome("PyTorch", ONE, probe.params, {}, "program", 0.0)
    assert judge_loss(crashed, kept) is None
    assert not list(repeat_if_lost(crashed, ROLES, kept))
