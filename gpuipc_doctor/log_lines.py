"""The error lines of a log, and the last message of an MPI library that aborts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

_ERROR = re.compile(r"error|fail|abort|assert|fatal", re.IGNORECASE)
_WARNING = re.compile(r"warn", re.IGNORECASE)

_NO_NEWS = re.compile(r"error checking", re.IGNORECASE)
"""A setting in MPICH's summary, which reports no error: ``error checking : enabled``."""

_GOES_ON = re.compile(r"\bdlopen\b", re.IGNORECASE)
"""Pattern for failed attempts to load a vendor's driver, usually without consequence."""

_ABORT = re.compile(r"Fatal error in \w+: (.*?)(?:, error stack:)?$")
"""Message of MPICH and its derivatives on an error without a handler, mostly in ``MPI_Init``."""

_SIGNAL = re.compile(
    r"Fatal Python error: (?P<words>[A-Z][a-z]+(?: [a-z]+)*)$"
    r"|(?:Signal: [A-Z][\w ]*\(|exited on signal |KILLED BY SIGNAL: |SIGNAL NUMBER: )(?P<number>\d{1,2})\b"
)
"""The signal that ended a process, as Python's faulthandler, Open MPI, and MPICH or Intel MPI name it."""

_IN_ERROR_STACK = re.compile(r"[\w@]+\(\d+\)\.*: ?(.*)$")


OF_KILLED = re.compile(
    r"(?:KILLED BY SIGNAL: |exited on signal |SIGNAL NUMBER: |exit code )(?:9|15|137|143)\b"
    r"|EXIT STRING: (?:Killed|Terminated)"
)
"""What launchers print of a rank that was killed: after another rank's failure, they themselves killed it."""

CHATTER = re.compile(
    r"\s(?:INFO|DIAG|DEBUG|TRACE|DATA|REQ|FUNC)\s|<(?:info|debug|trace)>|cannot be preloaded"
)
"""Lines of UCX, libfabric and NCCL below their warnings, and ld.so's line about a library that it ignores."""

_VARIES = re.compile(r"0x[0-9a-f]+|\d+")


def shape(line: str) -> str:
    """The line without what differs between processes that print the same: times, pids, ranks, addresses."""
    return _VARIES.sub("#", line).strip()


def by_shape(lines: Iterable[str]) -> dict[str, int]:
    """The first line of each `shape`, with the number of lines of that shape."""
    first: dict[str, str] = {}
    times: dict[str, int] = {}
    for line in lines:
        same = first.setdefault(shape(line), line)
        times[same] = times.get(same, 0) + 1
    return times


def how_telling(line: str) -> int:
    """Relevance of a line: 0 for no sign of a fault, 1 for a sign of a problem, 2 for a failure."""
    if _NO_NEWS.search(line):
        return 0
    if _ERROR.search(line):
        return 1 if _GOES_ON.search(line) else 2
    return 1 if _WARNING.search(line) else 0


def most_telling(lines: Sequence[str], most: int) -> list[str]:
    """The most relevant lines, at most ``most`` of them; of equally relevant lines, the first."""
    telling = [number for number, line in enumerate(lines) if how_telling(line)]
    telling.sort(key=lambda number: -how_telling(lines[number]))
    return [lines[number] for number in sorted(telling[:most])]


def reason_of_abort(lines: Sequence[str]) -> str:
    """The innermost reason that an MPI library gave for ending its ranks; empty if none."""
    reason, in_stack = "", False
    for line in lines:
        if abort := _ABORT.search(line):
            reason, in_stack = abort[1], line.endswith("error stack:")
        elif in_stack and (deeper := _IN_ERROR_STACK.match(line)):
            reason = deeper[1] or reason
        else:
            in_stack = False
    return reason


def signal_named(lines: Sequence[str]) -> str:
    """The name of the signal that ended a process according to its log: ``SIGSEGV``; empty if none."""
    for line in reversed(lines):
        if found := _SIGNAL.search(line.rstrip()):
            names = {str(int(each)): each.name for each in signal.Signals}
            names |= {signal.strsignal(each) or "": each.name for each in signal.Signals}
            if name := names.get(found["words"] or found["number"]):
                return name
    return ""


_FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_NOT_A_CHECK = (str(Path(__file__).parent), str(Path(os.__file__).parent), "<")


def place_of_error(printed: str) -> str:
    """``file:line`` of the innermost frame of a printed traceback that is in a check, not in this package's
    or Python's code; empty if there is none."""
    check = [
        f"{Path(frame['file']).name}:{frame['line']}"
        for frame in _FRAME.finditer(printed)
        if not frame["file"].startswith(_NOT_A_CHECK) or "/checks/" in frame["file"]
    ]
    return check[-1] if check else ""
