"""Descriptors that go from one process to another."""

from __future__ import annotations

import os
import socket

_SYS_PIDFD_GETFD = 438  # on every architecture that Linux 5.6 and later knows


def send(connection: socket.socket, descriptor: int) -> None:
    """Pass it on with ``SCM_RIGHTS``, over a socket that is connected and of ``AF_UNIX``."""
    socket.send_fds(connection, [b"\0"], [descriptor])


def receive(connection: socket.socket) -> int:
    """The descriptor that the other end sent, close-on-exec; raises `EOFError` where it has hung up."""
    data, received, _, _ = socket.recv_fds(connection, 1, 1)
    if not data:
        raise EOFError("nobody sends any more")
    return received[0]


def fetch(pid: int, number: int) -> int:
    """Another process's descriptor of this number, by ``pidfd_getfd``, close-on-exec.

    Raises `PermissionError` where this process may not trace that one (Yama, another user, a container's
    seccomp filter: ptrace(2), "Ptrace access mode checking"), and other kinds of `OSError`.
    """
    import ctypes

    process = os.pidfd_open(pid)
    try:
        descriptor = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_GETFD, process, number, 0)
        if descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return int(descriptor)
    finally:
        os.close(process)
