"""Prometheus' text format 0.0.4, for the textfile collector of node_exporter.

Names and units follow https://prometheus.io/docs/practices/naming/. Samples have no timestamp, because the
collector refuses timestamps; the start of the run is a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import sanitise

_PREFIX = "gpuipc_doctor_"

Sample = tuple[Mapping[str, str], float]
"""(labels, value)."""

Metric = tuple[str, str, Iterable[Sample]]
"""(name without our prefix, help, samples); a metric without samples is omitted."""

SEVERITIES = ", ".join(f"{status.severity} {status.value}" for status in Status)


def exposition(metrics: Iterable[Metric], simulated: str, untried: str = "") -> str:
    """The metrics as gauges, ending in a newline; ``simulated`` names a simulated profile, ``untried``
    says which GPUs this tool was never run on.

    Of several samples with the same sanitised labels, only the last is written, since readers refuse
    duplicates.
    """
    lines = [f"# SIMULATED ({sanitise(simulated)})"] if simulated else []
    lines += [f"# {untried}"] if untried else []
    for name, about, samples in metrics:
        if known := {_labels(labels): value for labels, value in samples}:
            lines += [f"# HELP {_PREFIX}{name} {about}", f"# TYPE {_PREFIX}{name} gauge"]
            shown = {labels: f"{n:.15g}" if math.isfinite(n) else "NaN" for labels, n in known.items()}
            lines += [f"{_PREFIX}{name}{labels} {number}" for labels, number in shown.items()]
    return "\n".join(lines) + "\n"


def by(numbers: Mapping[Any, float], *labels: str) -> Iterator[Sample]:
    """A sample for each number; a key is the text of a label, or a tuple of texts."""
    for key, number in numbers.items():
        yield dict(zip(labels, (key,) if isinstance(key, str) else key, strict=True)), number


def moment(started: str) -> list[Sample]:
    """The time ``started`` as a sample, in seconds since 1970; empty if it is not a time."""
    try:
        return [({}, datetime.fromisoformat(started).timestamp())]
    except (ValueError, OverflowError):
        return []


def _labels(labels: Mapping[str, str]) -> str:
    within = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{{{within}}}" if labels else ""


def _escaped(text: str) -> str:
    return sanitise(text).replace("\\", r"\\").replace('"', r"\"")
