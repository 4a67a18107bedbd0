"""Samples of threads that get little processor time."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gpuipc_doctor.stacks import perf_events, sampling

SELDOM = """
import time
print("ready", flush=True)
while True:
    end = time.process_time() + 0.001
    while time.process_time() < end:
        pass
    time.sleep(0.03)
"""


LOOKS = 3
"""Looks at the thread: on a busy machine one of them may meet it once."""


@pytest.mark.parametrize("means", ["perf", "perf_event_open"])
def test_thread_that_rarely_runs_is_sampled(means: str, tmp_path: Path) -> None:
    """Under a load of eight ranks, a rank that polls gets 3 % of a processor."""
    with subprocess.Popen([sys.executable, "-c", SELDOM], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            running, seen = [(child.pid, child.pid)], []
            for _ in range(LOOKS):
                if means == "perf":
                    recording = sampling.Recording([child.pid], tmp_path)
                    seen += recording.stacks(running, most_s=60)[child.pid]
                    assert not list(tmp_path.iterdir())
                else:
                    seen += [stack for _, stack in perf_events.sample(running, most_s=60)]
                if len(seen) >= 2:
                    break
        finally:
            child.kill()
    assert len(seen) >= 2
    assert any("python" in frame for stack in seen for frame in stack)


@pytest.mark.parametrize(("machine", "samples"), [("x86_64", True), ("aarch64", False)])
def test_perf_is_not_used_where_it_cannot_unwind(
    machine: str, samples: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perf").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert sampling.has_perf() is samples


SIGNED = """\
    139 \n\
\t    ffff9eb072a0 opal_progress (/usr/lib/aarch64-linux-gnu/libopen-pal.so.80)
\t  10ffff9f3ef9d3 [unknown] ([unknown])
\t  10ffff9f3ef9d3 [unknown] ([unknown])
 ABI:2    x0:0x394ccc    x1:0x394ccd    x2:0x0
    139 \n\
\t    ffff9f3e0f24 [unknown] (/usr/lib/aarch64-linux-gnu/libmpi.so.40)
\t  30ffff9eb0729f [unknown] ([unknown])
\t  30ffff9eb0729f [unknown] ([unknown])
 ABI:2    x0:0x0    x1:0x1    x2:0x0
"""
"""perf 6.12 of Debian 13 on a rank in MPI_Recv, on an emulated processor of arm64 that signs."""


def test_perf_ends_at_a_signed_return_address() -> None:
    found = [*sampling.stacks(SIGNED)]
    assert found == [(139, ("opal_progress (libopen-pal.so.80)",)), (139, ("[libmpi.so.40]",))]


FILES = Path(__file__).parents[2] / "arm64"


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        ("6.1", "             387 halo_exchange ({files}/app-pac-plt.so)"),
        ("6.12", "    7f521f460387 halo_exchange ({files}/app-pac-plt.so+0x387)"),
    ],
)
def test_function_that_jumps_is_named_by_the_place_of_its_caller(version: str, frame: str) -> None:
    """perf 6.12 prints addresses of the process where 6.1 printed places in the file."""
    inside = (
        frame.replace("387", "404").replace("app-pac-plt", "libmpi-pac").replace("halo_exchange", "[unknown]")
    )
    text = f"139 \n{inside}\n{frame}\n ABI:2    x0:0x0\n".replace("{files}", str(FILES))
    ((_, stack),) = sampling.stacks(text)
    assert stack == (
        "[libmpi-pac.so]",
        "MPI_Waitall (libmpi-pac.so)",
        "halo_exchange (app-pac-plt.so)",
    )
