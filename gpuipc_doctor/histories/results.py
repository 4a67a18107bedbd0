"""What became of a random history, as JSON: for records, reports and history files."""

from __future__ import annotations

from dataclasses import asdict
from zlib import crc32

from gpuipc_doctor.histories.explore import Explored
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.model import Json


def seed_of(node: str, now: float) -> int:
    """A seed that another node, or another run, does not have."""
    return crc32(f"{node} {now!r}".encode())


def to_json(explored: Explored) -> Json:
    return {
        **{name: value for name, value in asdict(explored).items() if name not in ("history", "shortest")},
        "history": explored.history and history_to_json(explored.history),
        "shortest": explored.shortest and history_to_json(explored.shortest),
    }


def history_to_json(history: History) -> Json:
    """As a history file has it. What is 0 is left out of operations."""
    return {
        "version": history.version,
        "backend": history.backend,
        "seed": history.seed,
        "times": history.times,
        "labels": list(history.labels),
        "peers": [list(pair) for pair in history.peers],
        "processes": {str(number): asdict(plan) for number, plan in history.processes.items()},
        "operations": [
            {name: value for name, value in asdict(operation).items() if value}
            for operation in history.operations
        ],
    }


def history_from_json(data: Json) -> History:
    """Of what `history_to_json` made."""
    return History(
        data["backend"],
        {int(number): ProcessPlan(**plan) for number, plan in data["processes"].items()},
        tuple(Operation(**operation) for operation in data["operations"]),
        version=data["version"],
        seed=data["seed"],
        peers=tuple((memory, device) for memory, device in data["peers"]),
        labels=tuple(data.get("labels", ())),
        times=data["times"],
    )
