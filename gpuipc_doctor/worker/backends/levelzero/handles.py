"""How a handle travels: its first four bytes are the number of a descriptor of its exporter.

The newest drivers take that descriptor themselves; their handles also have the exporter's pid. For all
others, the importer fetches it with ``pidfd_getfd``, or, if the kernel does not allow that, receives it over
a socket.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain

from gpuipc_doctor.api.gpu import HANDLE_BYTES
from gpuipc_doctor.worker import descriptors

OPAQUE, PIDFD, SOCKET = b"opaque", b"pidfd ", b"socket"
_FORM = f"6sq{HANDLE_BYTES}s"
_PR_SET_PTRACER, _ANY = 0x59616D61, -1


def number_in(handle: bytes) -> int:
    return int(struct.unpack_from("i", handle)[0])


class Exported:
    """The descriptors of this process's handles, and the socket that hands them out."""

    def __init__(self) -> None:
        self._files: dict[int, dict[bytes, tuple[int, int]]] = {}
        """Address → handle → the file behind its descriptor."""
        self._listener: socket.socket | None = None

    def packed(self, address: int, handle: bytes) -> bytes:
        """A handle with all that its importer needs."""
        number = number_in(handle)
        with suppress(OSError):  # no descriptor at all: the driver's own affair
            status = os.fstat(number)
            self._files.setdefault(address, {})[handle] = status.st_dev, status.st_ino
        return struct.pack(_FORM, self._way(handle, number), os.getpid(), handle)

    def _way(self, handle: bytes, number: int) -> bytes:
        if struct.pack("I", os.getpid()) in handle[8:]:
            return OPAQUE
        import ctypes

        # Kernels without Yama return EINVAL, and need no permission.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_long(_ANY), 0, 0, 0)
        try:
            os.close(descriptors.fetch(os.getpid(), number))
        except OSError:  # before Linux 5.6, or a container's seccomp filter
            self._listen()
            return SOCKET
        return PIDFD

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(_name_of(os.getpid()))
            self._listener.listen()
            threading.Thread(target=self._hand_out, args=(self._listener,), daemon=True).start()

    def _hand_out(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError, struct.error):
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                (number,) = struct.unpack("i", connection.recv(4))
                known = number in map(number_in, chain(*list(self._files.values())))
                if known and struct.unpack("3i", peer)[1] == os.getuid():
                    descriptors.send(connection, number)

    def end(self, address: int) -> dict[bytes, tuple[int, int]]:
        """Forget the handles of memory that is to be freed; returns them, with the files."""
        return self._files.pop(address, {})

    def close_rest(self, ended: dict[bytes, tuple[int, int]]) -> None:
        """Close the descriptors of ended handles that the driver has left open, but none of a handle in use:
        small buffers may lie in one allocation, which has one descriptor."""
        in_use = set(map(number_in, chain(*self._files.values())))
        for handle, file in ended.items():
            with suppress(OSError):
                number = number_in(handle)
                status = os.fstat(number)
                if number not in in_use and (status.st_dev, status.st_ino) == file:
                    os.close(number)


def _name_of(pid: int) -> str:
    return f"\0gpuipc-doctor/levelzero/{pid}"


@contextmanager
def opened(packed: bytes) -> Iterator[bytes]:
    """The handle in the form that the driver opens here, while the block runs."""
    if len(packed) != struct.calcsize(_FORM):
        raise ValueError(f"a handle of Level Zero has {struct.calcsize(_FORM)} bytes, not {len(packed)}")
    way, pid, handle = struct.unpack(_FORM, packed)
    if way == OPAQUE:
        yield handle
        return
    number = number_in(handle)
    if way == SOCKET:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_name_of(pid))
            connection.send(struct.pack("i", number))
            own = descriptors.receive(connection)
    else:
        own = descriptors.fetch(pid, number)
    try:
        yield struct.pack("i", own) + handle[4:]
    finally:
        os.close(own)
