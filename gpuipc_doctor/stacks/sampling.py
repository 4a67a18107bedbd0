"""Native stacks of running threads, by sampling: the kernel copies registers and stack, and nothing stops.

perf(1), if installed, unwinds them (``--call-graph dwarf``). perf samples by a software clock, because
virtual machines lack hardware events. A user may sample their own processes if kernel.perf_event_paranoid is
at most 2 (Linux, Documentation/admin-guide/perf-security.rst). A sleeping thread gives no samples.
"""

from __future__ import annotations

import os
import platform
import re
import select
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.files import foreign
from gpuipc_doctor.files.node_files import number
from gpuipc_doctor.stacks import code, counting
from gpuipc_doctor.stacks.proc_files import Gone, used_s
from gpuipc_doctor.stacks.thread import Stack

FREQUENCY_HZ = 99
"""Samples per second of a thread's processor time."""

FEWEST_HZ, MOST_HZ = 12, 60
ALL_HZ = 120
"""Maximum samples per second of all ranks of a node together, because perf unwinds about 1,000 per second."""

SAMPLES = 3.5
"""Sample periods for which a thread must run, so that it has at least three samples."""

LEAST_S, MOST_S = 0.2, 2.0
"""Minimum and maximum seconds for which to sample threads."""

STACK_BYTES = 32 << 10
"""Bytes of stack copied with each sample. The default, 8 KiB, is too little for Intel MPI's collectives."""

LIMIT_S = 30.0
"""Maximum seconds for perf to start, and also for it to unwind its samples."""

MAX_OUTPUT = 128 << 20
"""Maximum bytes that perf may print: a sample has some 10 kB."""

MAX_FRAMES = 100

_EVENT = re.compile(r"^(?:.*\s)?(\d+)\s*$")
_FIELDS, _PLACES = "tid,ip,sym,dso,uregs", "dsoff"
"""Fields of ``perf script``. perf 6.1 prints places in files as addresses; 6.12 has a field for them."""

_FRAME = re.compile(r"^\s+([0-9a-f]+) (.*) \((.*?)(?:\+0x([0-9a-f]+))?\)$")
_REGISTER = re.compile(r"(\w+):0x([0-9a-f]+)")
_NO_NUMBERS = frozenset({"SP", "IP", "FLAGS", "CS", "SS", "sp", "lr", "pc"})
"""Registers that hold no numbers of the program, but pointers and flags (Linux, tools/perf/arch)."""


class NotSampled(Exception):
    """There are no samples; the message says why in one line."""


def has_perf() -> bool:
    """Whether perf(1) is installed and unwinds stacks here.

    On arm64 it ends at the first signed return address (perf 6.12: one frame of MPI_Recv), and with SVE the
    kernel refuses it the clock, because it copies the length of vectors as well. `code` reads these stacks.
    """
    return platform.machine() != "aarch64" and shutil.which("perf") is not None


class Recording:
    """A recording of all threads of these processes, from creation until `stacks` returns their stacks.

    One recording covers all snapshots, because starting perf(1) costs more than the samples. ``scratch``: a
    directory for perf's file. The file takes 34 kB for each sample, and is removed at the end. Raises
    `NotSampled`.
    """

    def __init__(self, pids: Sequence[int], scratch: Path) -> None:
        at_a_time = max(1, min(len(pids), os.cpu_count() or 1))
        self.frequency_hz = min(MOST_HZ, max(FEWEST_HZ, ALL_HZ // at_a_time))
        self._data = scratch / "perf.data"
        event = ["-e", f"cpu-clock{only_user_space()}", "-F", str(self.frequency_hz)]
        how = ["-q", "-B", "--call-graph", f"dwarf,{STACK_BYTES}", "-o", str(self._data)]
        self._record = _start(["perf", "record", *event, "-p", ",".join(map(str, pids)), *how, "--", "cat"])
        self._before: dict[tuple[int, int], float] | None = None
        self.counting: Set[int] = frozenset()
        """Threads with a register that keeps rising or falling; set by `stacks`."""

    def begin(self, running: Sequence[tuple[int, int]]) -> None:
        """Wait until perf samples, and note the processor seconds used so far by these (pid, tid) threads."""
        if self._before is not None:
            return
        assert self._record.stdin
        assert self._record.stdout
        with suppress(BrokenPipeError):  # perf starts its `cat` when it samples, and ends with it
            self._record.stdin.write("\n")
            self._record.stdin.flush()
        select.select([self._record.stdout], [], [], LIMIT_S)
        self._before = _all_used(running)

    def stacks(self, running: Sequence[tuple[int, int]], most_s: float = MOST_S) -> Mapping[int, list[Stack]]:
        """Wait until each running thread was sampled, then end perf; returns stacks by thread, innermost
        frame first."""
        try:
            self.begin(running)
            wait_for_use(running, SAMPLES / self.frequency_hz, most_s, self._before)
            _end(self._record)
            text = _samples(self._data)
        finally:
            self.close()
        try:
            found, self.counting = foreign.parsed(_parsed, text, limit_s=LIMIT_S)
        except foreign.Refused as reason:
            raise NotSampled(f"cannot parse perf's samples: {reason}") from None
        return found

    def close(self) -> None:
        """End perf, and remove its file."""
        if self._record.poll() is None:
            self._record.kill()
            self._record.communicate()
        self._data.unlink(missing_ok=True)


def wait_for_use(
    running: Sequence[tuple[int, int]],
    enough_s: float = SAMPLES / FREQUENCY_HZ,
    most_s: float = MOST_S,
    before: Mapping[tuple[int, int], float] | None = None,
) -> None:
    """Wait until each of these threads has used this many more processor seconds, or has ended.

    ``before``: processor seconds that the threads had used when sampling began. Without ``before``, sampling
    begins now, and the wait is at least `LEAST_S`.
    """
    began, least_s = time.monotonic(), LEAST_S if before is None else 0.0
    used = {**_all_used(running), **(before or {})}
    waiting = {thread: used[thread] for thread in running if thread in used}
    while (elapsed := time.monotonic() - began) < least_s or (waiting and elapsed < most_s):
        waiting = {
            thread: before_s
            for thread, before_s in waiting.items()
            if (now := _used(*thread)) is not None and now - before_s < enough_s
        }
        if waiting or elapsed < least_s:
            time.sleep(0.02)


def _all_used(threads: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    return {thread: used for thread in threads if (used := _used(*thread)) is not None}


def _used(pid: int, tid: int) -> float | None:
    with suppress(Gone):
        return used_s(pid, tid)
    return None


def only_user_space() -> str:
    """The suffix of perf's event: ``:u`` if the kernel does not let this user sample the kernel, else
    empty."""
    paranoid = number(Path("/proc/sys/kernel/perf_event_paranoid"))
    return "" if os.geteuid() == 0 or (paranoid is not None and paranoid <= 1) else ":u"


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except OSError as error:
        raise NotSampled(f"cannot start perf: {error.strerror}") from None


def _end(perf: subprocess.Popen[str]) -> str:
    with perf:
        try:
            output, errors = perf.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            perf.kill()
            raise NotSampled(f"perf did not end within {LIMIT_S:g} s") from None
    return _checked(perf.returncode, output, errors)


def _checked(code: int, output: str, errors: str) -> str:
    if code:
        complaint = " ".join(errors.split()) or f"exit code {code}"
        raise NotSampled(f"perf: {complaint[:200]}")
    return output


def _samples(data: Path) -> str:
    """What perf says of its samples. Raises `NotSampled`."""
    for fields in (f"{_FIELDS},{_PLACES}", _FIELDS):
        command = ["perf", "script", "-i", str(data), "--no-inline", "-F", fields]
        try:
            ended = foreign.run(command, limit_s=LIMIT_S, max_bytes=MAX_OUTPUT)
        except subprocess.TimeoutExpired:
            raise NotSampled(f"perf did not end within {LIMIT_S:g} s") from None
        except OSError as error:
            raise NotSampled(f"cannot run perf: {error.strerror}") from None
        if not ended.returncode or "Invalid field" not in ended.stderr:
            break
    return _checked(ended.returncode, ended.stdout, ended.stderr)


def _parsed(text: str) -> tuple[dict[int, list[Stack]], Set[int]]:
    found: dict[int, list[Stack]] = defaultdict(list)
    for thread, stack in stacks(text):
        found[thread].append(stack)
    return found, counting_threads(text)


def stacks(text: str) -> Iterator[tuple[int, Stack]]:
    """(thread, frames) of each sample in the output of perf that `_samples` asks for."""
    thread, frames = 0, list[str]()
    for line in [*text.splitlines(), ""]:
        if frame := _FRAME.match(line):
            if not frame[3].startswith("["):  # [kernel.kallsyms], [unknown], [vdso]
                # perf has an address within the call, by the offset in its file.
                entered = (
                    code.entered(frames[-1], code.called(frame[3], int(frame[4] or frame[1], 16) + 1))
                    if frames
                    else ""
                )
                frames += [*filter(None, [entered]), _name(frame[2], frame[3])]
        elif thread and (line.startswith(" ABI:") or not line.strip()):
            if frames:
                yield thread, tuple(frames[:MAX_FRAMES])
            thread, frames = 0, []
        elif event := _EVENT.match(line):
            thread = int(event[1])


def counting_threads(text: str) -> Set[int]:
    """Threads with a register that keeps rising or falling, in the output of perf that `stacks` parses."""
    thread, found = 0, defaultdict[int, list[list[int]]](list)
    for line in text.splitlines():
        if line.startswith(" ABI:"):
            registers = _REGISTER.findall(line)
            found[thread].append([int(value, 16) for name, value in registers if name not in _NO_NUMBERS])
        elif event := _EVENT.match(line):
            thread = int(event[1])
    return {thread for thread, samples in found.items() if counting.any_counts(samples)}


def _name(symbol: str, file: str) -> str:
    """A frame as ``MPI_Recv (libmpi.so.12)``; without a function's name, the file in brackets."""
    base = file.rpartition("/")[2]
    return f"[{base}]" if symbol == "[unknown]" else f"{symbol.partition('@')[0]} ({base})"
