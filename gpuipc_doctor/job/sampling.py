"""Native stacks of threads that run, by sampling: the kernel copies registers and stack, nothing stops.

perf(1), where it is installed, unwinds them (``--call-graph dwarf``). The software clock is there on virtual
machines, where hardware events are not. A user may sample his own processes as long as
kernel.perf_event_paranoid is at most 2 (Linux, Documentation/admin-guide/perf-security.rst). A thread that
sleeps gives no samples.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.job.document import Stack
from gpuipc_doctor.job.processes import Gone, used_s

FREQUENCY_HZ = 99
"""Samples in a second of a thread's own processor time, not of the clock on the wall."""

LEAST_S, MOST_S = 0.2, 2.0
"""For which one look samples."""

ENOUGH_S = 0.035
"""Processor time after which a thread has been sampled at least twice. Beside a load, that takes a while."""

STACK_BYTES = 32 << 10
"""Copied with each sample. Of 8 KiB, the default, Intel MPI needs more in a collective alone."""

LIMIT_S = 30.0
"""For perf to start, and for it to unwind what it sampled."""

MAX_FRAMES = 100

_EVENT = re.compile(r"^(?:.*\s)?(\d+)\s*$")
_FRAME = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*)\)$")


class NotInstalled(Exception):
    """There is no perf(1) here."""


class NotSampled(Exception):
    """Why there are no samples, in one line."""


def sample(
    pids: Sequence[int], running: Sequence[tuple[int, int]], scratch: Path, most_s: float = MOST_S
) -> Mapping[int, list[Stack]]:
    """The stacks by thread, each innermost first, that were seen until each running thread was sampled.

    ``running``: (pid, tid) of the threads that must be seen. ``scratch``: a directory for perf's file, of
    some 34 kB a sample, which is removed. Raises `NotInstalled` or `NotSampled`.
    """
    perf = shutil.which("perf")
    if perf is None:
        raise NotInstalled
    data = scratch / "perf.data"
    what = ["-e", f"cpu-clock{only_user_space()}", "-F", str(FREQUENCY_HZ), "-p", ",".join(map(str, pids))]
    how = ["-q", "-B", "--call-graph", f"dwarf,{STACK_BYTES}", "-o", str(data)]
    try:
        _record([perf, "record", *what, *how, "--", "cat"], running, most_s)
        text = _end(_start([perf, "script", "-i", str(data), "--no-inline", "-F", "tid,ip,sym,dso"]))
    finally:
        data.unlink(missing_ok=True)
    found: dict[int, list[Stack]] = defaultdict(list)
    for thread, stack in stacks(text):
        found[thread].append(stack)
    return found


def wait_for_use(running: Sequence[tuple[int, int]], most_s: float = MOST_S) -> None:
    """Return when each of these threads has used `ENOUGH_S` of a processor from now on, or has ended."""
    began = time.monotonic()
    waiting = {thread: used for thread in running if (used := _used(*thread)) is not None}
    while (elapsed := time.monotonic() - began) < LEAST_S or (waiting and elapsed < most_s):
        time.sleep(0.02)
        waiting = {
            thread: before
            for thread, before in waiting.items()
            if (now := _used(*thread)) is not None and now - before < ENOUGH_S
        }


def _used(pid: int, tid: int) -> float | None:
    with suppress(Gone):
        return used_s(pid, tid)
    return None


def only_user_space() -> str:
    """``:u`` where the kernel does not let this user sample what a thread does in the kernel.

    A library that yields the processor while it waits is nearly always found there.
    """
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    return "" if os.geteuid() == 0 or paranoid <= 1 else ":u"


def _record(command: Sequence[str], running: Sequence[tuple[int, int]], most_s: float) -> None:
    """Sample until the threads were seen. perf starts its ``cat`` when it samples, and ends with it."""
    perf = _start(command)
    try:
        assert perf.stdin
        assert perf.stdout
        with suppress(BrokenPipeError):
            perf.stdin.write("\n")
            perf.stdin.flush()
        if select.select([perf.stdout], [], [], LIMIT_S)[0]:
            wait_for_use(running, most_s)
    except BaseException:
        perf.kill()
        raise
    _end(perf)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except OSError as error:
        raise NotSampled(f"perf cannot be started: {error.strerror}") from None


def _end(perf: subprocess.Popen[str]) -> str:
    """Wait until perf ends, after its input has; what it printed."""
    with perf:
        try:
            output, errors = perf.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            perf.kill()
            raise NotSampled(f"perf did not end within {LIMIT_S:g} s") from None
    if perf.returncode:
        complaint = " ".join(errors.split()) or f"exit code {perf.returncode}"
        raise NotSampled(f"perf: {complaint[:200]}")
    return output


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
