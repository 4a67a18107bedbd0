"""Random valid messages between ranks, compared with a model of each receive's data and status.

Two to four ranks send and receive in several communicators, blocking and non-blocking, with outstanding and
persistent requests, matched probes, any source, any tag and derived types; between their messages they call
collectives and one-sided operations. Host and device buffers are freed and reallocated. Each message is
compared with the sent data, and its status with the model's. If the library disagrees, fresh ranks repeat the
history, and the shortest failing one is reported as numbered steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Evidence,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Tier,
    Worker,
    watched,
)
from gpuipc_doctor.api.process_ledger import figures_of_process, judge_processes
from gpuipc_doctor.histories import message_search as searching
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.extent import OPTIONS, REPLAY, extent, is_complete, own_seed
from gpuipc_doctor.histories.leaks import CERTAIN
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_memories import kinds_of
from gpuipc_doctor.histories.message_performer import Rank
from gpuipc_doctor.histories.message_search import Met, RandomRun, Search, met, steps_of
from gpuipc_doctor.histories.message_steps import SENTENCES, short_name, steps
from gpuipc_doctor.histories.mpi_library_limits import calls_in_histories, unsupported_memory
from gpuipc_doctor.histories.operations import History

OPERATIONS = 3400
"""Operations in the acceptance tier, of which some 130 are calls of all ranks. With two thirds of them, a
descriptor left with each message from the fortieth on is missed, which no other check finds; with 1,300 also
other leaks, and 64 B that are overwritten."""

RANKS, SOAK_RANKS = 3, (2, 3, 4)

HANG_S = 2.5
"""Maximum seconds for a call in the replay of a history that hung."""

SAYS = {
    "error": "{call} returned {name} at step {steps} of a sequence of valid MPI calls",
    "data": "{call}: {wrong} at step {steps} of a sequence of valid MPI calls",
    "crash": "{call} crashed a rank{name:aside} at step {steps} of a sequence of valid MPI calls",
    "hang": "{call} hung at step {steps} of a sequence of valid MPI calls",
}
USAGE = ("descriptors", "threads", "addresses")
"""Figures of `api.process_ledger` that a rank notes after each epoch; if one rises, an epoch is repeated. The
buffers of healthy ranks change host memory by some MiB, so only repetitions show leaks of it."""

REPETITION = "repetition of a valid history of messages"
LEFT_OUT = "operations omitted because this library does not support them: {lacks}"


class MpiHistories(Check):
    id = "mpi-histories"
    title = "random valid messages between ranks"
    requires = frozenset({"multi-process"})
    needs_mpi = True
    searches = True
    explains_losses = frozenset({"descriptors-left", "addresses-left", "threads-left", "host-memory-left"})
    options: ClassVar = {
        **OPTIONS,
        "ranks": {"type": "integer", "minimum": 2, "maximum": 4},
    }

    def probes(self, ctx: Context) -> Iterable[Probe]:
        assert ctx.mpi is not None
        soak, history = ctx.tier is Tier.SOAK, ctx.options.get("history")
        numbers = SOAK_RANKS if soak else (RANKS,)
        if "ranks" in ctx.options:
            numbers = (ctx.options["ranks"],)
        if ctx.mpi.launch.shows:
            numbers = (2,)
        for devices in ctx.a_pair_or_device_of_each_backend:
            backend = devices[0].backend
            cannot_share = unsupported_memory(ctx.mpi, backend)
            params = {
                "backend": backend,
                **extent(ctx, OPERATIONS, runs=len(numbers)),
                "edges": list(ctx.mpi.edges),
                "lacks": list(ctx.mpi.lacks),
                "group_calls": calls_in_histories(ctx.mpi, backend),
                "memories": [kind for kind in kinds_of(devices[0]) if kind not in cannot_share],
                "huge": soak,
                "search": None,
                "tries": [],
            }
            if history:
                replay = Search(None, {}, (), "replay", shortest=results.history_from_json(history))
                yield self._try(Probe("", {}, devices, params, launch=ctx.mpi.launch), replay)
                continue
            for number in numbers:
                name = "" if len(numbers) == 1 else f"{number} ranks"
                yield Probe(name, ranks(number), devices, params, launch=ctx.mpi.launch)

    def again(self, ended: ProbeOutcome) -> Iterable[Probe]:
        """Plan the next launch of a search (`histories.message_search`)."""
        known, probe = ended.params["search"], _probe(ended)
        following = searching.from_json(known).after(ended) if known else _search(ended)
        if following and (following.stage != "replay" or not known):
            yield self._try(probe, following)

    def _try(self, probe: Probe, search: Search) -> Probe:
        tries = search.tries
        number = max(2, *(max(history.processes) for history in tries))
        limit_s = probe.deadline_s
        if search.first is not None and search.first.what == "hang":
            limit_s = min(limit_s, HANG_S)
        return Probe(
            probe.name,
            ranks(number),
            probe.devices,
            {
                **probe.params,
                "search": searching.to_json(search),
                "tries": [results.history_to_json(history) for history in tries],
            },
            deadline_s=limit_s,
            launch=probe.launch,
        )

    def judge(self, ended: ProbeOutcome) -> Iterable[Finding]:
        known = ended.params["search"] and searching.from_json(ended.params["search"])
        if known:
            yield from conclude(known, ended)
        elif ended.completed:
            yield passed(ended.params["lacks"], _figures(ended), ended.records["rank 0"]["done"])


def _losing_epoch(ended: ProbeOutcome) -> int | None:
    usages = [rank.get("usage", {}) for rank in ended.records.values()]
    return searching.losing_epoch(usages) if ended.completed else None


def passed(lacks: Sequence[str], figures: dict[str, Json], done: Mapping[str, int]) -> Finding:
    without = "; without {lacks}" if lacks else ""
    not_drawn = sorted(SENTENCES.keys() - done.keys())
    absent = Evidence.seen("operations that did not occur: {not_drawn}", not_drawn=not_drawn)
    return Finding.ok(
        "as-modelled",
        "{operations} operations of {ranks} ranks, {messages} messages correct" + without
        if is_complete(figures)
        else "{operations} of {wanted} operations in {elapsed_s:round} s, {messages} messages correct"
        + without,
        ", ".join(f"{times} × {do}" for do, times in sorted(done.items())),
        *([absent] if not_drawn else []),
        *([Evidence.seen(LEFT_OUT, lacks=" and ".join(lacks))] if lacks else []),
        lacks=" and ".join(lacks),
        **figures,
    )


def conclude(known: Search, ended: ProbeOutcome) -> Iterator[Finding]:
    """The result of a search after its last launch."""
    found = known.met(ended)
    like = found and (known.first is None or found.disagreement.what == known.first.what)
    labels = [device.label for device in ended.devices]
    if found and like and known.stage in ("confirm", "replay"):
        assert known.shortest is not None
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
            yield passed(ended.params["lacks"], _without_done(known.explored), known.explored["done"])
        elif ended.completed and not lost:
            says = "every operation had the expected result"
            yield Finding.ok("as-modelled", says, operations=len(known.shortest.operations))  # type: ignore[union-attr]
    elif known.base is not None:  # it failed in fresh ranks, but no shorter history did
        yield failed(known.base, Met(0, known.first), known, labels)
    else:
        yield Finding.warn(
            "seen-once",
            "{says}; not reproduced in fresh ranks" if not ended.stopped else "{says}; not replayed",
            remedy=REPLAY,
            says=known.first.says,
            history=results.history_to_json(known.candidates[-1]),
            **known.explored,
        )


def _without_done(explored: Json) -> dict[str, Json]:
    return {name: value for name, value in explored.items() if name != "done"}


def failed(history: History, found: Met, known: Search, labels: list[str]) -> Finding:
    met = found.disagreement
    return Finding.fail(
        met.what,
        SAYS[met.what],
        *(Evidence.seen(step) for step in steps(history)),
        Evidence.seen("{said}", said=met.says),
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


def _probe(ended: ProbeOutcome) -> Probe:
    return Probe(
        ended.probe, {}, ended.devices, ended.params, deadline_s=ended.deadline_s, launch=ended.launch
    )


def _search(ended: ProbeOutcome) -> Search | None:
    seed = ended.records.get("rank 0", {}).get("seed")
    if seed is None:
        return None
    run = RandomRun(_generator(ended.params, len(ended.roles), seed))
    latest = max(rank.get("at", 0) for rank in ended.records.values())
    if found := met(ended, lambda _: run.operations_until(latest)):
        return searching.begin(run, found, _figures(ended), ended.params["operations"])
    if (epoch := _losing_epoch(ended)) is not None:
        explored = {**_figures(ended), "done": ended.records["rank 0"]["done"]}
        return searching.repeat(run, epoch, explored)
    return None


def _figures(ended: ProbeOutcome) -> dict[str, Json]:
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


def ranks(number: int) -> dict[str, Callable[[Worker], None]]:
    return {f"rank {place}": perform for place in range(number)}


def _generator(params: Mapping[str, Json], number: int, seed: int) -> Generator:
    return Generator(
        params["backend"],
        number,
        seed,
        tuple(params["edges"]),
        huge=params["huge"],
        lacks=tuple(params["lacks"]),
        group_calls=tuple(params.get("group_calls", ())),
        memories=tuple(params.get("memories", ())),
    )


def perform(w: Worker) -> None:
    if w.params["tries"]:
        try_histories(w)
    else:
        explore(w)
    w.mpi.finalize()


def explore(w: Worker) -> None:
    seed = w.params["seed"]
    if seed is None:
        seed = w.mpi.first_says(own_seed(w))
    generator, rank = _generator(w.params, w.mpi.size, seed), Rank(w)
    done, performed, began = Counter[str](), 0, w.clock()
    usage: dict[str, list[int]] = {}
    w.record(seed=seed, trying=0)
    while performed < w.params["operations"]:
        made = generator.epoch()
        with w.step(f"operations from {performed + 1} on"):
            rank.perform(made, performed)
        performed += len(made)
        done.update(operation.do for operation, _ in made)
        figures = figures_of_process()
        for name in USAGE:
            usage.setdefault(name, []).append(figures[name])
        late = w.clock() - began > w.params["time_s"]
        if w.mpi.any_says(rank.figures.wrong is not None or late):
            break
    rank.end()
    record(w, rank, 0, operations=performed, elapsed_s=w.clock() - began, done=dict(done), usage=usage)


def try_histories(w: Worker) -> None:
    for number, history in enumerate(w.params["tries"]):
        w.record(trying=number)
        tried = results.history_from_json(history)
        rounds: Iterable[int] = range(1)
        if tried.times >= CERTAIN:  # for what each repetition leaves
            rounds = watched(w, REPETITION, range(tried.times))
            tried = replace(tried, times=1)
        made = steps_of(tried)
        for each in rounds:
            rank = Rank(w)
            with w.step(f"history {number + 1} of {len(w.params['tries'])}, repetition {each + 1}"):
                rank.perform(made)
                rank.end()
        record(w, rank, number)
        if w.mpi.any_says(rank.figures.wrong is not None):
            break


def record(w: Worker, rank: Rank, trying: int, **facts: Json) -> None:
    figures, wrong = rank.figures, rank.figures.wrong
    w.record(
        messages=figures.messages,
        compared=figures.compared,
        wrong=wrong and {**asdict(wrong), "trying": trying},
        **facts,
    )


CHECK = MpiHistories()
