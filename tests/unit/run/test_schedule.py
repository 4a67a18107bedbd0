"""In which order probes start, and which of them at the same time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.api import Check, Context, Device, Probe
from gpuipc_doctor.model import Launch
from gpuipc_doctor.run import schedule
from gpuipc_doctor.run.planner import PlannedProbe
from tests.checks.judging import gpu

FIRST, SECOND = gpu(0), gpu(1)


class Any(Check):
    id = title = "any"

    def probes(self, ctx: Context) -> list[Probe]:
        return []


def planned(
    name: str, *devices: Device, exclusive: bool = False, imports: tuple[str, ...] = ()
) -> PlannedProbe:
    probe = Probe(name, {}, devices, exclusive=exclusive, imports=imports)
    return PlannedProbe(0, Any(), Path(__file__), probe)


def test_ranks_that_spin_have_a_processor_each() -> None:
    launch = Launch(("mpiexec", "-n", "{ranks}"))
    ranks = [planned(name, device) for name, device in (("first", FIRST), ("second", SECOND))]
    ranks = [replace(one, probe=replace(one.probe, launch=launch)) for one in ranks]
    waiting = [*ranks, planned("other", SECOND)]
    assert names(schedule._startable(waiting, [], jobs=2)) == ["first", "other"]
    assert names(schedule._startable(ranks, [], jobs=1)) == ["first"]
    assert names(schedule._startable(waiting, [], jobs=4)) == ["first", "second", "other"]


def names(probes: list[PlannedProbe]) -> list[str]:
    return [one.probe.name for one in probes]


def test_what_has_a_device_to_itself_goes_first_and_pairs_last() -> None:
    probes = [
        planned("pair, alone", FIRST, SECOND, exclusive=True),
        planned("shares", FIRST),
        planned("pair", FIRST, SECOND),
        planned("alone, with what is still imported", FIRST, exclusive=True, imports=("torch",)),
        planned("alone", SECOND, exclusive=True),
    ]
    turns = sorted(probes, key=schedule._turn)
    first = ["alone", "alone, with what is still imported"]
    assert names(turns) == [*first, "shares", "pair, alone", "pair"]


def test_what_shares_a_device_starts_beside_its_like_and_beside_nothing_exclusive() -> None:
    running = [planned("alone", FIRST, exclusive=True)]
    waiting = [planned("a", FIRST), planned("b", SECOND), planned("c", SECOND), planned("d", SECOND)]
    assert names(schedule._startable(waiting, running, jobs=3)) == ["b", "c"]


def test_an_exclusive_probe_that_waits_has_its_turn_before_later_ones() -> None:
    running = [planned("shares", FIRST)]
    waiting = [planned("alone", FIRST, exclusive=True), planned("later", FIRST), planned("other", SECOND)]
    assert names(schedule._startable(waiting, running, jobs=4)) == ["other"]
