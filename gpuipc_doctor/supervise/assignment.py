"""What a supervisor and a worker tell each other, as files in the probe's private directory.

There is no result pipe that a runaway writer could fill and no message that is lost when its writer dies:
the `Assignment` is there before the worker starts, the `RoleResult` appears whole or not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuipc_doctor.model import Device, DriverFault, Ending, Json


@dataclass(frozen=True, slots=True)
class RoleFiles:
    """The files of one role, ``<role>.…`` in the probe's directory."""

    directory: Path
    role: str

    def _file(self, kind: str) -> Path:
        return self.directory / f"{self.role}.{kind}"

    @property
    def assignment(self) -> Path:
        return self._file("assignment.json")

    @property
    def result(self) -> Path:
        return self._file("result.json")

    @property
    def journal(self) -> Path:
        return self._file("journal")

    @property
    def inbox(self) -> Path:
        """The pipe through which the role tells things while it runs, if somebody listens."""
        return self._file("inbox")

    @property
    def turn(self) -> Path:
        """There once it is the probe's turn, where that is waited for: one for all roles."""
        return self.directory / "turn"

    @property
    def pid(self) -> Path:
        """Written by whoever starts the worker of a rank, as is ``exit_status``."""
        return self._file("pid")

    @property
    def exit_status(self) -> Path:
        return self._file("exit-status")

    @property
    def python_stack(self) -> Path:
        return self._file("python-stack")

    @property
    def native_stack(self) -> Path:
        return self._file("native-stack")

    @property
    def log(self) -> Path:
        """Standard output and standard error of the worker and of all that it started."""
        return self._file("log")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is to do: the function of that name in that check file, on these devices.

    ``place`` is the role's number among the probe's roles, from 0; ``root`` is the node's (see `model.Node`);
    ``ranks`` is the number of MPI ranks, 0 when no launcher started this worker. ``waits_for_turn``: it
    makes no context before the probe's turn (see `turn`). ``starter``: it starts processes of its own.
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
        fault = asdict(self.fault) if self.fault else None
        draft = path.with_suffix(".draft")
        data = {
            "ending": self.ending.name,
            "fault": fault,
            "exception": self.exception,
            "occurrence": self.occurrence,
            "at": self.at,
        }
        draft.write_text(json.dumps(data))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> RoleResult | None:
        """None when the worker did not get as far as writing one."""
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        fault = DriverFault(**data["fault"]) if data["fault"] else None
        return cls(Ending[data["ending"]], fault, data["exception"], data["occurrence"], data["at"])


def device_to_json(device: Device) -> Json:
    return {**asdict(device), "capabilities": sorted(device.capabilities), "peers": sorted(device.peers)}


def device_from_json(data: Json) -> Device:
    words = {name: frozenset(data[name]) for name in ("capabilities", "peers")}
    return Device(**{**data, **words})
