"""NVIDIA's GPUs with their processes, utilisation and power, read once at the least cost.

A forked process reads them, because every NVML call can hang. It shares its parent's descriptors: a lock is
held until the driver lets that process end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.node.memory_usage import GpuUse, Sample
from gpuipc_doctor.report import json_documents

DEADLINE_S, END_S = 10.0, 0.5
"""Seconds for all calls, which take milliseconds on a healthy node, and for the end of the process."""


class NotRead(Exception):
    """No GPU can be read; the message is one line that says why."""


def read(deadline_s: float = DEADLINE_S) -> tuple[GpuUse, ...]:
    """The GPUs in NVML's order; those that cannot be read have ``trouble``. Raises `NotRead`."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.close(reader)
            signal.alarm(int(deadline_s) + 1)  # should the parent be killed first
            _write(writer)
        finally:
            os._exit(0)
    os.close(writer)
    until, data, more = time.monotonic() + deadline_s, b"", b"-"
    while more and select.select([reader], [], [], max(until - time.monotonic(), 0))[0]:
        more = os.read(reader, 1 << 16)
        data += more
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until + END_S:
        time.sleep(0.001)
    *calls, answer = data.split(b"\n")
    if not answer:
        how = f"did not return in {deadline_s:.0f} s" if more else "crashed"
        raise NotRead(f"{calls[-1].decode() if calls else 'NVML'} {how}")
    said = json.loads(answer)
    if "why" in said:
        raise NotRead(f"NVIDIA: {said['why']}")
    return json_documents.load(Sample, said).gpus


def _write(writer: int) -> None:
    """Write the name of each call before it is made, then the answer as JSON, each on a line."""
    from gpuipc_doctor.node import memory_sampling

    @contextmanager
    def arm(call: str) -> Iterator[None]:
        os.write(writer, f"{call}\n".encode())
        yield

    try:
        said = asdict(Sample(time.time(), tuple(memory_sampling.nvidia_loads(arm))))
    except (OSError, DriverError) as error:
        said = {"why": str(error)}
    data = json.dumps(said).encode()
    while data:
        data = data[os.write(writer, data) :]
