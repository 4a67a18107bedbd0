"""A comparison of two runs over a fleet as JSON; ``changes.schema.json`` beside this file describes it."""

from __future__ import annotations

import json

from gpuipc_doctor.fleet.changes import Changes, Move
from gpuipc_doctor.fleet.fold import Fleet
from gpuipc_doctor.model import Json
from gpuipc_doctor.report.report_json import encode

SCHEMA = "gpuipc-doctor/fleet-changes/1"
"""Any change of what may stand in the document raises the number."""


def dumps(changes: Changes) -> str:
    """A JSON document in ASCII, ending in a newline; sets of nodes are folded."""
    fold = changes.folder.fold
    document = {
        "schema": SCHEMA,
        "exit_code": changes.exit_code.value,
        "before": _side(changes.before),
        "after": _side(changes.after),
        "nodes": {name: fold(nodes) for name, nodes in changes.nodes.items()},
        "findings": [_move(move, fold(move.nodes)) for move in changes.moves],
        "lost": [
            {"state": one.state.value, "reason": one.reason, "nodes": fold(one.nodes)} for one in changes.lost
        ],
        "facts": [
            {
                "name": shift.name,
                "changes": [
                    {"before": before, "after": after, "nodes": fold(nodes), "count": len(nodes)}
                    for before, after, nodes in shift.rows
                ],
            }
            for shift in changes.shifts
        ],
        "drift": {
            side: [drift.name for drift in fleet.drifts]
            for side, fleet in (("before", changes.before), ("after", changes.after))
        },
        "figures": [encode(pace) for pace in changes.paces],
        "slow": [encode(one) for one in changes.slow],
    }
    return json.dumps(encode(document), indent=2, allow_nan=False) + "\n"


def _side(fleet: Fleet) -> dict[str, Json]:
    return {
        "nodes": len(fleet.reports),
        "reports": len(fleet.answered),
        "started": fleet.started,
        "simulated": fleet.folder.fold(fleet.simulated),
    }


def _move(move: Move, nodes: str) -> dict[str, Json]:
    return {
        "check": move.check,
        "key": move.told.key if move.told else "",
        "before": move.before.value if move.before else None,
        "after": move.after.value if move.after else None,
        "turn": move.turn.value,
        "nodes": nodes,
        "count": len(move.nodes),
        "says": move.told.says if move.told else "",
        "remedy": move.told.remedy if move.told else "",
    }
