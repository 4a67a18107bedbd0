"""Native stacks of threads that run, by sampling: the kernel copies registers and stack, nothing stops.

perf(1), where it is installed, unwinds them (``--call-graph dwarf``). The software clock is there on virtual
machines, where hardware events are not. A user may sample his own processes as long as
kernel.perf_event_paranoid is at most 2 (Linux, Documentation/admin-guide/perf-security.rst). A thread that
sleeps gives no samples.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuipc_doctor.job.document import Stack

FREQUENCY_HZ = 49
STACK_BYTES = 32 << 10
"""Copied with each sample. Of 8 KiB, the default, Intel MPI needs more in a collective alone."""

LIMIT_S = 15.0
"""For perf, beyond the time for which it samples."""

MAX_FRAMES = 100

_EVENT = re.compile(r"^(?:.*\s)?(\d+)\s*$")
_FRAME = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*)\)$")


class NotInstalled(Exception):
    """There is no perf(1) here."""


class NotSampled(Exception):
    """Why there are no samples, in one line."""


def sample(pids: Sequence[int], seconds: float, scratch: Path) -> Mapping[int, list[Stack]]:
    """The stacks by thread, each innermost first, that were seen in ``seconds``.

    Raises `NotInstalled` or `NotSampled`.

    ``scratch``: a directory for perf's file, of some 34 kB a sample, which is removed.
    """
    perf = shutil.which("perf")
    if perf is None:
        raise NotInstalled
    data = scratch / "perf.data"
    options = [
        "-q",
        "-e",
        f"cpu-clock{only_user_space()}",
        "-F",
        str(FREQUENCY_HZ),
        "--call-graph",
        f"dwarf,{STACK_BYTES}",
    ]
    targets = ",".join(map(str, pids))
    try:
        _run(
            [perf, "record", *options, "-p", targets, "-o", str(data), "--", "sleep", f"{seconds:g}"], seconds
        )
        text = _run([perf, "script", "-i", str(data), "--no-inline", "-F", "tid,ip,sym,dso"], 0.0)
    finally:
        data.unlink(missing_ok=True)
    found: dict[int, list[Stack]] = defaultdict(list)
    for thread, stack in stacks(text):
        found[thread].append(stack)
    return found


def only_user_space() -> str:
    """``:u`` where the kernel does not let this user sample what a thread does in the kernel.

    A library that yields the processor while it waits is nearly always found there.
    """
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    return "" if os.geteuid() == 0 or paranoid <= 1 else ":u"


def _run(command: Sequence[str], seconds: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds + LIMIT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise NotSampled(f"perf did not end within {LIMIT_S:g} s") from None
    except OSError as error:
        raise NotSampled(f"perf cannot be started: {error.strerror}") from None
    if done.returncode:
        complaint = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NotSampled(f"perf: {complaint[:200]}")
    return done.stdout


def stacks(text: str) -> Iterator[tuple[int, Stack]]:
    """Thread and frames of each sample in what ``perf script -F tid,ip,sym,dso`` prints."""
    thread, frames = 0, list[str]()
    for line in [*text.splitlines(), ""]:
        if frame := _FRAME.match(line):
            if not frame[2].startswith("["):  # [kernel.kallsyms], [unknown], [vdso]
                frames.append(_name(frame[1], frame[2]))
        elif thread and not line.strip():
            if frames:
                yield thread, tuple(frames[:MAX_FRAMES])
            thread, frames = 0, []
        elif event := _EVENT.match(line):
            thread = int(event[1])


def _name(symbol: str, file: str) -> str:
    """``MPI_Recv (libmpi.so.12)``; a function without a name is its file alone, in brackets."""
    base = file.rpartition("/")[2]
    return f"[{base}]" if symbol == "[unknown]" else f"{symbol.partition('@')[0]} ({base})"
