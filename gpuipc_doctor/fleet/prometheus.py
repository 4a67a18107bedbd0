"""A fleet in Prometheus' text format, beside what each node may say of itself (`report.prometheus`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuipc_doctor.fleet.fold import Fleet
from gpuipc_doctor.fleet.summary import State
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.prometheus import SEVERITIES, Metric, exposition, moment


def render(fleet: Fleet) -> str:
    """The exposition, ending in a newline."""
    simulated = fleet.folder.fold(fleet.simulated)
    return exposition(_metrics(fleet, simulated), simulated)


def _metrics(fleet: Fleet, simulated: str) -> Iterator[Metric]:
    states = Counter(one.state for one in fleet.reports)
    cells = Counter(item for one in fleet.answered for item in one.checks.items())
    yield "fleet_info", "What was asked; simulated names the nodes that are.", [({"simulated": simulated}, 1)]
    began = fleet.started
    yield "fleet_start_timestamp_seconds", "When the first report was begun.", moment(began)
    yield "fleet_exit_code", "Exit code over all nodes.", [({}, fleet.exit_code)]
    yield (
        "fleet_nodes",
        "Nodes by their worst status; one without a report is an ERROR.",
        [({"status": status.value}, len(fleet.nodes(status))) for status in Status],
    )
    yield (
        "fleet_answers",
        "Nodes by whether they have answered, and what stood in the way.",
        [({"state": state.value}, states[state]) for state in State],
    )
    yield (
        "fleet_check_nodes",
        "Nodes by the worst status of a check.",
        [({"check": check, "status": status}, number) for (check, status), number in sorted(cells.items())],
    )
    yield (
        "fleet_finding_nodes",
        "Nodes that a finding was made on.",
        [
            ({"check": one.check, "key": one.key, "status": one.status.value}, len(one.nodes))
            for one in fleet.problems
        ],
    )
    yield (
        "fleet_drift_values",
        "Values of a fact that is not the same everywhere.",
        [({"fact": drift.name}, len(drift.values)) for drift in fleet.drifts],
    )
    yield (
        "fleet_node_severity",
        f"Worst status of a node: {SEVERITIES}; one without a report is an ERROR.",
        [({"node": one.node}, one.status.severity) for one in fleet.reports],
    )
