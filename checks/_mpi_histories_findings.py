"""The findings of `mpi-histories`: about a run that agrees with the model, and a search's last launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.api import Evidence, Finding, Json, ProbeOutcome
from gpuipc_doctor.api.process_leaks import judge_processes
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.extent import REPLAY, is_complete
from gpuipc_doctor.histories.message_operations import TYPES
from gpuipc_doctor.histories.message_search import Met, Search
from gpuipc_doctor.histories.message_steps import short_name, steps
from gpuipc_doctor.histories.operations import History

SAYS = {
    "error": "{call} returned {name} at step {steps} of a sequence of valid MPI calls",
    "data": "{call}: {wrong} at step {steps} of a sequence of valid MPI calls",
    "crash": "{call} crashed a rank{name:aside} at step {steps} of a sequence of valid MPI calls",
    "hang": "{call} hung at step {steps} of a sequence of valid MPI calls",
}
LEFT_OUT = "operations omitted because this library does not support them: {lacks}"


def figures(ended: ProbeOutcome) -> dict[str, Json]:
    ranks = ended.records.values()
    return {
        "operations": ended.records["rank 0"].get("operations", 0),
        "wanted": ended.params["operations"],
        "messages": sum(rank.get("messages", 0) for rank in ranks),
        "compared": sum(rank.get("compared", 0) for rank in ranks),
        "elapsed_s": ended.records["rank 0"].get("elapsed_s", 0.0),
        "seed": ended.records["rank 0"].get("seed"),
        "ranks": len(ended.roles),
    }


def judge_run(lacks: Sequence[str], figures: dict[str, Json], done: Mapping[str, int]) -> Finding:
    without = "; without {lacks}" if lacks else ""
    not_drawn = sorted(TYPES.keys() - done.keys())
    absent = Evidence.seen("operations that did not occur: {not_drawn}", not_drawn=not_drawn)
    return Finding.ok(
        "as-modelled",
        "{operations} random operations of {ranks} ranks: all {messages} messages correct" + without
        if is_complete(figures)
        else "{operations} of {wanted} random operations in {elapsed_s:round} s: all {messages} messages "
        "correct" + without,
        ", ".join(f"{times} × {do}" for do, times in sorted(done.items())),
        *([absent] if not_drawn else []),
        *([Evidence.seen(LEFT_OUT, lacks=" and ".join(lacks))] if lacks else []),
        lacks=" and ".join(lacks),
        **figures,
    )


def judge_search(known: Search, ended: ProbeOutcome) -> Iterator[Finding]:
    """The result of a search after its last launch."""
    found = known.met(ended)
    like = found and (known.first is None or found.disagreement.what == known.first.what)
    labels = [device.label for device in ended.devices]
    if found and like and known.shortest:
        yield failed(known.shortest, found, known, labels)
    elif known.first is None:
        lost = list(judge_processes(ended)) if ended.completed else []
        for finding in lost:
            assert known.shortest is not None
            history = {**results.history_to_json(known.shortest), "labels": labels}
            yield replace(
                finding,
                evidence=(*map(Evidence.seen, steps(known.shortest)), *finding.evidence),
                values={**finding.values, **_without_done(known.explored), "history": history},
            )
        if known.explored and not lost:
            yield judge_run(ended.params["lacks"], _without_done(known.explored), known.explored["done"])
        elif ended.completed and not lost:
            says = "every operation had the expected result"
            yield Finding.ok("as-modelled", says, operations=len(known.shortest.operations))  # type: ignore[union-attr]
    elif known.base is not None:  # it failed in fresh ranks, but no shorter history did
        yield failed(known.base, Met(0, known.first), known, labels)
    else:
        yield Finding.warn(
            "seen-once",
            "{says}; not reproduced in fresh ranks" if not ended.stopped else "{says}; not replayed",
            *map(_printed, known.first.printed),
            remedy=REPLAY,
            says=known.first.says,
            history=results.history_to_json(known.candidates[-1]),
            **known.explored,
        )


def _printed(line: str) -> Evidence:
    """A line from a rank of an earlier launch, which the last launch's ranks did not print."""
    return Evidence.seen("printed: {line}", line=line)


def _without_done(explored: Json) -> dict[str, Json]:
    return {name: value for name, value in explored.items() if name != "done"}


def failed(history: History, found: Met, known: Search, labels: list[str]) -> Finding:
    met = found.disagreement
    return Finding.fail(
        met.what,
        SAYS[met.what],
        *(Evidence.seen(step) for step in steps(history)),
        Evidence.seen("{said}", said=met.says),
        *([] if found.role else map(_printed, met.printed)),
        remedy=REPLAY,
        step=met.do,
        steps=min(met.at + 1, len(history.operations)) if history.times == 1 else len(history.operations),
        did=list(map(short_name, history.operations)),
        name=met.name,
        call=met.call,
        wrong=met.says,
        **({"role": found.role} if found.role else {}),
        history={**results.history_to_json(history), "labels": labels},
        **known.explored,
    )
