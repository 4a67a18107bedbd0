"""What became of a random history, from the process that performed it to findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gpuipc_doctor.histories.explore import Explored
from gpuipc_doctor.histories.leaks import WORDS
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.histories.steps import steps
from gpuipc_doctor.model import Evidence, Finding, Json

DECLARED = frozenset({"free-open"})
"""Operations by which the application, too, breaks a rule."""


def random_seed() -> int:
    """A seed that another node, or another run, does not have."""
    return int.from_bytes(os.urandom(4), "little")


def to_json(explored: Explored) -> Json:
    return {
        **{name: value for name, value in asdict(explored).items() if name not in ("history", "shortest")},
        "history": explored.history and history_to_json(explored.history),
        "shortest": explored.shortest and history_to_json(explored.shortest),
    }


def history_to_json(history: History) -> Json:
    """As a history file has it. What is 0 is left out of operations."""
    return {
        "version": history.version,
        "backend": history.backend,
        "seed": history.seed,
        "times": history.times,
        "peers": [list(pair) for pair in history.peers],
        "processes": {str(number): asdict(plan) for number, plan in history.processes.items()},
        "operations": [
            {name: value for name, value in asdict(operation).items() if value}
            for operation in history.operations
        ],
    }


def history_from_json(data: Json) -> History:
    """Of what `history_to_json` made."""
    return History(
        data["backend"],
        {int(number): ProcessPlan(**plan) for number, plan in data["processes"].items()},
        tuple(Operation(**operation) for operation in data["operations"]),
        data["version"],
        data["seed"],
        tuple((memory, device) for memory, device in data["peers"]),
        data["times"],
    )


def judge(explored: Json, left_out: Sequence[str]) -> Iterator[Finding]:
    """Findings about what `to_json` made of an exploration. ``left_out``: operations that may harm here."""
    figures = {name: explored[name] for name in ("operations", "wanted", "compared", "seed", "elapsed_s")}
    first, again = explored["first"], explored["again"]
    if first is None:
        short = explored["operations"] < explored["wanted"] < 10**9
        says = (
            "{operations} of {wanted} operations in {elapsed_s:.1f} s, {compared:mib} compared"
            if short
            else "{operations} operations, {compared:mib} compared"
        )
        done = ", ".join(f"{times} × {do}" for do, times in sorted(explored["done"].items()))
        evidence = [Evidence.measured(done)]
        if left_out:
            evidence.append(
                Evidence.seen("left out, since it may harm this node: {left_out}", left_out=left_out)
            )
        yield Finding.ok("as-modelled", says, *evidence, **figures)
        return
    if again is None:
        yield Finding.warn(
            "seen-once",
            "{says}; replayed in fresh processes, it did not",
            remedy="run it again: gpuipc-doctor replay FILE, with the history from the JSON report",
            says=first["says"],
            history=explored["history"],
            **figures,
        )
        return
    history = history_from_json(explored["shortest"])
    broken = {operation.do for operation in history.operations} & DECLARED
    numbered = steps(history)
    if history.times > 1:
        numbered = [*numbered, f"repeated {history.times} times, each time with other objects"]
    evidence = [
        *(Evidence.seen(step) for step in numbered),
        Evidence.seen(again["says"]),
    ]
    if broken:
        evidence.append(
            Evidence.seen("the history frees memory that is open elsewhere, which no vendor promises")
        )
    yield Finding.fail(
        again["what"],
        _SAYS[again["what"]],
        *evidence,
        remedy="replay it: gpuipc-doctor replay FILE, with the history from the JSON report",
        step=again["do"],
        steps=len(history.operations),
        name=WORDS.get(again["name"], again["name"]),
        call=again["call"],
        history=explored["shortest"],
        **figures,
    )


_SAYS = {
    "error": "{call} returned {name} at the last of {steps} legal operations",
    "data": "memory shows wrong data after {steps} legal operations",
    "crash": "{call} ended its process ({name}) at the last of {steps} legal operations",
    "hang": "{call} hung at the last of {steps} legal operations",
    "leak": "{name} grow with each repetition of {steps} legal operations",
}
