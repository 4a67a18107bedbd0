"""Where a decision is written down: a log of JSON lines, and syslog. Neither can change it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.site import private
from gpuipc_doctor.site.private import NotOurs
from gpuipc_doctor.site.trust import untrusted

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json, Result

ROTATED = ".1"

SYSLOG = Path("/dev/log")
SYSLOG_LIMIT_S = 0.2
"""For a reader that has fallen behind; one that is stuck must not hold up every job."""


class NotLogged(Exception):
    """A line could not be appended; the text is one line that says why."""


def row(result: Result) -> dict[str, Json]:
    """A result as an entry's ``results`` have it."""
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
    """Append one line of JSON, whole or not at all; rename the log before it grows beyond ``max_bytes``.

    The line is ASCII with everything else escaped, so that no terminal acts upon it. Raises `NotLogged`.
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
    """A line for the system's log, if there is one: an error where the node is drained, else a warning."""
    import socket
    import syslog

    priority = syslog.LOG_DAEMON | (syslog.LOG_ERR if drains else syslog.LOG_WARNING)
    text = f"<{priority}>gpuipc-doctor[{os.getpid()}]: {line.removeprefix('gpuipc-doctor: ')}\0"
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):  # as the system's log happens to listen
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as log:
            log.settimeout(SYSLOG_LIMIT_S)
            log.connect(str(SYSLOG))
            log.sendall(text.encode())
            return


@contextlib.contextmanager
def _current(path: Path) -> Iterator[int]:
    """The locked log. Whoever had the lock before may have renamed it: then the new one is taken."""
    for _ in range(2):
        with _opened(path) as fd, private.locked(fd) as is_locked:
            if not is_locked:
                raise NotOurs(f"{path} is locked by another process")
            if _is_at(path, fd):
                yield fd
                return
    raise NotOurs(f"{path} is being renamed all the time")


def _is_at(path: Path, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_ino == os.fstat(fd).st_ino
    return False


def _opened(path: Path) -> contextlib.AbstractContextManager[int]:
    return private.file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _write(fd: int, line: bytes) -> None:
    size = os.fstat(fd).st_size
    written = os.write(fd, line)
    if written != len(line):  # a full disk; what is there must stay readable
        os.ftruncate(fd, size)
        raise OSError(28, "No space left on device")
