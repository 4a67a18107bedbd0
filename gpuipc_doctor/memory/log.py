"""Samples as JSON, a line each; ``sample.schema.json`` says what stands in it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from gpuipc_doctor.memory.usage import Sample
from gpuipc_doctor.memory.view import Growth
from gpuipc_doctor.model import Json

SCHEMA = Path(__file__).with_name("sample.schema.json")
FORMAT = 1


def line(sample: Sample, growth: Growth, *, host: str, simulated: str) -> str:
    """One line of the log, without its end."""
    document = {
        "format": FORMAT,
        "at": datetime.fromtimestamp(sample.at).astimezone().isoformat(timespec="milliseconds"),
        "host": host,
        "simulated": simulated,
        "gpus": [_gpu(gpu, growth) for gpu in sample.to_json()["gpus"]],
    }
    return json.dumps(document, separators=(",", ":"))


def _gpu(gpu: Json, growth: Growth) -> Json:
    def told(what: Json, pid: int) -> Json:
        used = what.pop("used")
        return {**what, "used_bytes": used, "growth_bytes_per_minute": growth((gpu["label"], pid))}

    processes = gpu.pop("processes")
    in_use = told(gpu, 0)
    total = in_use.pop("total")
    if in_use["trouble"]:
        total = in_use["used_bytes"] = None
    each = None if processes is None else [told(process, process["pid"]) for process in processes]
    return {**in_use, "total_bytes": total, "processes": each}
