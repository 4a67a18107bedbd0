"""The other role of a probe, as a role sees it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket

from gpuipc_doctor.model import Json
from gpuipc_doctor.supervise.journal import Journal
from gpuipc_doctor.worker import descriptors

_RECEIVE, _FETCH = "SCM_RIGHTS", "pidfd_getfd"
"""Requests for the partner's descriptor: each is the name of the method."""


class PeerLost(Exception):
    """The other role of this probe has ended; this role cannot continue but has not failed itself."""


class Peer:
    """The other role, at the other end of a socket pair. Values are sent as pickles, within one run."""

    def __init__(self, fd: int, journal: Journal) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._stream = self._socket.makefile("rwb")
        self._journal = journal

    def send(self, value: Json | bytes) -> None:
        try:
            pickle.dump(value, self._stream)
            self._stream.flush()
        except OSError as error:
            raise PeerLost from error

    def recv(self) -> Json:
        try:
            with self._journal.waiting():
                return pickle.load(self._stream)  # noqa: S301 - written by a process of ours
        except (EOFError, OSError) as error:
            raise PeerLost from error

    def recv_or_end(self) -> Json:
        with contextlib.suppress(PeerLost):
            return self.recv()

    def has_news(self) -> bool:
        """Whether `recv` would return or raise at once."""
        return bool(select.select([self._socket], [], [], 0)[0])

    # The stream is empty while a descriptor is passed: the receiver requests it first.

    def send_descriptor(self, descriptor: int) -> bool:
        if self.recv() == _FETCH:
            self.send([os.getpid(), descriptor])
            return bool(self.recv())
        try:
            descriptors.send(self._socket, descriptor)
        except OSError as error:
            raise PeerLost from error
        return True

    def recv_descriptor(self) -> int:
        self.send(_RECEIVE)
        try:
            with self._journal.waiting():
                return descriptors.receive(self._socket)
        except (EOFError, OSError) as error:
            raise PeerLost from error

    def fetch_descriptor(self) -> int:
        self.send(_FETCH)
        pid, number = self.recv()
        try:
            descriptor = descriptors.fetch(pid, number)
        except OSError:
            self.send(False)
            raise
        self.send(True)
        return descriptor

    def wait_gone(self) -> None:
        with self._journal.waiting(), contextlib.suppress(OSError):
            while self._stream.read(4096):
                pass

    def hang_up(self) -> None:
        """Close the connection. The other role then sees the end even if a process of the driver has
        inherited the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
