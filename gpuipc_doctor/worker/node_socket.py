"""A connection between two roles started by a launcher, possibly on two nodes.

The first role listens and writes its address and a secret into the probe's directory, which all of the
probe's nodes share and no other user can read; the other role reads both and connects. A peer without the
secret is refused.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from pathlib import Path

from gpuipc_doctor.supervise.journal import Journal

ADDRESS = "meeting.json"

_SECRET_BYTES = 16
_POLL_S = 0.02


def host() -> str:
    """The name by which other nodes reach this host."""
    return socket.gethostname()


def connect(directory: Path, place: int, journal: Journal) -> int:
    """Descriptor of the connection to the other of two roles; waits for that role."""
    with journal.waiting():
        return _wait(directory) if place == 0 else _seek(directory)


def _wait(directory: Path) -> int:
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
    while not (file := directory / ADDRESS).exists():
        time.sleep(_POLL_S)
    address = json.loads(file.read_text())
    connection = socket.create_connection((address["host"], address["port"]))
    connection.sendall(bytes.fromhex(address["secret"]))
    return connection.detach()
