"""Bytes that TCP connections have carried, as the kernel counts them (sock_diag(7), ``tcp_info``)."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST_DUMP, _DONE = 0x301, 3
_INFO = 2
"""Attribute INET_DIAG_INFO."""

_EVERY_STATE = 0xFFFFFFFF
_HEADER, _REQUEST, _MESSAGE = struct.Struct("=IHHII"), struct.Struct("=BBBBI48x"), struct.Struct("=68xI")
_BYTES_AT = 120
"""Offset of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in ``tcp_info`` (Linux,
include/uapi/linux/tcp.h)."""

_LIMIT_S = 1.0
_SOCKET = re.compile(r"socket:\[(\d+)\]$")


def carried_bytes() -> dict[int, int]:
    """Inode of each TCP socket of this network namespace → bytes sent and received; empty if unknown."""
    found: dict[int, int] = {}
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_LIMIT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << _INFO - 1, 0, _EVERY_STATE)
            size = _HEADER.size + len(request)
            link.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
            while not _is_last(data := link.recv(1 << 18)):
                found.update(counts(data))
            found.update(counts(data))
    return found


def _is_last(data: bytes) -> bool:
    return not data or any(kind != _BY_FAMILY for kind, _ in _messages(data))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + size]
        at += size + 3 & ~3


def counts(data: bytes) -> Iterator[tuple[int, int]]:
    """(inode, bytes) of each socket in an answer of the kernel; those without ``tcp_info`` are left out."""
    for kind, body in _messages(data):
        if kind != _BY_FAMILY or len(body) < _MESSAGE.size:
            continue
        (inode,) = _MESSAGE.unpack_from(body)
        at = _MESSAGE.size
        while at + 4 <= len(body):
            size, attribute = struct.unpack_from("=HH", body, at)
            if attribute == _INFO and size >= 4 + _BYTES_AT + 16:
                yield inode, sum(struct.unpack_from("=QQ", body, at + 4 + _BYTES_AT))
            at += max(4, size + 3 & ~3)


def sockets_of(pid: int) -> set[int]:
    """Inodes of the sockets that a process has open."""
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if number := _SOCKET.match(os.readlink(entry.path)):  # noqa: PTH115 - it is no path
                    found.add(int(number[1]))
    return found
