"""Replay recorded histories on the driver that is here, and print what it answers otherwise.

python -m tests.conformance.histories.replay RECORDED.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuipc_doctor.histories.crew import Crew, Failed
from gpuipc_doctor.histories.model import NOTHING, Model
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.model import Json
from gpuipc_doctor.worker import children, stem
from tests.conformance.histories.record import LIMIT_S, assignment, first_device


def differences(recorded: Json) -> list[Json]:
    """``[place, operation, answer, recorded answer]`` of each operation of one history answered otherwise."""
    plans = {
        number: ProcessPlan(device, bool(primary))
        for number, (device, primary) in enumerate(recorded["processes"], 1)
    }
    model = Model(History("cuda", plans))
    crew = Crew(lambda act: children.start(act, assignment(first_device("cuda"))), plans, LIMIT_S)
    found = list[Json]()
    for place, row in enumerate(recorded["operations"]):
        fields, wanted = row if isinstance(row[0], list) else (row, "")
        operation = Operation(*fields)
        try:
            if wanted:
                crew.flush()
                crew.add(place, operation, NOTHING)
                crew.flush()
            else:
                crew.add(place, operation, model.apply(operation))
        except Failed as failed:
            answer = failed.disagreement.name or failed.disagreement.says
            at = failed.disagreement.at
        else:
            answer, at = "", place
        if answer != wanted:
            found.append([at, operation.do, answer, wanted])
            break
    crew.kill()
    return found


def main(file: str) -> None:
    stem.load(["cuda"])
    histories = json.loads(Path(file).read_text())["histories"]
    found = {one["seed"]: differences(one) for one in histories}
    refusals = sum(isinstance(row[0], list) for one in histories for row in one["operations"])
    differing = [[seed, *what] for seed, all_ in found.items() for what in all_]
    json.dump({"histories": len(histories), "refusals": refusals, "differences": differing}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
