"""The node's state that can make libraries fail: read before the first probe and after a failure."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterable, Mapping

from gpuipc_doctor.files import python
from gpuipc_doctor.model import Json
from gpuipc_doctor.run.causes import node_sources
from gpuipc_doctor.run.causes.node_sources import SOURCES
from gpuipc_doctor.supervise import process_limits

PATIENCE_S = 1.0
"""Seconds for each source. One that takes longer, twice, hangs, which is a cause itself."""

START_UP_S = 10.0
"""Seconds until a process begins its first source, which a loaded node may delay."""

Seen = Mapping[str, Json]
"""Source → what it says; None for a source that hangs."""


def look() -> Seen:
    """Ask all sources, each within `PATIENCE_S`, in processes that can be ended."""
    seen: dict[str, Json] = {"limits": process_limits.started_with()}
    while names := [name for name in SOURCES if name not in seen]:
        said = _ask(names)
        for slow in [name for name in said if said[name] is None]:
            said |= _ask([slow])
        seen |= said
    return seen


def _ask(names: list[str]) -> dict[str, Json]:
    """What the first of these sources say, up to one that hangs; at least one source."""
    command = python.script(node_sources.__file__, *names)
    seen: dict[str, Json] = {}
    current = names[0]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        until = time.monotonic() + START_UP_S
        data = b""
        while select.select([process.stdout], [], [], max(until - time.monotonic(), 0.0))[0]:
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                break
            *lines, data = (data + chunk).split(b"\n")
            for line in map(json.loads, lines):
                until = time.monotonic() + PATIENCE_S
                current = line.pop("begins", current)
                seen |= line
        process.kill()
    return seen or {current: None}


def facts_of(seen: Seen, source: str) -> Mapping[str, Json]:
    said = seen.get(source)
    return said if isinstance(said, dict) and "unreadable" not in said else {}


def list_of(seen: Seen, source: str) -> Iterable[list[str]]:
    said = seen.get(source)
    return said if isinstance(said, list) else []
