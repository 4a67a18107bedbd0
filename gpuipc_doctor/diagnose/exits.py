"""Exit codes of ``diagnose``."""

from __future__ import annotations

from gpuipc_doctor.diagnose.diagnosis import Diagnosis
from gpuipc_doctor.model import Exit

MEANINGS = {
    Exit.OK: "no known issue was recognised",
    Exit.INTERNAL: "gpuipc-doctor itself failed, or could not write its result",
    Exit.USAGE: "the command line or a configuration file is wrong",
    Exit.NOTHING: "nothing to read: no log, or only empty ones",
    Exit.WARN: "hints of known issues, or errors that no known issue explains (with --strict only)",
    Exit.ERROR: "a log, or a part of one, could not be read; no known issue in the rest",
    Exit.FAIL: "a known issue was recognised, or a rank is named that keeps others waiting or failed first",
    Exit.INTERRUPTED: "interrupted before the end; no known issue before the interruption",
}


def code(diagnosis: Diagnosis, *, strict: bool = False) -> int:
    """The exit code. With ``strict``, hints and unexplained errors give WARN."""
    if diagnosis.found or any(difference.blames for difference in diagnosis.flights):
        return Exit.FAIL
    if diagnosis.interrupted:
        return Exit.INTERRUPTED
    if any(log.trouble for log in diagnosis.logs):
        return Exit.ERROR
    if not any(log.bytes for log in diagnosis.logs):
        return Exit.NOTHING
    unexplained = diagnosis.hints or diagnosis.unknown or diagnosis.flights
    return Exit.WARN if strict and unexplained else Exit.OK
