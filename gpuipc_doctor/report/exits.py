"""What a run's exit code says to a script."""

from __future__ import annotations

import enum
from typing import Literal

from gpuipc_doctor.model import Report, Status

Style = Literal["default", "nagios"]


class Exit(enum.IntEnum):
    """The exit codes of ``gpuipc-doctor``; ``meaning`` is the line of the table in the README."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING_TESTED = 3
    WARN = 10
    ERROR = 11
    FAIL = 12
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "at least one probe ran and nothing is worse than WARN",
    Exit.INTERNAL: "gpuipc-doctor itself failed, or could not write what it found",
    Exit.USAGE: "the command line or a configuration file is wrong",
    Exit.NOTHING_TESTED: "no probe ran, so nothing is known about this node's GPUs",
    Exit.WARN: "the worst finding is WARN (with --strict only)",
    Exit.ERROR: "the worst finding is ERROR: something could not be tested",
    Exit.FAIL: "the worst finding is FAIL",
    Exit.INTERRUPTED: "interrupted; the report holds what was learned until then",
}


class Nagios(enum.IntEnum):
    """States of the Nagios plugin interface; their values are the exit codes of ``--exit-style nagios``."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


def code(report: Report, *, strict: bool = False, style: Style = "default") -> int:
    """The exit code of a run that ended in ``report``. ``strict`` makes WARN count, in the default style.

    A FAIL that was seen while looking for the devices (``cuInit`` hung) is a FAIL although no probe ran.
    """
    return int(nagios_state(report) if style == "nagios" else _exit(report, strict))


def nagios_state(report: Report) -> Nagios:
    """An interrupted run is CRITICAL when it had found a FAIL by then, otherwise UNKNOWN."""
    worst = report.worst()
    if worst is Status.FAIL:
        return Nagios.CRITICAL
    if worst is Status.ERROR or report.interrupted or not report.probes_run:
        return Nagios.UNKNOWN
    return Nagios.WARNING if worst is Status.WARN else Nagios.OK


def _exit(report: Report, strict: bool) -> Exit:
    worst = report.worst()
    if report.interrupted:
        return Exit.INTERRUPTED
    if worst is Status.FAIL:
        return Exit.FAIL
    if not report.probes_run:
        return Exit.NOTHING_TESTED
    if worst is Status.ERROR:
        return Exit.ERROR
    return Exit.WARN if strict and worst is Status.WARN else Exit.OK
