"""The result of a random history as JSON, for records, reports and history files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from gpuipc_doctor.histories.operations import History, Operation
from gpuipc_doctor.model import Json

if TYPE_CHECKING:  # it imports what ranks do not need
    from gpuipc_doctor.histories.explore import Explored


def to_json(explored: Explored) -> Json:
    return {
        **{name: value for name, value in asdict(explored).items() if name not in ("history", "shortest")},
        "history": explored.history and history_to_json(explored.history),
        "shortest": explored.shortest and history_to_json(explored.shortest),
    }


def history_to_json(history: History) -> Json:
    """A history in the format of history files. Fields with value 0 are left out."""
    return {
        "version": history.version,
        "check": history.check,
        "backend": history.backend,
        "seed": history.seed,
        "times": history.times,
        "labels": list(history.labels),
        "peers": [list(pair) for pair in history.peers],
        "processes": {str(number): asdict(plan) for number, plan in history.processes.items()},
        "operations": [
            {name: value for name in Operation.__slots__ if (value := getattr(operation, name))}
            for operation in history.operations
        ],
    }


def history_from_json(data: Json) -> History:
    """The inverse of `history_to_json`."""
    import msgspec

    return msgspec.convert(data, History, strict=False)  # JSON keys are text, also the numbers of processes
