"""A fleet as JSON for programs; ``fleet.schema.json`` beside this file describes it."""

from __future__ import annotations

import json

from msgspec import structs

from gpuipc_doctor.fleet.fold import Fleet
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.report_json import encode

SCHEMA = "gpuipc-doctor/fleet/2"
"""Any change of what may stand in the document raises the number."""


def dumps(fleet: Fleet) -> str:
    """A JSON document in ASCII, ending in a newline; sets of nodes are folded."""
    fold = fleet.folder.fold
    document = {
        "schema": SCHEMA,
        "exit_code": fleet.exit_code.value,
        "count": len(fleet.reports),
        "started": fleet.started,
        "nodes": {name: fold(nodes) for name, nodes in fleet.sets.items()},
        "totals": {status.value: len(fleet.nodes(status)) for status in Status},
        "simulated": fold(fleet.simulated),
        "groups": [
            {
                "nodes": fold(one.nodes),
                "count": len(one.nodes),
                "state": one.state.value,
                "status": one.status.value,
                "checks": dict(one.checks),
            }
            for one in fleet.groups
        ],
        "findings": [
            {
                "check": one.check,
                "key": one.key,
                "status": one.status.value,
                "nodes": fold(one.nodes),
                "count": len(one.nodes),
                "example": one.nodes[0],
                "where": one.example.where,
                "says": one.example.says,
                "remedy": one.example.remedy,
                "known_issues": [
                    {
                        **structs.asdict(cause.known),
                        "nodes": fold(cause.nodes),
                        "count": len(cause.nodes),
                    }
                    for cause in one.causes
                ],
            }
            for one in fleet.problems
        ],
        "silent": [
            {
                "state": one.state.value,
                "reason": one.reason,
                "nodes": fold(one.nodes),
                "count": len(one.nodes),
            }
            for one in fleet.silences
        ],
        "drift": [
            {
                "name": one.name,
                "values": [
                    {
                        "value": value,
                        "nodes": fold(nodes),
                        "count": len(nodes),
                        "known_bad": one.bad.get(value, ()),
                    }
                    for value, nodes in one.values.items()
                ],
            }
            for one in fleet.drifts
        ],
        "slow": [encode(one) for one in fleet.slow],
    }
    return json.dumps(encode(document), indent=2, allow_nan=False) + "\n"
