"""Logs of decisions: JSON lines and syslog. They do not affect decisions."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files import private
from gpuipc_doctor.files.private import NotOurs
from gpuipc_doctor.files.trust import untrusted

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json
    from gpuipc_doctor.report_types import Result

ROTATED = ".1"

SYSLOG = Path("/dev/log")
SYSLOG_LIMIT_S = 0.2
"""Seconds to wait for a slow reader; a stuck reader must not delay every job."""


class NotLogged(Exception):
    """A line could not be appended; the message is one line with the reason."""


def row(result: Result) -> dict[str, Json]:
    """A result as it is written under ``results`` in an entry of the log."""
    from gpuipc_doctor.report import sentences

    finding = result.finding
    return {
        "check": result.check,
        "devices": list(result.devices),
        "probe": result.probe,
        "status": finding.status.value,
        "summary": sentences.summary(finding),
        "evidence": list(sentences.evidence(finding)),
        "remedy": finding.remedy,
        "elapsed_s": round(result.elapsed_s, 3),
    }


def append(path: Path, entry: Json, max_bytes: int) -> None:
    """Append one line of JSON, completely or not at all; rename the log before it exceeds ``max_bytes``.

    The line is ASCII with everything else escaped, so that it contains no control sequences. Raises
    `NotLogged`.
    """
    line = json.dumps(entry).encode() + b"\n"
    try:
        if reason := untrusted(path.parent):
            raise NotOurs(f"{path.parent} {reason}")
        with _current(path) as fd:
            size = os.fstat(fd).st_size
            if size and size + len(line) > max_bytes:
                path.replace(path.with_name(path.name + ROTATED))
                with _current(path) as fresh:
                    _write(fresh, line)
            else:
                _write(fd, line)
    except NotOurs as reason:
        raise NotLogged(f"not logged: {reason}") from None
    except OSError as error:
        raise NotLogged(f"not logged: {path}: {error.strerror}") from None


def tell_syslog(line: str, *, drains: bool) -> None:
    """Write a line to syslog, if there is one: an error if the node is drained, else a warning."""
    import socket
    import syslog

    priority = syslog.LOG_DAEMON | (syslog.LOG_ERR if drains else syslog.LOG_WARNING)
    text = f"<{priority}>gpuipc-doctor[{os.getpid()}]: {line.removeprefix('gpuipc-doctor: ')}\0"
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):  # the socket types that syslog daemons use
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as log:
            log.settimeout(SYSLOG_LIMIT_S)
            log.connect(str(SYSLOG))
            log.sendall(text.encode())
            return


@contextlib.contextmanager
def _current(path: Path) -> Iterator[int]:
    """Open and lock the log. If another process renames the log meanwhile, the new log is opened."""
    for _ in range(2):
        with _opened(path) as fd, private.locked(fd) as is_locked:
            if not is_locked:
                raise NotOurs(f"{path} is locked by another process")
            if _is_at(path, fd):
                yield fd
                return
    raise NotOurs(f"{path} was renamed at each attempt to open it")


def _is_at(path: Path, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_ino == os.fstat(fd).st_ino
    return False


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    return private.file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _write(fd: int, line: bytes) -> None:
    size = os.fstat(fd).st_size
    written = os.write(fd, line)
    if written != len(line):  # a full disk; the existing file must stay readable
        os.ftruncate(fd, size)
        raise OSError(28, "No space left on device")
