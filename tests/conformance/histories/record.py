"""Record a driver's answers to 50 random histories, which include some undefined but answered operations.

    python -m tests.conformance.histories.record cuda OUT.json [SEED…]

It uses the installed driver: a real one or, under `simulated`, a simulated one. A recording of a real H100 or
H200 is beside this file; `test_histories.py` compares the simulated driver with it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from gpuipc_doctor.histories.case_processes import Failed, Processes
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.memory_draft import Limits
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import unavailable
from gpuipc_doctor.histories.memory_state import NOTHING, Thing
from gpuipc_doctor.histories.operations import Operation
from gpuipc_doctor.model import Device, Json
from gpuipc_doctor.supervise.assignment import Assignment
from gpuipc_doctor.worker import children, fork_server
from gpuipc_doctor.worker.backends import open_backend

SEEDS = range(1, 51)
PHASES = 2
PROVOKED = 0.05
"""Fraction of operations that are followed by one that the driver must refuse."""

LIMIT_S = 20.0


def provocations(model: Model) -> Iterator[Operation]:
    """Operations that are illegal now, and that every driver of the vendor refuses with the same code."""
    buffers = [thing for thing in model.of_kind("buffer") if not thing.storage.freed]
    for buffer in buffers:
        yield Operation("open", buffer.by, on=buffer.number, makes=_NEVER)  # the process's own handle
        for process in model.processes.values():
            if process.number != buffer.by and _open_elsewhere(
                model, process.number, process.current, buffer
            ):
                yield Operation("open", process.number, on=buffer.number, makes=_NEVER)


_NEVER = 1 << 30
"""Number of an object that is never created."""


def _open_elsewhere(model: Model, by: int, current: int, buffer: Thing) -> bool:
    """Whether memory of this exporter is open in another context of the process."""
    return any(
        mapping.by == by and mapping.context != current and mapping.storage.owner == buffer.by
        for mapping in model.of_kind("mapping")
    )


def record(device: Device, seed: int) -> list[Json]:
    """The answers to one history: ``[legal operations, refused operation, answer]``, in order.

    The first number counts the legal operations that succeeded before the refused one. If a legal operation
    fails, the answer states the error, and the recording ends.
    """
    without = unavailable(device.capabilities) | {"kill"}
    generator = Generator(device.backend, 1, seed, Limits(room=32 << 20), without)
    processes = Processes(lambda act: children.start(act, assignment(device)), generator.plans, LIMIT_S)
    random, answers, done = Random(seed), list[Json](), 0
    try:
        for _ in range(PHASES):
            for operation, expected in generator.phase():
                processes.add(done, operation, expected)
                done += 1
                if random.random() < PROVOKED and (possible := list(provocations(generator.model))):
                    provoked = random.choice(possible)
                    processes.flush()
                    answers.append([done, provoked.do, _answer(processes, provoked)])
        processes.flush()
    except Failed as failed:
        processes.kill()
        return [*answers, [failed.disagreement.at, failed.disagreement.do, failed.disagreement.says]]
    processes.end()
    return [*answers, [done, "", ""]]


def _answer(processes: Processes, operation: Operation) -> str:
    try:
        processes.add(0, operation, NOTHING)
        processes.flush()
    except Failed as failed:
        return failed.disagreement.name or failed.disagreement.says
    return "success"


def main(backend: str, out: str, *seeds: str) -> None:
    fork_server.load([backend])
    device = first_device(backend)
    began = time.monotonic()
    answers = {str(seed): record(device, seed) for seed in map(int, seeds or map(str, SEEDS))}
    recording = {"device": device.name, "backend": backend, "answers": answers}
    Path(out).write_text(json.dumps(recording, indent=1) + "\n")
    operations = sum(answer[-1][0] for answer in answers.values())
    sys.stdout.write(f"{len(answers)} histories, {operations} operations, {time.monotonic() - began:.1f} s\n")


def assignment(*devices: Device) -> Assignment:
    """The assignment of a started process."""
    return Assignment("", "", 0, devices, {}, LIMIT_S, "/", 0, waits_for_turn=False, starter=True)


@cache
def first_device(backend: str) -> Device:
    """The first device, queried in a separate process, because this one must not load a driver."""

    def describe(child: children.Child) -> None:
        child.send(open_backend(backend, child.armed).devices()[0])

    child = children.start(describe, assignment())
    found: Device = child.recv(60.0)
    child.kill()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
