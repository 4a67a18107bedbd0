"""What a run's exit code says to a script."""

from __future__ import annotations

import enum
from typing import Literal

from gpuipc_doctor.model import Exit, Report, Status

Style = Literal["default", "nagios"]


MEANINGS = {
    Exit.OK: "at least one probe ran and nothing is worse than WARN",
    Exit.INTERNAL: "gpuipc-doctor itself failed, or could not write what it found",
    Exit.USAGE: "the command line or a configuration file is wrong",
    Exit.NOTHING: "GPUs were asked about and no probe ran, so nothing is known about them",
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
    if worst is Status.ERROR or report.interrupted or report.nothing_tested:
        return Nagios.UNKNOWN
    return Nagios.WARNING if worst is Status.WARN else Nagios.OK


def _exit(report: Report, strict: bool) -> Exit:
    worst = report.worst()
    if report.interrupted:
        return Exit.INTERRUPTED
    if worst is Status.FAIL:
        return Exit.FAIL
    if report.nothing_tested:
        return Exit.NOTHING
    if worst is Status.ERROR:
        return Exit.ERROR
    return Exit.WARN if strict and worst is Status.WARN else Exit.OK
