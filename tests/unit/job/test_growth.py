"""Values that grow, level off or only fluctuate."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpuipc_doctor.job import growth
from gpuipc_doctor.job.document import Cause, Process, Verdict
from gpuipc_doctor.job.growth import DESCRIPTORS, HOST, Key, judge, watch
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.job.verdict import with_growth

MIB = 1 << 20


def judged(values: list[int], what: str = HOST) -> float | None:
    """Growth per minute of samples 2 s apart; None if no growth is reported."""
    key: Key = (3, what)
    found = list(judge({key: [(2.0 * n, value) for n, value in enumerate(values)]}, {3: 77}))
    assert all((each.rank, each.pid, each.what) == (3, 77, what) for each in found)
    assert all(each.low <= each.per_minute <= each.high for each in found)
    return found[0].per_minute if found else None


def test_steady_growth_is_exact_within_five_percent() -> None:
    noise = random.Random(7)
    values = [500 * MIB + n * 3 * MIB + noise.randrange(MIB // 4) for n in range(24)]
    assert judged(values) == pytest.approx(90 * MIB, rel=0.05)


@pytest.mark.parametrize(
    "values",
    [
        [100 * MIB] * 24,
        [100 * MIB + n % 3 * MIB for n in range(24)],
        [(100 + min(n, 6) * 20) * MIB for n in range(24)],  # a cache that fills up
        [(100 + (n > 12) * 300) * MIB for n in range(24)],  # one allocation
        [(200 - n) * MIB for n in range(24)],
        [(100 + n) * MIB for n in range(7)],  # too few samples
    ],
)
def test_level_use_full_caches_and_single_steps_do_not_grow(values: list[int]) -> None:
    assert judged(values) is None


def test_rare_loss_of_descriptors_is_growth() -> None:
    assert judged([20 + n // 3 for n in range(24)], DESCRIPTORS) == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize(
    ("loses", "what"), [("bytearray(b'x' * (1 << 19))", HOST), ("open('/dev/null')", DESCRIPTORS)]
)
def test_growth_of_a_process_is_seen_from_outside(loses: str, what: str) -> None:
    program = f"import time\nlost = []\nprint(flush=True)\nwhile True: lost.append({loses}); time.sleep(0.05)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            process = Process(pid=child.pid, parent=1, uid=0, program="python3")
            grown = {each.what: each for each in watch({0: process}, 6.0).grown() if each.rank == 0}
        finally:
            child.kill()
    assert what in grown
    assert grown[what].last > grown[what].first


@pytest.mark.parametrize(("slow_s", "cause"), [(0.02, Cause.GROWS), (10.0, Cause.UNKNOWN)])
def test_slow_driver_gets_more_time_and_too_few_samples_are_no_verdict(
    monkeypatch: pytest.MonkeyPatch, slow_s: float, cause: Cause
) -> None:
    """On a busy node, one sample takes as long as all of them should."""
    clock = iter(range(1_000_000))
    slow = SimpleNamespace(monotonic=lambda: next(clock) * slow_s, sleep=lambda seconds: None)
    monkeypatch.setattr(growth, "time", slow)
    process = Process(pid=os.getpid(), parent=1, uid=0, program="app", libraries=("/lib/libcuda.so.1",))

    def devices(interval_s: float, is_over: Callable[[dict[int, int]], bool]) -> None:
        held = 0
        while not is_over({process.pid: held}):
            held += 4 * MIB

    watched = watch({0: process}, 0.6, devices)
    verdict = with_growth(Verdict(cause=Cause.RUNS), watched.grown(), watched.unseen)
    assert verdict.cause is cause, watched.unseen
    if cause is Cause.UNKNOWN:
        assert any("samples in" in reason for reason in verdict.reasons)


def test_growth_that_a_dead_driver_hides_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    fast = SimpleNamespace(monotonic=lambda: next(clock) * 0.02, sleep=lambda seconds: None)
    monkeypatch.setattr(growth, "time", fast)

    def devices(interval_s: float, is_over: Callable[[dict[int, int]], bool]) -> None:
        raise NoSuchJob("cannot list GPUs: sampler: nvmlInit hung (10 s)")

    process = Process(pid=os.getpid(), parent=1, uid=0, program="app")
    watched = watch({0: process}, 0.6, devices)
    verdict = with_growth(Verdict(cause=Cause.RUNS), (), watched.unseen)
    assert verdict.cause is Cause.UNKNOWN
    assert verdict.reasons == ("growth of device memory: cannot list GPUs: sampler: nvmlInit hung (10 s)",)
    stuck = Verdict(cause=Cause.HOST_LATE, blamed=(1,))
    assert with_growth(stuck, (), watched.unseen) == stuck
