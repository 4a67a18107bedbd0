"""What a supervisor has its stems fork: workers, and stems that have imported more."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

GO = b"go"
"""What a worker that has told its process number waits for."""

MOST_BYTES = 1 << 16
"""Of one message."""

_MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class _Order:
    files: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Descriptors that go with it, which are the fork's own then."""

    def send(self, to: socket.socket) -> None:
        text = json.dumps({**asdict(self), "files": list(self.files)})
        socket.send_fds(to, [text.encode()], list(self.files.values()))

    def close(self) -> None:
        for fd in self.files.values():
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Order(_Order):
    """What a worker is to be: its role, its marker, and what its environment has beside the stem's.

    ``files``: its log, a socket to its supervisor, and one to each peer, ``peer 1`` and so on.
    """

    directory: str
    role: str
    marker: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StemOrder(_Order):
    """What a stem is to import. ``files``: its log, and the socket from which it takes orders."""

    imports: Sequence[str]


def receive_order(stream: socket.socket) -> Order | StemOrder | None:
    """The next order; None at the end."""
    data, fds, _, _ = socket.recv_fds(stream, MOST_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    told = json.loads(data)
    told["files"] = dict(zip(told["files"], fds, strict=True))
    return StemOrder(**told) if "imports" in told else Order(**told)
