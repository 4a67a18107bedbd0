"""What the exit code of ``diagnose`` says to a script."""

from __future__ import annotations

import enum

from gpuipc_doctor.diagnose.diagnosis import Diagnosis


class Exit(enum.IntEnum):
    """As far as can be the codes of ``check``; ``meaning`` is what ``--help`` says."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING_READ = 3
    HINTS = 10
    UNREADABLE = 11
    FOUND = 12
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "no known issue was recognised",
    Exit.INTERNAL: "gpuipc-doctor itself failed, or could not write what it found",
    Exit.USAGE: "the command line or a configuration file is wrong",
    Exit.NOTHING_READ: "there was nothing to read: no log, or only empty ones",
    Exit.HINTS: "there are hints of known issues, no more (with --strict only)",
    Exit.UNREADABLE: "a log, or a part of one, could not be read; no known issue in the rest",
    Exit.FOUND: "a known issue was recognised",
    Exit.INTERRUPTED: "interrupted before the end; no known issue until then",
}


def code(diagnosis: Diagnosis, *, strict: bool = False) -> int:
    """The first that applies of: found, interrupted, unreadable, nothing read, hints."""
    if diagnosis.found:
        return Exit.FOUND
    if diagnosis.interrupted:
        return Exit.INTERRUPTED
    if any(log.trouble for log in diagnosis.logs):
        return Exit.UNREADABLE
    if not any(log.bytes for log in diagnosis.logs):
        return Exit.NOTHING_READ
    return Exit.HINTS if strict and diagnosis.hints else Exit.OK
