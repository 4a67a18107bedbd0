"""A connection whose ends have shown each other that they know a run's secret; bounded in bytes and time.

Each message is a line: a MAC, a space, JSON. The MAC covers the direction and the message's number, so that
nothing can be altered, repeated or replayed. Nothing is encrypted: messages hold no secrets but NCCL's unique
ids, which NCCL itself sends in the clear.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable

from gpuipc_doctor.model import Json

SECRET_BYTES = 32
MOST_BYTES = 1 << 20
"""Maximum bytes of a message."""
MOST_GREETING = 1 << 10
GREETING_S = 10.0
"""Seconds for the greeting, and for the other end to take a message."""
HEAD, NODE = "head", "node"


class NotOurs(Exception):
    """The other end does not know the secret, sent too much, or sent what is no message."""


class Line:
    """One end after the greeting. ``me``: `HEAD` or `NODE`."""

    def __init__(self, connection: socket.socket, key: bytes, me: str) -> None:
        self.socket, self._key, self._me = connection, key, me
        self._sent = self._received = 0
        self._unread = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Json) -> None:
        """Raises `OSError`, also if the other end takes nothing for `GREETING_S`."""
        data = json.dumps(message).encode()
        self.socket.settimeout(GREETING_S)
        self.socket.sendall(self._mac(self._me, self._sent, data) + b" " + data + b"\n")
        self._sent += 1

    def receive(self) -> list[Json]:
        """The messages that have come, perhaps none, without waiting if some byte is there. Raises `NotOurs`,
        and `OSError` (`EOFError` at the end)."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError(0, "the connection was closed")
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > MOST_BYTES:
            raise NotOurs("a message is too long")
        return [self._open(line) for line in lines]

    def _open(self, line: bytes) -> Json:
        mac, _, data = line.partition(b" ")
        sender = HEAD if self._me == NODE else NODE
        if not hmac.compare_digest(mac, self._mac(sender, self._received, data)):
            raise NotOurs("a message was altered")
        self._received += 1
        return json.loads(data)

    def _mac(self, sender: str, number: int, data: bytes) -> bytes:
        return _proof(self._key, f"{sender} {number} ".encode() + data).encode()

    def close(self) -> None:
        self.socket.close()


def _proof(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, "sha256").hexdigest()


def greet(connection: socket.socket, secret: bytes, name: str) -> Line:
    """The node's part: prove to know the secret, and have it proven. Raises `NotOurs` and `OSError`."""
    until = time.monotonic() + GREETING_S
    nonce = _line(connection, until)
    mine = secrets.token_hex(16)
    both = f"{nonce} {mine} {name}"
    connection.sendall(f"{mine} {_proof(secret, f'{NODE} {both}'.encode())} {name}\n".encode())
    if not hmac.compare_digest(_line(connection, until), _proof(secret, f"{HEAD} {both}".encode())):
        raise NotOurs("it does not know the run's secret")
    return Line(connection, _proof(secret, f"key {both}".encode()).encode(), NODE)


def welcome(connection: socket.socket, secret: bytes, expected: Callable[[str], bool]) -> tuple[str, Line]:
    """The head's part: the node's name and its line. Raises `NotOurs` and `OSError`."""
    until = time.monotonic() + GREETING_S
    nonce = secrets.token_hex(16)
    connection.settimeout(GREETING_S)
    connection.sendall(f"{nonce}\n".encode())
    theirs, _, rest = _line(connection, until).partition(" ")
    proof, _, name = rest.partition(" ")
    both = f"{nonce} {theirs} {name}"
    if not hmac.compare_digest(proof.encode(), _proof(secret, f"{NODE} {both}".encode()).encode()):
        raise NotOurs("it does not know the run's secret")
    if not expected(name):
        raise NotOurs(f"{name} is no node of this run, or has come already")
    connection.sendall(f"{_proof(secret, f'{HEAD} {both}'.encode())}\n".encode())
    return name, Line(connection, _proof(secret, f"key {both}".encode()).encode(), HEAD)


def _line(connection: socket.socket, until: float) -> str:
    """A short line, byte by byte: what follows it is not ours to read."""
    found = b""
    while not found.endswith(b"\n"):
        connection.settimeout(max(until - time.monotonic(), 0.01))
        byte = connection.recv(1)
        found += byte
        if not byte or len(found) > MOST_GREETING:
            raise NotOurs("it does not speak as this tool does")
    return found[:-1].decode("ascii", errors="replace")
