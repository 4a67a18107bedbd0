"""Which lines of a log tell what went wrong, and what an MPI library said when it gave up."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ERROR = re.compile(r"error|fail|abort|assert|fatal", re.IGNORECASE)
_WARNING = re.compile(r"warn", re.IGNORECASE)

_NO_NEWS = re.compile(r"error checking", re.IGNORECASE)
"""A setting: MPICH's summary says ``error checking    : enabled``."""

_GOES_ON = re.compile(r"\bdlopen\b", re.IGNORECASE)
"""Of a library that looks for all vendors': ``Failed to dlopen libze_loader.so.1`` where no Intel GPU is."""

_ABORT = re.compile(r"Fatal error in \w+: (.*?)(?:, error stack:)?$")
"""MPICH and what is made of it, when no caller takes the error: above all in ``MPI_Init``."""

_IN_ERROR_STACK = re.compile(r"[\w@]+\(\d+\)\.*: ?(.*)$")


def how_telling(line: str) -> int:
    """0: it says nothing of a fault. 1: that something is amiss. 2: that something went wrong."""
    if _NO_NEWS.search(line):
        return 0
    if _ERROR.search(line):
        return 1 if _GOES_ON.search(line) else 2
    return 1 if _WARNING.search(line) else 0


def most_telling(lines: Sequence[str], most: int) -> list[str]:
    """The first so many of the lines that tell most, in their order."""
    telling = [number for number, line in enumerate(lines) if how_telling(line)]
    telling.sort(key=lambda number: -how_telling(lines[number]))
    return [lines[number] for number in sorted(telling[:most])]


def reason_of_abort(lines: Sequence[str]) -> str:
    """The innermost reason that an MPI library gave when it ended its ranks; empty where it gave none."""
    reason, in_stack = "", False
    for line in lines:
        if abort := _ABORT.search(line):
            reason, in_stack = abort[1], line.endswith("error stack:")
        elif in_stack and (deeper := _IN_ERROR_STACK.match(line)):
            reason = deeper[1] or reason
        else:
            in_stack = False
    return reason
