"""Connections between roles that a launcher or a tour has started, on one node or on two.

On one node the roles meet by a Unix socket in the probe's directory, which no other user can enter: neither a
host name nor a network is needed. On two nodes the first role listens and writes its address and a secret
into that directory, which both nodes share; the other role reads both and connects. A peer without the secret
is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.supervise.journal import Journal

ADDRESS = "meeting.json"
SOCKET = "meeting"

_SECRET_BYTES = 16
_POLL_S = 0.02


def host() -> str:
    """The name by which other nodes reach this host."""
    return socket.gethostname()


def connect(directory: Path, place: int, journal: Journal, roles: int = 2) -> tuple[int, ...]:
    """Descriptors of the first role's connections to the others on this node, or of another role's to the
    first; waits for those roles. ``place``: index of the calling role."""
    with journal.waiting(), _short(directory) as short, socket.socket(socket.AF_UNIX) as end:
        if place == 0:
            end.bind(f"{short}/{SOCKET}.draft")  # renamed once it listens
            end.listen(roles)
            (directory / f"{SOCKET}.draft").rename(directory / SOCKET)
            return _accept(end, roles)
        _wait_for(directory / SOCKET)
        end.connect(f"{short}/{SOCKET}")
        end.sendall(bytes([place]))
        return (end.detach(),)


def _accept(end: socket.socket, roles: int) -> tuple[int, ...]:
    """The connections of all other roles, in their order. One that ends without a word is not of a role."""
    found: dict[int, int] = {}
    while len(found) < roles - 1:
        connection, _ = end.accept()
        if place := connection.recv(1):
            found[place[0]] = connection.detach()
        else:
            connection.close()
    return tuple(found[place] for place in sorted(found))


def connect_nodes(directory: Path, place: int, journal: Journal) -> int:
    """Descriptor of the connection to the other of two roles, on another node; waits for that role."""
    with journal.waiting():
        return _listen(directory) if place == 0 else _seek(directory)


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """A short path of a directory: a Unix socket's may have 107 bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(_POLL_S)


def _listen(directory: Path) -> int:
    secret = secrets.token_bytes(_SECRET_BYTES)
    with socket.create_server(("", 0), family=socket.AF_INET) as server:
        address = {"host": host(), "port": server.getsockname()[1], "secret": secret.hex()}
        draft = directory / f"{ADDRESS}.draft"
        draft.write_text(json.dumps(address))
        draft.replace(directory / ADDRESS)
        while True:
            connection, _ = server.accept()
            if secrets.compare_digest(connection.recv(_SECRET_BYTES, socket.MSG_WAITALL), secret):
                return connection.detach()
            connection.close()


def _seek(directory: Path) -> int:
    _wait_for(directory / ADDRESS)
    address = json.loads((directory / ADDRESS).read_text())
    connection = socket.create_connection((address["host"], address["port"]))
    connection.sendall(bytes.fromhex(address["secret"]))
    return connection.detach()
