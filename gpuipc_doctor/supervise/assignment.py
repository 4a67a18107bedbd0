"""Messages between supervisor and workers: files in the probe's directory, and orders to `fork_servers`.

Files are used instead of pipes: a runaway writer cannot block, and no message is lost when its writer dies.
The `Assignment` exists before the worker starts; the `RoleResult` appears completely or not at all.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from gpuipc_doctor.model import Device, DriverFault, Json
from gpuipc_doctor.probe_types import Baseline, Ending
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
        """The named pipe for reports of the running role, if the probe has a listener."""
        self.turn = directory / "turn"
        """File that signals all roles to start, for probes that wait for it."""
        self.pid = file("pid")
        """Pid of a rank's worker, written by the process that starts the worker."""
        self.exit_status = file("exit-status")
        self.python_stack = file("python-stack")
        self.native_stack = file("native-stack")
        self.log = file("log")
        """Standard output and error of the worker and of all processes that it started."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's task: run a function of a check file, on these devices.

    ``place`` is the role's index among the probe's roles; ``root`` is as in `model.Node`; ``ranks`` is
    the number of MPI ranks, 0 without a launcher. ``waits_for_turn``: no context is created before the
    start signal (see `StartSignal`). ``starter``: the role itself starts processes. ``then``: directory
    of the process's next visit, and its role there; empty after its last, and for a single probe.
    ``keeps``: labels of the devices whose primary context is kept for later visits; all other contexts
    end with the visit. ``rendezvous``: number of roles that connect at the start, 0 if they are already
    connected. ``ends``: the role's process ends in this probe, and initialises the driver when it needs
    it. ``nodes``: the number of nodes on which the roles run. ``among``: the ranks of the launch that
    make this visit of a tour, in the order of its roles; empty if all do. ``by_process``: used memory is
    what the probe's own processes hold, since others run on the devices.
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
    then: Sequence[str] = ()
    keeps: tuple[str, ...] = ()
    rendezvous: int = 0
    ends: bool = False
    nodes: int = 1
    among: Sequence[int] = ()
    by_process: bool = False

    def write(self, path: Path) -> None:
        data = {
            each.name: getattr(self, each.name) for each in fields(self)
        }  # `asdict` copies the parameters
        data["devices"] = [device_to_json(device) for device in self.devices]
        path.write_text(json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> Assignment:
        data = json.loads(path.read_text())
        data["devices"] = tuple(device_from_json(device) for device in data["devices"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class RoleResult:
    """How the role function ended, as reported by the worker."""

    ending: Ending
    fault: DriverFault | None = None
    exception: str = ""
    """Class and text of the exception, then its traceback; empty for driver errors."""
    occurrence: int = 0
    """Number of the failed call among the calls of its name; 0 if unknown."""
    at: float = field(default_factory=time.monotonic)
    """Time of this result, in `time.monotonic` seconds of the role's node."""

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps({**asdict(self), "ending": self.ending.name}))

    @classmethod
    def read(cls, path: Path) -> RoleResult | None:
        """The result; None if the worker wrote none."""
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
    """The start signal of a probe with exclusive devices.

    Before the signal, the probe's workers start and initialise the driver, which uses no device memory. The
    scheduler sets the signal when the devices are free; the probe's supervisor reads it in another thread.
    ``baselines``: the devices' idle level; None before the signal. ``given_up``: whether the probe must end
    without a signal. ``share`` is called when all roles share their devices.
    """

    baselines: Sequence[Baseline] | None = None
    given_up: bool = False
    share: Callable[[], None] | None = None


def announce(path: Path, baselines: Sequence[Baseline]) -> None:
    """Signal the roles to start."""
    write_whole(path, json.dumps(baselines))


def announced(path: Path) -> list[Baseline] | None:
    """The idle state of the devices, once the start signal's file exists; else None."""
    try:
        return [Baseline(*each) for each in json.loads(path.read_text())]
    except FileNotFoundError:
        return None


Listener = Callable[[Json], None]


class Inbox:
    """Reports of a running role: JSON lines through a named pipe, each passed to ``listener``.

    Only probes that run until stopped need it. For all others, the journal is read when the role has ended.
    """

    def __init__(self, path: Path, listener: Listener) -> None:
        os.mkfifo(path, 0o600)
        # Opened for writing too: without a writer, reads would return at once instead of waiting.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener = listener
        self._unread = b""

    def wait(self, limit_s: float) -> bool:
        """Wait for reports until the time is over, and pass them on; returns whether there were any."""
        if not select.select([self._pipe], [], [], limit_s)[0]:
            return False
        *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 20)).split(b"\n")
        for line in lines:
            self._listener(json.loads(line))
        return True

    def close(self) -> None:
        os.close(self._pipe)


# -- orders to fork servers -----------------------------------------------------------------------------

GO = b"go"
"""The start signal for a worker that has reported its pid."""

MOST_BYTES = 1 << 16
"""Maximum bytes of one message."""

_MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class _Order:
    files: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Descriptors sent with the order; the forked process then owns them."""

    def send(self, to: socket.socket) -> None:
        text = json.dumps({**asdict(self), "files": list(self.files)})
        socket.send_fds(to, [text.encode()], list(self.files.values()))

    def close(self) -> None:
        for fd in self.files.values():
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Order(_Order):
    """A worker's start parameters: its role, its marker, and its additions to the fork server's environment.

    ``files``: the worker's log, a socket to the supervisor, and a socket to each peer (``peer 1`` and so on).
    """

    directory: str
    role: str
    marker: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ForkServerOrder(_Order):
    """A fork server's imports. ``files``: its log, and the socket for its orders."""

    imports: Sequence[str]


def receive_order(stream: socket.socket) -> Order | ForkServerOrder | None:
    """The next order; None at end of input."""
    data, fds, _, _ = socket.recv_fds(stream, MOST_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    told = json.loads(data)
    told["files"] = dict(zip(told["files"], fds, strict=True))
    return ForkServerOrder(**told) if "imports" in told else Order(**told)
