"""Replay recorded histories on the installed driver, and print the answers that differ.

    python -m tests.conformance.histories.replay RECORDED.json [cuda|hip] [EVERY]

With EVERY, only one history of so many.

Operations that are illegal for another vendor's driver, or missing there, are not compared. Operations
refused in the recording are also tried there if they are illegal, and the answers are printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuipc_doctor.histories.case_processes import Failed, Processes
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import unavailable
from gpuipc_doctor.histories.memory_state import NOTHING
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.model import Json
from gpuipc_doctor.worker import children, fork_server
from tests.conformance.histories.record import LIMIT_S, assignment, first_device


def answers(recorded: Json, backend: str, *, elsewhere: bool) -> tuple[int, list[Json], list[Json]]:
    """Operations performed, refusals, and ``[place, operation, answer, recorded answer]`` of differences.

    ``elsewhere``: recorded on another vendor's driver. A refusal is ``[place, operation, answer]``.
    """
    plans = {
        number: ProcessPlan(device, bool(primary))
        for number, (device, primary) in enumerate(recorded["processes"], 1)
    }
    model = Model(History(backend, plans))
    device = first_device(backend)
    without = unavailable(device.capabilities)
    processes = Processes(lambda act: children.start(act, assignment(device)), plans, LIMIT_S)
    performed, refusals, differences = 0, list[Json](), list[Json]()
    for place, row in enumerate(recorded["operations"]):
        fields, wanted = row if isinstance(row[0], list) else (row, "")
        operation = Operation(*fields)
        illegal = bool(model.illegal(operation))
        if elsewhere and (
            operation.do in without or bool(wanted) != illegal or (illegal and not _asks(model, operation))
        ):
            continue
        at, answer = place, ""
        try:
            if wanted:
                processes.flush()
                processes.add(place, operation, NOTHING)
                processes.flush()
            else:
                processes.add(place, operation, model.apply(operation))
                performed += 1
        except Failed as failed:
            answer = failed.disagreement.name or failed.disagreement.says
            at = failed.disagreement.at
        if wanted and at == place:
            refusals.append([place, operation.do, answer])
        if answer != wanted and not (elsewhere and wanted and at == place):
            differences.append([at, operation.do, answer, wanted])
            break
    processes.kill()
    return performed, refusals, differences


def _asks(model: Model, operation: Operation) -> bool:
    """Whether the object and the process of an illegal operation exist."""
    thing = model.things.get(operation.on)
    return operation.by in model.processes and thing is not None and not thing.storage.freed


def main(file: str, backend: str = "cuda", every: str = "1") -> None:
    fork_server.load([backend])
    recording = json.loads(Path(file).read_text())
    elsewhere = recording.get("backend", "cuda") != backend
    all_ = {
        history["seed"]: answers(history, backend, elsewhere=elsewhere)
        for history in recording["histories"][:: int(every)]
    }
    json.dump(
        {
            "histories": len(all_),
            "operations": sum(performed for performed, *_ in all_.values()),
            "refusals": [[seed, *refusal] for seed, (_, refusals, _) in all_.items() for refusal in refusals],
            "differences": [[seed, *what] for seed, (*_, found) in all_.items() for what in found],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
