"""Prometheus' text format 0.0.4, for the textfile collector of node_exporter.

Names and units follow https://prometheus.io/docs/practices/naming/. No sample has a time of its own, because
the collector refuses that; the start of the run is a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import sanitise

_PREFIX = "gpuipc_doctor_"

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""

Metric = tuple[str, str, Iterable[Sample]]
"""Name without our prefix, help, samples; a metric without samples is left out."""

SEVERITIES = ", ".join(f"{status.severity} {status.value}" for status in Status)


def exposition(metrics: Iterable[Metric], simulated: str) -> str:
    """Gauges in the format, ending in a newline; ``simulated`` names what is no real node.

    Of samples with the same labels, once sanitised, the last counts: readers refuse a file with both.
    """
    lines = [f"# SIMULATED ({sanitise(simulated)})"] if simulated else []
    for name, about, samples in metrics:
        if known := {_labels(labels): value for labels, value in samples}:
            lines += [f"# HELP {_PREFIX}{name} {about}", f"# TYPE {_PREFIX}{name} gauge"]
            lines += [f"{_PREFIX}{name}{labels} {_number(value)}" for labels, value in known.items()]
    return "\n".join(lines) + "\n"


def moment(started: str) -> list[Sample]:
    """A report's time in seconds since 1970; none where it is no time."""
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
