"""What grows, what levels off, and what only moves."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.growth import DESCRIPTORS, HOST, Key, judge, watch

MIB = 1 << 20


def judged(values: list[int], what: str = HOST) -> float | None:
    """Growth a minute of samples that are 2 s apart; None if it is not said to grow."""
    key: Key = (3, what)
    found = list(judge({key: [(2.0 * n, value) for n, value in enumerate(values)]}, {3: 77}))
    assert all((each.rank, each.pid, each.what) == (3, 77, what) for each in found)
    assert all(each.low <= each.per_minute <= each.high for each in found)
    return found[0].per_minute if found else None


def test_steady_growth_is_told_within_five_percent() -> None:
    noise = random.Random(7)
    values = [500 * MIB + n * 3 * MIB + noise.randrange(MIB // 4) for n in range(24)]
    assert judged(values) == pytest.approx(90 * MIB, rel=0.05)


@pytest.mark.parametrize(
    "values",
    [
        [100 * MIB] * 24,
        [100 * MIB + n % 3 * MIB for n in range(24)],
        [(100 + min(n, 6) * 20) * MIB for n in range(24)],  # a cache that is full
        [(100 + (n > 12) * 300) * MIB for n in range(24)],  # one allocation
        [(200 - n) * MIB for n in range(24)],
        [(100 + n) * MIB for n in range(7)],  # too few samples
    ],
)
def test_level_use_full_caches_and_single_steps_do_not_grow(values: list[int]) -> None:
    assert judged(values) is None


def test_descriptors_that_are_lost_seldom_grow() -> None:
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
            grown = {each.what: each for each in watch({0: process}, 6.0, dict) if each.rank == 0}
        finally:
            child.kill()
    assert what in grown
    assert grown[what].last > grown[what].first
