"""Begin a search of `mpi-histories`: draw a run again from its seed, up to where ranks disagreed."""

from __future__ import annotations

from collections.abc import Mapping

from gpuipc_doctor.api import Json, ProbeOutcome
from gpuipc_doctor.histories import message_search as searching
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_search import RandomRun, Search, met

from ._mpi_histories_findings import figures


def begin_search(ended: ProbeOutcome) -> Search | None:
    """The search for what a random run met, or for what it lost; None if there is neither."""
    seed = ended.records.get("rank 0", {}).get("seed")
    if seed is None:
        return None
    run = RandomRun(generator(ended.params, len(ended.roles), seed))
    latest = max(rank.reached.at if rank.reached else 0 for rank in ended.roles.values())
    if found := met(ended, lambda _: run.operations_until(latest)):
        return searching.begin(run, found, figures(ended), ended.params["operations"])
    usages = [rank.get("usage", {}) for rank in ended.records.values()]
    if ended.completed and (phase := searching.losing_phase(usages)) is not None:
        return searching.repeat(run, phase, {**figures(ended), "done": ended.records["rank 0"]["done"]})
    return None


def generator(params: Mapping[str, Json], number: int, seed: int) -> Generator:
    """Draws the operations of a run with these parameters, between this number of ranks."""
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
