"""The exit codes of a run."""

from __future__ import annotations

import enum

from gpuipc_doctor.model import Exit, Status
from gpuipc_doctor.report_types import Report

MEANINGS = {
    Exit.OK: "at least one probe ran; nothing is worse than WARN",
    Exit.INTERNAL: "gpuipc-doctor itself failed, or could not write its result",
    Exit.USAGE: "the command line or a configuration file is wrong",
    Exit.NOTHING: "no probe ran on a GPU, so nothing is known about the GPUs",
    Exit.WARN: "the worst finding is WARN (with --strict only)",
    Exit.ERROR: "the worst finding is ERROR: something could not be tested",
    Exit.FAIL: "the worst finding is FAIL",
    Exit.INTERRUPTED: "interrupted; the report has the results before the interruption",
}


class Nagios(enum.IntEnum):
    """States of the Nagios plugin interface; their values are the exit codes of ``--exit-style nagios``."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


def code(report: Report, *, strict: bool = False, nagios: bool = False) -> int:
    """Exit code of a run with this report, or of a Nagios plugin. ``strict``: in the former, a WARN changes
    the code.

    A FAIL during discovery (``cuInit`` hung) counts although no probe ran.
    """
    worst = report.worst()
    if nagios:
        return nagios_state(report)
    if report.interrupted:
        return Exit.INTERRUPTED
    if worst is Status.FAIL:
        return Exit.FAIL
    if report.nothing_tested:
        return Exit.NOTHING
    if worst is Status.ERROR:
        return Exit.ERROR
    return Exit.WARN if strict and worst is Status.WARN else Exit.OK


def nagios_state(report: Report) -> Nagios:
    """The Nagios state. An interrupted run is CRITICAL if it found a FAIL, else UNKNOWN."""
    worst = report.worst()
    if worst is Status.FAIL:
        return Nagios.CRITICAL
    if worst is Status.ERROR or report.interrupted or report.nothing_tested:
        return Nagios.UNKNOWN
    return Nagios.WARNING if worst is Status.WARN else Nagios.OK
