"""Memory that an allocator's process uses, on a device whose count moves by itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.api import Json
from gpuipc_doctor.api.program_memory import judge_hidden, used_since_the_start
from gpuipc_doctor.model import Status
from tests.checks.judging import JUMPING, MIB, drifting, ledger


def program(used: list[float], own: list[float | None], idle: Any = ()) -> dict[str, Json]:
    """``used`` and ``own``: MiB after each second."""
    samples: Json = {
        "used": [each * MIB for each in used],
        "own": [each if each is None else each * MIB for each in own],
        "seconds": [float(number + 1) for number in range(len(used))],
    }
    return {"samples": samples, **ledger(idle=idle)}


UNKNOWN: list[float | None] = [None, None]


@pytest.mark.parametrize(
    ("idle", "own", "used"),
    [
        ((), [50, 0], [52, 4]),  # a counter that stands still: losses without an owner count
        (drifting(2), [50, 0], [50, 0]),
        (drifting(2), UNKNOWN, [50, 0]),
        (JUMPING, [50, 0], [50, 0]),
    ],
)
def test_the_process_itself_is_counted_if_the_device_count_moves(
    idle: Any, own: list[float | None], used: list[float]
) -> None:
    found, _ = used_since_the_start(program([52, 4], own, idle))
    assert found == pytest.approx([each * MIB for each in used], abs=0.2 * MIB)


@pytest.mark.parametrize(
    ("idle", "own", "after", "hidden"),
    [
        ((), UNKNOWN, (), False),
        (drifting(20), UNKNOWN, (), False),
        (JUMPING, UNKNOWN, (), True),
        (JUMPING, [50, 0], (), False),
        (JUMPING, [50, 0], JUMPING, True),  # what the process leaves when it ends
    ],
)
def test_loss_that_a_moving_count_may_hide_is_an_error(
    idle: Any, own: list[float | None], after: Any, hidden: bool
) -> None:
    onlooker = ledger({"the program ended": {"missing": 0, "seconds": 2.0}}, idle=after or drifting(1))
    found = judge_hidden(program([52, 4], own, idle), onlooker)
    assert bool(found) is hidden
    if found:
        assert (found.status, found.key) == (Status.ERROR, "counter-moves")
