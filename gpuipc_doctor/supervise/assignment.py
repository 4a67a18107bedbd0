"""What a supervisor and its workers tell each other: files in the probe's directory, and orders to stems.

There is no result pipe that a runaway writer could fill and no message that is lost when its writer dies:
the `Assignment` is there before the worker starts, the `RoleResult` appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuipc_doctor.model import AtRest, Device, DriverFault, Ending, Json
from gpuipc_doctor.supervise.rank import write_whole


class RoleFiles:
    """The files of one role, ``<role>.…`` in the probe's directory."""

    def __init__(self, directory: Path, role: str) -> None:
        def file(kind: str) -> Path:
            return directory / f"{role}.{kind}"

        self.directory, self.role = directory, role
        self.assignment = file("assignment.json")
        self.result = file("result.json")
        self.journal = file("journal")
        self.inbox = file("inbox")
        """The pipe through which the role tells things while it runs, if somebody listens."""
        self.turn = directory / "turn"
        """There once it is the probe's turn, where that is waited for: one for all roles."""
        self.pid = file("pid")
        """Written by whoever starts the worker of a rank, as is ``exit_status``."""
        self.exit_status = file("exit-status")
        self.python_stack = file("python-stack")
        self.native_stack = file("native-stack")
        self.log = file("log")
        """Standard output and standard error of the worker and of all that it started."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is to do: the function of that name in that check file, on these devices.

    ``place`` is the role's number among the probe's roles, from 0; ``root`` is the node's (see `model.Node`);
    ``ranks`` is the number of MPI ranks, 0 when no launcher started this worker. ``waits_for_turn``: it
    makes no context before the probe's turn (see `StartSignal`). ``starter``: it starts processes of its own.
    """

    check_file: str
    function: str
    place: int
    devices: tuple[Device, ...]
    params: Mapping[str, Json]
    deadline_s: float
    root: str
    ranks: int
    waits_for_turn: bool
    starter: bool = False

    def write(self, path: Path) -> None:
        data = asdict(self)
        data["devices"] = [device_to_json(device) for device in self.devices]
        path.write_text(json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> Assignment:
        data = json.loads(path.read_text())
        data["devices"] = tuple(device_from_json(device) for device in data["devices"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class RoleResult:
    """How the role function ended, by its own account."""

    ending: Ending
    fault: DriverFault | None = None
    exception: str = ""
    """The exception's class and text, then its traceback, for endings other than a driver error."""
    occurrence: int = 0
    """Which call of its name the fault was of; 0 if that is not known."""
    at: float = field(default_factory=time.monotonic)
    """`time.monotonic` seconds of the node that it ran on."""

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps({**asdict(self), "ending": self.ending.name}))

    @classmethod
    def read(cls, path: Path) -> RoleResult | None:
        """None when the worker did not get as far as writing one."""
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        fault = DriverFault(**data["fault"]) if data["fault"] else None
        return cls(**{**data, "ending": Ending[data["ending"]], "fault": fault})


def device_to_json(device: Device) -> Json:
    return {**asdict(device), "capabilities": sorted(device.capabilities), "peers": sorted(device.peers)}


def device_from_json(data: Json) -> Device:
    words = {name: frozenset(data[name]) for name in ("capabilities", "peers")}
    return Device(**{**data, **words})


# -- while it runs --------------------------------------------------------------------------------------


@dataclass
class StartSignal:
    """The turn of a probe that has its devices to itself.

    Until it comes, the probe's workers start and initialise the driver, which takes nothing of a device. The
    scheduler, which knows which devices are free, sets it; the probe's supervisor reads it in another thread.
    ``at_rest``: how the probe's devices are at rest, once its turn has come. ``given_up``: it will not come,
    and the probe is to end as it stands.
    """

    at_rest: Sequence[AtRest] | None = None
    given_up: bool = False


def announce(path: Path, at_rest: Sequence[AtRest]) -> None:
    """Have the roles learn that their turn has come."""
    write_whole(path, json.dumps(at_rest))


def announced(path: Path) -> list[AtRest] | None:
    """How the devices are at rest; None as long as the turn has not come."""
    try:
        return [AtRest(*each) for each in json.loads(path.read_text())]
    except FileNotFoundError:
        return None


Listener = Callable[[Json], None]


class Inbox:
    """What a role tells while it runs: JSON lines through a named pipe, each handed to ``listener``.

    A check needs none of this, for what a role found out is in its journal when it has ended. It is for a
    probe that goes on until somebody has seen enough.
    """

    def __init__(self, path: Path, listener: Listener) -> None:
        os.mkfifo(path, 0o600)
        # For writing, too: without a writer it would be at its end, and never wait.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener = listener
        self._unread = b""

    def wait(self, limit_s: float) -> bool:
        """Wait until something is told or the time is over, and hand on what there is; says whether."""
        if not select.select([self._pipe], [], [], limit_s)[0]:
            return False
        *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 20)).split(b"\n")
        for line in lines:
            self._listener(json.loads(line))
        return True

    def close(self) -> None:
        os.close(self._pipe)


# -- orders to stems ------------------------------------------------------------------------------------

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
