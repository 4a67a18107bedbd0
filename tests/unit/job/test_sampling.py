"""Samples of threads that get little processor time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.job import perf_events, sampling

SELDOM = """
import time
print("ready", flush=True)
while True:
    end = time.process_time() + 0.001
    while time.process_time() < end:
        pass
    time.sleep(0.03)
"""


@pytest.mark.parametrize("means", ["perf", "perf_event_open"])
def test_thread_that_rarely_runs_is_sampled(means: str, tmp_path: Path) -> None:
    """Under a load of eight ranks, a rank that polls gets 3 % of a processor."""
    with subprocess.Popen([sys.executable, "-c", SELDOM], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            running = [(child.pid, child.pid)]
            if means == "perf":
                recording = sampling.Recording([child.pid], tmp_path)
                seen = recording.stacks(running, most_s=60)[child.pid]
                assert not list(tmp_path.iterdir())
            else:
                seen = [stack for _, stack in perf_events.sample(running, most_s=60)]
        finally:
            child.kill()
    assert len(seen) >= 2
    assert any("python" in frame for stack in seen for frame in stack)
