"""The report in Prometheus' text format 0.0.4, for the textfile collector of node_exporter.

Names and units follow https://prometheus.io/docs/practices/naming/. No sample has a time of its own, since
the collector refuses that; when the run began is a metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from gpuipc_doctor.model import Report, Result, Status
from gpuipc_doctor.report import digest, exits
from gpuipc_doctor.report.text import sanitise

_PREFIX = "gpuipc_doctor_"

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


def render(report: Report) -> str:
    """The exposition, ending in a newline."""
    lines = [f"# SIMULATED ({sanitise(report.simulated)})"] if report.simulated else []
    for name, told, samples in _metrics(report):
        known = list(samples)
        if known:
            lines += [f"# HELP {_PREFIX}{name} {told}", f"# TYPE {_PREFIX}{name} gauge"]
            lines += [_sample(name, labels, value) for labels, value in known]
    return "\n".join(lines) + "\n"


def _metrics(report: Report) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    severities = ", ".join(f"{status.severity} {status.value}" for status in Status)
    totals = digest.totals(report)
    models = Counter((device.backend, sanitise(device.name)) for device in report.devices)
    labels = {"version": report.tool_version, "tier": report.tier.label, "simulated": report.simulated}
    yield "run_info", "What ran; simulated is empty on a real node.", [(labels, 1)]
    yield "run_start_timestamp_seconds", "When the run began.", _moment(report.started)
    yield "run_duration_seconds", "How long the run took.", [({}, report.elapsed_s)]
    yield "run_exit_code", "Exit code of the run, by the default style.", [({}, exits.code(report))]
    yield "run_interrupted", "Whether the run was ended before it was done.", [({}, report.interrupted)]
    yield "probes", "Probes that ran; with 0, nothing was tested.", [({}, report.probes_run)]
    yield (
        "devices",
        "GPUs that were tested.",
        [({"backend": backend, "model": model}, number) for (backend, model), number in models.items()],
    )
    yield (
        "checks",
        "Checks by their worst status.",
        [({"status": status.value}, totals[status]) for status in Status],
    )
    yield "check_severity", f"Worst status of a check on a subject: {severities}.", _cells(report.results)
    yield (
        "known_issue",
        "Known issues that have to do with this node.",
        [({"issue": join.issue, "relation": join.relation.value}, 1) for join in report.joins],
    )


def _cells(results: Iterable[Result]) -> Iterator[Sample]:
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        cells.setdefault((result.check, result.subject), []).append(result)
    for (check, subject), found in cells.items():
        severity = max(result.finding.status.severity for result in found)
        yield {"check": check, "subject": subject}, severity


def _moment(started: str) -> list[Sample]:
    try:
        return [({}, datetime.fromisoformat(started).timestamp())]
    except (ValueError, OverflowError):
        return []


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    within = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    number = f"{value:.15g}" if math.isfinite(value) else "NaN"
    return f"{_PREFIX}{name}{{{within}}} {number}" if labels else f"{_PREFIX}{name} {number}"


def _escaped(text: str) -> str:
    return sanitise(text).replace("\\", r"\\").replace('"', r"\"")
