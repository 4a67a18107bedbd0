"""Random valid messages between ranks, compared with a model of each receive's data and status.

Two to four ranks send and receive in several communicators, blocking and non-blocking, with outstanding and
persistent requests, matched probes, any source, any tag and derived types; between their messages they call
collectives and one-sided operations. Host and device buffers are freed and reallocated. Each message is
compared with the sent data, and its status with the model's. If the library disagrees, fresh ranks repeat the
history, and the shortest failing one is reported as numbered steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import ClassVar

from gpuipc_doctor.api import (
    Check,
    Context,
    Finding,
    Json,
    Probe,
    ProbeOutcome,
    Subject,
    Tier,
    Worker,
    watched,
)
from gpuipc_doctor.api.process_leaks import figures_of_process
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.extent import OPTIONS, extent, own_seed
from gpuipc_doctor.histories.leaks import CERTAIN
from gpuipc_doctor.histories.message_memories import kinds_of
from gpuipc_doctor.histories.message_performer import Performer
from gpuipc_doctor.histories.message_search import Search, steps_of
from gpuipc_doctor.histories.mpi_library_limits import calls_in_histories, unsupported_memory

from ._mpi_histories_findings import figures, judge_run, judge_search
from ._mpi_histories_search import begin_search, generator

OPERATIONS = 3400
"""Operations in the acceptance tier, of which some 130 are calls of all ranks. With two thirds of them, a
descriptor left with each message from the fortieth on is missed, which no other check finds; with 1,300 also
other leaks, and 64 B that are overwritten."""

RANKS, SOAK_RANKS = 3, (2, 3, 4)

HANG_S = 2.5
"""Maximum seconds for a call in the replay of a history that hung."""

USAGE = ("descriptors", "threads", "addresses")
"""Figures of `api.process_leaks` that a rank notes after each phase; if one rises, a phase is repeated. The
buffers of healthy ranks change host memory by some MiB, so only repetitions show leaks of it."""

REPETITION = "repetition of a valid history of messages"


class MpiHistories(Check):
    id = "mpi-histories"
    title = "random valid messages between ranks"
    subject = Subject.MPI
    requires = frozenset({"multi-process"})
    needs_mpi = True
    searches = True
    explains_losses = frozenset({"descriptors-left", "addresses-left", "threads-left", "host-memory-left"})
    options: ClassVar = {**OPTIONS, "ranks": {"type": "integer", "minimum": 2, "maximum": 4}}

    def __init__(self) -> None:
        self._searches = list[Search]()
        """The searches of this run; a probe's parameter ``search`` is an index of one."""

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
                replay = Search(None, {}, (results.history_from_json(history),))
                yield self._launch(replay, Probe("", {}, devices, params, launch=ctx.mpi.launch))
                continue
            for number in numbers:
                name = "" if len(numbers) == 1 else f"{number} ranks"
                yield Probe(name, ranks(number), devices, params, launch=ctx.mpi.launch)

    def again(self, ended: ProbeOutcome) -> Iterable[Probe]:
        """Plan the next launch of a search (`histories.message_search`)."""
        number = ended.params["search"]
        search = begin_search(ended) if number is None else self._searches[number]
        if search and (number is None or search.goes_on(ended)):
            yield self._launch(search, ended.follow_up(ended.probe, {}))

    def _launch(self, search: Search, probe: Probe) -> Probe:
        """The launch of the histories that a search tries next; all else is as in ``probe``."""
        if search not in self._searches:
            self._searches.append(search)
        size = max(2, *(max(history.processes) for history in search.tries))
        tries = [results.history_to_json(history) for history in search.tries]
        limit_s = probe.deadline_s
        if search.first is not None and search.first.what == "hang":
            limit_s = min(limit_s, HANG_S)
        params = {**probe.params, "search": self._searches.index(search), "tries": tries}
        return replace(probe, roles=ranks(size), params=params, deadline_s=limit_s)

    def judge(self, ended: ProbeOutcome) -> Iterable[Finding]:
        if (number := ended.params["search"]) is not None:
            yield from judge_search(self._searches[number], ended)
        elif ended.completed:
            yield judge_run(ended.params["lacks"], figures(ended), ended.records["rank 0"]["done"])


def ranks(number: int) -> dict[str, Callable[[Worker], None]]:
    return {f"rank {place}": perform for place in range(number)}


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
    drawn, rank = generator(w.params, w.mpi.size, seed), Performer(w)
    done, performed, began = Counter[str](), 0, w.clock()
    usage: dict[str, list[int]] = {}
    w.record(seed=seed)
    while performed < w.params["operations"]:
        made = drawn.phase()
        with w.step(f"operations from {performed + 1} on"):
            rank.perform(made, performed)
        performed += len(made)
        done.update(operation.do for operation, _ in made)
        here = figures_of_process()
        for name in USAGE:
            usage.setdefault(name, []).append(here[name])
        late = w.clock() - began > w.params["time_s"]
        if w.mpi.any_says(rank.figures.wrong is not None or late):
            break
    rank.end()
    record(w, rank, 0, operations=performed, elapsed_s=w.clock() - began, done=dict(done), usage=usage)


def try_histories(w: Worker) -> None:
    for number, history in enumerate(w.params["tries"]):
        tried = results.history_from_json(history)
        rounds: Iterable[int] = range(1)
        if tried.times >= CERTAIN:  # for what each repetition leaves
            rounds = watched(w, REPETITION, range(tried.times))
            tried = replace(tried, times=1)
        made = steps_of(tried)
        for each in rounds:
            rank = Performer(w, number)
            with w.step(f"history {number + 1} of {len(w.params['tries'])}, repetition {each + 1}"):
                rank.perform(made)
                rank.end()
        record(w, rank, number)
        if w.mpi.any_says(rank.figures.wrong is not None):
            break


def record(w: Worker, rank: Performer, trying: int, **facts: Json) -> None:
    met, wrong = rank.figures, rank.figures.wrong
    w.record(
        messages=met.messages,
        compared=met.compared,
        wrong=wrong and {**asdict(wrong), "trying": trying},
        **facts,
    )


CHECK = MpiHistories()
