"""Slower calls are found; noise and a busy node are not reported as slower."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpuipc_doctor.model import Finding, Measurement
from gpuipc_doctor.probe_types import Calls, Ending, RoleOutcome
from gpuipc_doctor.report import speed
from gpuipc_doctor.report.comparison import TOLERANCE
from gpuipc_doctor.report.speed import CONTROL, SpeedVerdict
from gpuipc_doctor.report_types import Result

CALLS = {"cuInit": 0.6, "cuCtxCreate": 0.08, "cuIpcOpenMemHandle": 120e-6, "cuMemcpyDtoH": 4e-3}
"""Seconds, similar to an H200."""

CHECKS = ("ipc-handles", "ipc-release", "ipc-reopen")
DEVICES = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")

Noise = Callable[[], float]


def run(
    noise: Noise, *, repetitions: int = 10, slower: dict[str, float] | None = None, load: float = 1.0
) -> list[Result]:
    """Results of a run: fixed times multiplied by ``noise``, ``load`` and, for some calls, a factor."""
    factors = slower or {}
    return [
        Result(
            check,
            Finding.ok(
                "right", "fine", measured=[Measurement("bandwidth", 20.0 / noise() / load, "GB/s", True)]
            ),
            (device,),
            repetition=number,
            roles=(
                RoleOutcome(
                    "importer",
                    Ending.COMPLETED,
                    start_up_s=0.2 * noise() * load,
                    calls=tuple(
                        Calls(call, 8, 8 * seconds * noise() * load * factors.get(call, 1.0))
                        for call, seconds in CALLS.items()
                    ),
                ),
            ),
        )
        for check in CHECKS
        for device in DEVICES
        for number in range(1, repetitions + 1)
    ]


def noises(rng: random.Random) -> Iterator[tuple[str, Noise]]:
    yield "little", lambda: rng.lognormvariate(0, 0.02)
    yield "much", lambda: rng.lognormvariate(0, 0.5)
    yield "now and then a lot", lambda: rng.uniform(1, 1.02) * (20 if rng.random() < 0.05 else 1)
    yield "two speeds", lambda: rng.choice([1.0, 1.6]) * rng.uniform(1, 1.02)


def found(before: list[Result], after: list[Result]) -> set[tuple[str, SpeedVerdict]]:
    speeds = speed.compare(before, after, TOLERANCE)
    return {(s.quantity.name, s.pace) for s in speeds.all if s.pace is not SpeedVerdict.SAME}


@pytest.mark.parametrize(("factor", "pace"), [(1.5, SpeedVerdict.SLOWER), (0.5, SpeedVerdict.FASTER)])
def test_one_changed_call_is_found_among_many(factor: float, pace: SpeedVerdict) -> None:
    rng = random.Random(factor)
    noise = dict(noises(rng))["little"]
    changed = run(noise, slower={"cuIpcOpenMemHandle": factor})
    assert found(run(noise), changed) == {("cuIpcOpenMemHandle", pace)}


def test_busy_node_is_not_a_slow_driver() -> None:
    rng = random.Random(4)
    noise = dict(noises(rng))["little"]
    busy = run(noise, load=1.8)
    assert found(run(noise), busy) == set()
    assert found(busy, run(noise)) == set()
    slow_too = run(noise, load=1.8, slower={"cuInit": 2.0})
    assert found(run(noise), slow_too) == {("cuInit", SpeedVerdict.SLOWER)}


def test_less_bandwidth_is_slower() -> None:
    rng = random.Random(3)
    noise = dict(noises(rng))["little"]
    halved = [
        replace(
            r,
            finding=Finding.ok(
                "", "fine", measured=[replace(m, value=m.value / 2) for m in r.finding.measured]
            ),
        )
        for r in run(noise)
    ]
    assert found(run(noise), halved) == {("bandwidth", SpeedVerdict.SLOWER)}


def test_delay_of_short_calls_on_a_busy_node_is_no_slow_driver() -> None:
    """Each wait for a processor takes as long, however short the call is: cuInit of 1 ms took 16 ms."""

    def waiting(seconds: float) -> list[Result]:
        return [
            replace(
                result,
                roles=tuple(
                    replace(
                        role,
                        start_up_s=role.start_up_s + 5 * seconds,
                        calls=tuple(
                            replace(each, seconds=each.count * ((each.seconds / each.count) / 600 + seconds))
                            for each in role.calls
                        ),
                    )
                    for role in result.roles
                ),
            )
            for result in run(dict(noises(random.Random(6)))["little"])
        ]

    idle, busy = waiting(0.0), waiting(0.015)
    assert found(idle, busy) == set()
    assert found(busy, idle) == set()
    much_slower = [
        replace(
            result,
            roles=tuple(
                replace(
                    role, calls=tuple(replace(each, seconds=each.seconds + each.count) for each in role.calls)
                )
                for role in result.roles
            ),
        )
        for result in busy
    ]
    assert {pace for _, pace in found(idle, much_slower)} == {SpeedVerdict.SLOWER}


def test_few_microseconds_are_ignored() -> None:
    def still() -> float:
        return 1.0

    assert found(run(still), run(still, slower={"cuIpcOpenMemHandle": 1.3})) == set()  # 36 µs
    assert found(run(still), run(still, slower={"cuIpcOpenMemHandle": 1.6})) != set()  # 72 µs


@pytest.mark.parametrize(("before", "after"), [(1, 1), (10, 1), (1, 10), (3, 3), (6, 6)])
def test_too_few_samples_have_no_verdict(before: int, after: int) -> None:
    rng = random.Random(5)
    noise = dict(noises(rng))["little"]
    speeds = speed.compare(
        run(noise, repetitions=before), run(noise, repetitions=after, slower={"cuInit": 9.0}), TOLERANCE
    )
    assert {s.pace for s in speeds.all} == {SpeedVerdict.TOO_FEW}
    enough = speeds.needed
    again = run(noise, repetitions=enough), run(noise, repetitions=enough, slower={"cuInit": 9.0})
    assert found(*again) == {("cuInit", SpeedVerdict.SLOWER)}


def test_incomplete_probes_are_not_compared() -> None:
    def still() -> float:
        return 1.0

    failed = [replace(r, finding=Finding.fail("hung", "hung")) for r in run(still, slower={"cuInit": 9.0})]
    assert speed.compare(run(still), failed, TOLERANCE).all == ()


def test_checks_without_repetitions_are_left_out() -> None:
    def still() -> float:
        return 1.0

    once = Result("driver-init", Finding.ok("found", "2 GPUs"), probe="cuda", roles=run(still)[0].roles)
    speeds = speed.compare([*run(still), once], [*run(still), once], TOLERANCE)
    assert {s.quantity.check for s in speeds.all} == set(CHECKS)
    assert speeds.control is not None
    assert (speeds.control.quantity.name, speeds.control.pace) == (CONTROL, SpeedVerdict.SAME)


def test_visits_to_processes_that_run_have_no_start_up() -> None:
    """Most probes of a tour start no process; the few that do are the control."""

    def visited(results: list[Result]) -> list[Result]:
        return [
            r if r.check == "ipc-reopen" else replace(r, roles=(replace(r.roles[0], start_up_s=0.0),))
            for r in results
        ]

    rng = random.Random(5)
    noise = dict(noises(rng))["little"]
    speeds = speed.compare(visited(run(noise)), visited(run(noise, load=1.8)), TOLERANCE)
    assert speeds.control is not None
    assert speeds.control.after / speeds.control.before == pytest.approx(1.8, rel=0.1)
    assert speeds.of(SpeedVerdict.SLOWER) == []
    assert (
        speed.compare([r for r in visited(run(noise)) if r.check != "ipc-reopen"], run(noise), 0.5).all == ()
    )


def test_repetition_without_a_probe_does_not_count() -> None:
    """A mean over fewer probes would be of other calls."""

    def still() -> float:
        return 1.0

    one = run(still)
    other = [replace(r, probe="large", roles=run(still, slower={"cuInit": 5.0})[0].roles) for r in one]
    partly = [r for r in other if r.repetition <= 8]
    speeds = speed.compare([*one, *other], [*one, *partly], TOLERANCE)
    assert {s.samples for s in speeds.all if s.quantity.name == "cuInit"} == {(10, 8)}
    assert {s.pace for s in speeds.all} == {SpeedVerdict.SAME}


@pytest.mark.parametrize("count", [0, -1, 8])
@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e308, 4e-3])
def test_impossible_counts_and_times_of_a_document_are_left_out(count: int, seconds: float) -> None:
    """A document with ``"count": 0`` ended `compare` with a traceback."""
    results = [
        replace(
            result, roles=tuple(replace(r, calls=(Calls("cuInit", count, seconds),)) for r in result.roles)
        )
        for result in run(lambda: 1.0)
    ]
    names = {each.quantity.name for each in speed.compare(results, results, TOLERANCE).all}
    assert ("cuInit" in names) is (count == 8 and seconds == 4e-3)
