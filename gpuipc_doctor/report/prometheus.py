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


Metric = tuple[str, str, Iterable[Sample]]
"""Name without our prefix, what it means, samples; of none it is left out."""

SEVERITIES = ", ".join(f"{status.severity} {status.value}" for status in Status)


def render(report: Report) -> str:
    """The exposition of a node, ending in a newline."""
    return exposition(_metrics(report), report.simulated)


def exposition(metrics: Iterable[Metric], simulated: str) -> str:
    """Gauges in the format, ending in a newline; ``simulated`` says what of them is no real node's.

    Of samples with the same labels, once sanitised, the last counts: readers refuse a file with both.
    """
    lines = [f"# SIMULATED ({sanitise(simulated)})"] if simulated else []
    for name, told, samples in metrics:
        if known := {_labels(labels): value for labels, value in samples}:
            lines += [f"# HELP {_PREFIX}{name} {told}", f"# TYPE {_PREFIX}{name} gauge"]
            lines += [f"{_PREFIX}{name}{labels} {_number(value)}" for labels, value in known.items()]
    return "\n".join(lines) + "\n"


def _metrics(report: Report) -> Iterator[Metric]:
    totals = digest.totals(report)
    models = Counter((device.backend, sanitise(device.name)) for device in report.devices)
    labels = {"version": report.tool_version, "tier": report.tier.label, "simulated": report.simulated}
    yield "run_info", "What ran; simulated is empty on a real node.", [(labels, 1)]
    yield "run_start_timestamp_seconds", "When the run began.", moment(report.started)
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
    yield "check_severity", f"Worst status of a check on a subject: {SEVERITIES}.", _cells(report.results)
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


def moment(started: str) -> list[Sample]:
    """A time as the report has it, in seconds since 1970; none where it is no time."""
    try:
        return [({}, datetime.fromisoformat(started).timestamp())]
    except (ValueError, OverflowError):
        return []


def _labels(labels: Mapping[str, str]) -> str:
    within = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{{{within}}}" if labels else ""


def _number(value: float) -> str:
    return f"{value:.15g}" if math.isfinite(value) else "NaN"


def _escaped(text: str) -> str:
    return sanitise(text).replace("\\", r"\\").replace('"', r"\"")
