"""Two roles that a launcher started find each other, and only each other, through the probe's directory."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gpuipc_doctor.supervise.journal import Journal
from gpuipc_doctor.worker import node_socket
from tests.waiting import until

Meet = Callable[[Path, int, Journal], int]


def connect(directory: Path, place: int, journal: Journal) -> int:
    (connection,) = node_socket.connect(directory, place, journal)
    return connection


MEETINGS = (connect, node_socket.connect_nodes)


class Role(threading.Thread):
    """The role of this place, in a thread that ends when it has met the other role."""

    def __init__(self, directory: Path, place: int, meet: Meet = node_socket.connect_nodes) -> None:
        super().__init__(daemon=True)
        self._directory, self._place, self._meet = directory, place, meet
        self.connection = socket.socket()
        self.start()

    def run(self) -> None:
        journal = Journal(self._directory / f"{self._place}.journal")
        self.connection.close()
        self.connection = socket.socket(fileno=self._meet(self._directory, self._place, journal))


def talk(*roles: Role) -> bytes:
    """The data that the second role receives from the first."""
    for role in roles:
        role.join(30)
    with roles[0].connection as one, roles[1].connection as other:
        one.sendall(b"port 5")
        other.settimeout(30)
        return other.recv(6, socket.MSG_WAITALL)


@pytest.mark.parametrize("meet", MEETINGS)
def test_roles_connect_in_either_order(tmp_path: Path, meet: Meet) -> None:
    client = Role(tmp_path, 1, meet)
    assert talk(Role(tmp_path, 0, meet), client) == b"port 5"


def test_roles_of_one_node_need_no_name_no_network_and_no_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_name(*_: object) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("gethostname", "getaddrinfo", "create_connection", "create_server"):
        monkeypatch.setattr(socket, name, no_name)
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    client = Role(directory, 1, connect)
    assert talk(Role(directory, 0, connect), client) == b"port 5"


def test_first_of_three_roles_has_the_others_in_their_order(tmp_path: Path) -> None:
    def third(directory: Path, place: int, journal: Journal) -> int:
        *others, last = node_socket.connect(directory, place, journal, 3)
        for other in others:
            os.close(other)
        return last

    clients = [Role(tmp_path, place, third) for place in (2, 1)]
    assert talk(Role(tmp_path, 0, third), clients[0]) == b"port 5"
    clients[1].join(30)
    clients[1].connection.close()


def test_foreign_connection_is_refused(tmp_path: Path) -> None:
    server = Role(tmp_path, 0)
    until("it listens", (tmp_path / node_socket.ADDRESS).exists)
    address = json.loads((tmp_path / node_socket.ADDRESS).read_text())
    with socket.create_connection(("127.0.0.1", address["port"])) as stranger:
        stranger.sendall(b"x" * 16)
        stranger.settimeout(30)
        assert stranger.recv(1) == b""
    assert talk(server, Role(tmp_path, 1)) == b"port 5"
