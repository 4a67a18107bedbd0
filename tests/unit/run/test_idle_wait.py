"""When a device counts as idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuipc_doctor.api import Check, Context, Device, Probe, ProbeOutcome, Worker
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.run.idle_wait import IdleDevices
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.supervise.session import Session
from tests.checks.judging import gpu

FIRST, SECOND = gpu(0), gpu(1)


class Any(Check):
    id = title = "any"

    def probes(self, ctx: Context) -> list[Probe]:
        return []


def role(w: Worker) -> None: ...


def exclusive(*devices: Device) -> PlannedProbe:
    return PlannedProbe(0, Any(), Path(__file__), Probe("", {"role": role}, devices, exclusive=True))


class Node:
    """A session with these bytes in use on each device; None: cannot be read."""

    def __init__(self, *used: int | None, outside: bool = True) -> None:
        self.used = used
        self.outside = outside
        self.nobodys: list[tuple[int, list[int]] | None] = []
        self.looked_at: list[Sequence[Device]] = []

    def run(self, check: str, file: Path, probe: Probe, *, until: float) -> ProbeOutcome:
        self.looked_at.append(probe.devices)
        used = [self.used[device.index] for device in probe.devices]
        if None in used:
            roles = {"onlooker": RoleOutcome("onlooker", Ending.DRIVER_ERROR)}
            return ProbeOutcome(probe.name, probe.devices, {}, roles, "onlooker", 0.0, 1.0, "")
        records: dict[str, Json] = {"used": used, "outside": self.outside}
        if self.nobodys:
            told = self.nobodys.pop(0)
            records["nobodys"] = [told for _ in probe.devices]
        roles = {"onlooker": RoleOutcome("onlooker", Ending.COMPLETED, records=records)}
        return ProbeOutcome(probe.name, probe.devices, {}, roles, None, 0.0, 1.0, "")


def learned(node: Node, *probes: PlannedProbe) -> IdleDevices:
    session: Session = node  # type: ignore[assignment]
    quiet = IdleDevices(session)
    quiet.learn(probes, math.inf)
    return quiet


def test_all_devices_are_read_together_and_each_once() -> None:
    node = Node(10, 20)
    quiet = learned(node, exclusive(FIRST), exclusive(SECOND), exclusive(FIRST, SECOND))
    assert node.looked_at == [(FIRST, SECOND)]
    assert quiet.waits_itself(exclusive(FIRST, SECOND))
    assert [rest.used for rest in quiet.baselines(exclusive(FIRST, SECOND))] == [10, 20]


@pytest.mark.parametrize("outside", [True, False])
def test_unreadable_device_does_not_hide_the_others(outside: bool) -> None:
    node = Node(10, None, outside=outside)
    quiet = learned(node, exclusive(FIRST), exclusive(SECOND), exclusive(FIRST, SECOND))
    assert [rest.used for rest in quiet.baselines(exclusive(FIRST))] == [10]
    assert quiet.waits_itself(exclusive(FIRST)) is outside
    assert not quiet.waits_itself(exclusive(SECOND))
    node.looked_at.clear()
    quiet.before(exclusive(SECOND), math.inf)
    assert node.looked_at == []  # there is nothing to wait for
    quiet.before(exclusive(FIRST), math.inf)
    assert node.looked_at == [(FIRST,)]


def test_device_is_not_read_again() -> None:
    quiet = learned(Node(10 << 20), exclusive(FIRST))
    for found, then in ((9 << 20, 9 << 20), (12 << 20, 9 << 20), (50 << 20, 50 << 20)):
        probe = exclusive(FIRST)
        roles = {"role": RoleOutcome("role", Ending.COMPLETED, baselines=[found])}
        quiet.after(probe, ProbeOutcome("", (FIRST,), {}, roles, None, 0.0, 1.0, ""))
        assert [rest.used for rest in quiet.baselines(probe)] == [then]


@pytest.mark.parametrize(
    ("later", "lost"),
    [
        ([(615, [7])], None),
        ([(621, [7])], None),  # a context's share
        ([(655, [7]), (655, [7])], 40 << 20),
        ([(655, [7]), (617, [7])], None),  # late
        ([(655, [7]), (656, [7])], "it changes by itself"),
        ([(655, [7]), (655, [])], "other processes came or went"),
        ([(655, [7, 8])], "other processes came or went"),
        ([(621, [7, 8])], None),  # who comes only adds to it
        ([(600, [])], "other processes came or went"),  # who goes may hide a loss
        ([(600, [8])], "other processes came or went"),
        ([None], "the driver does not report it now"),
        ([(655, [7]), None], "the driver does not report it now"),
    ],
)
def test_memory_of_nobody(later: list[tuple[int, list[int]] | None], lost: int | str | None) -> None:
    node = Node(10, 20)
    node.nobodys = [each and (each[0] << 20, each[1]) for each in [(615, [7]), *later]]
    quiet = learned(node, exclusive(FIRST))
    assert quiet.tells_by_process(exclusive(FIRST))
    assert quiet.lost([FIRST], math.inf) == ({FIRST: lost} if lost else {})
