"""Pass descriptors between processes."""

from __future__ import annotations

import os
import socket

# On every architecture that Linux 5.6 and later knows. Python has no os.pidfd_open if built with old headers.
_SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 434, 438


def send(connection: socket.socket, descriptor: int) -> None:
    """Send a descriptor with ``SCM_RIGHTS`` over a connected ``AF_UNIX`` socket."""
    socket.send_fds(connection, [b"\0"], [descriptor])


def receive(connection: socket.socket) -> int:
    """The descriptor from the other end, close-on-exec. Raises `EOFError` if the other end is closed."""
    data, received, _, _ = socket.recv_fds(connection, 1, 1)
    if not data:
        raise EOFError("the sender closed its end")
    return received[0]


def fetch(pid: int, number: int) -> int:
    """Another process's descriptor with this number, through ``pidfd_getfd``, close-on-exec.

    Raises `PermissionError` if this process is not permitted to trace the other (Yama, another user, a
    container's seccomp filter: ptrace(2), "Ptrace access mode checking"), or another `OSError`: ENOSYS before
    Linux 5.6.
    """
    process = _call(_SYS_PIDFD_OPEN, pid, 0)
    try:
        return _call(_SYS_PIDFD_GETFD, process, number, 0)
    finally:
        os.close(process)


def _call(number: int, *arguments: int) -> int:
    import ctypes

    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
