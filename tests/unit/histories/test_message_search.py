"""From a disagreement to the shortest history that shows it, with simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpuipc_doctor.histories import message_search as searching
from gpuipc_doctor.histories import results
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_model import legal
from gpuipc_doctor.histories.message_performer import END, Steps
from gpuipc_doctor.histories.message_search import MOST_LAUNCHES, Met, RandomRun, Search, met, steps_of
from gpuipc_doctor.histories.operations import Disagreement, History, Operation
from gpuipc_doctor.model import Json
from gpuipc_doctor.probe_types import Ending, ProbeOutcome, Reached, RoleOutcome

Fault = Callable[[Sequence[Operation]], int | None]
"""The index of the operation that fails; None if none does."""

PHASES = 10


def ended(
    ending: Ending = Ending.COMPLETED, reached: Reached | None = None, elapsed_s: float = 1.0, **records: Json
) -> ProbeOutcome:
    operation = "" if ending is Ending.COMPLETED else "MPI_Recv"
    last = RoleOutcome(
        "rank 1", ending, operation=operation, signal="SIGSEGV", records=records, reached=reached
    )
    roles = {"rank 0": RoleOutcome("rank 0", Ending.COMPLETED), "rank 1": last}
    blamed = None if ending is Ending.COMPLETED else "rank 1"
    return ProbeOutcome("", (), {}, roles, blamed, elapsed_s)


def first_steps(trying: int) -> Steps:
    return RandomRun(Generator("cuda", 3, 1)).operations_until(0)


def wrong(trying: int, at: int) -> ProbeOutcome:
    return ended(
        wrong={"trying": trying, "at": at, "do": "recv", "call": "MPI_Recv", "says": "the message is wrong"}
    )


def launch(tries: Sequence[History], fault: Fault) -> ProbeOutcome:
    """The outcome of a launch that replays these histories in turn; ends at the first failure."""
    for number, history in enumerate(tries):
        operations = [operation for operation, _ in steps_of(history)]
        if (at := fault(operations)) is not None:
            return wrong(number, at)
    return ended()


def found(fault: Fault) -> Search:
    generator = Generator("cuda", 3, 1, (8192,))
    operations = [operation for _ in range(PHASES) for operation, _ in generator.phase()]
    at = fault(operations)
    assert at is not None
    disagreement = Disagreement(at, "data", "recv", "", "MPI_Recv", "the message is wrong")
    again = RandomRun(Generator("cuda", 3, 1, (8192,)))
    return searching.begin(again, Met(0, disagreement), {}, len(operations))


def searched(fault: Fault) -> Search:
    """The search after its last launch."""
    search = found(fault)
    while search.goes_on(launch(search.tries, fault)):
        assert search.launches <= MOST_LAUNCHES + 5
    return search


def large_receive(operations: Sequence[Operation]) -> int | None:
    places = (n for n, one in enumerate(operations) if one.do == "recv" and one.nbytes >= 8191)
    return next(places, None)


def fifth_derived(operations: Sequence[Operation]) -> int | None:
    """The fifth send in blocks fails."""
    places = [n for n, one in enumerate(operations) if "send" in one.do and one.kind == "blocks-of-8"]
    return places[4] if len(places) > 4 else None


def fortieth(operations: Sequence[Operation]) -> int | None:
    places = [n for n, one in enumerate(operations) if one.do == "recv"]
    return places[39] if len(places) > 39 else None


def test_fault_of_one_message_is_found_in_a_few_operations_and_launches() -> None:
    search = searched(large_receive)
    assert search.shortest is not None
    assert [operation.do for operation in search.shortest.operations if operation.do != "allocate"] in (
        [first, second] for first in ("send", "isend", "recv") for second in ("recv", "send")
    )
    assert len(search.shortest.operations) <= 4
    assert search.launches < 12


@pytest.mark.full
@pytest.mark.parametrize("fault", [fifth_derived, fortieth])
def test_fault_that_comes_by_count_is_shown_by_the_counted_operations(fault: Fault) -> None:
    search = searched(fault)
    assert search.shortest is not None
    assert fault([operation for operation, _ in steps_of(search.shortest)]) is not None


def test_every_tried_history_is_legal_and_tried_once() -> None:
    search, tried = found(large_receive), list[History]()
    while search.goes_on(launch(search.tries, large_receive)) and search.shortest is None:
        for history in search.tries:
            assert legal(history) == list(history.operations)
            assert history not in tried
        tried += search.tries


def test_launch_whose_ranks_did_not_begin_is_repeated_and_not_for_ever() -> None:
    """Under load, `MPI_Init_thread` exceeded the deadline of a replay, and a hang counted as not repeated."""
    search = found(large_receive)
    while search.shortest is None:
        tries = search.tries
        assert search.goes_on(ended(Ending.HUNG))
        assert search.tries is tries
        assert search.goes_on(launch(search.tries, large_receive))
    search = found(large_receive)
    while search.goes_on(ended(Ending.HUNG)):
        assert search.launches <= MOST_LAUNCHES + 3


def test_disagreement_that_does_not_repeat_ends_the_search_without_a_history() -> None:
    search = found(large_receive)
    while search.goes_on(ended()):
        pass
    assert (search.base, search.shortest) == (None, None)
    assert search.launches < 4


def test_search_ends_in_time() -> None:
    search = found(fortieth)
    while search.base is None:
        assert search.goes_on(launch(search.tries, fortieth))
    assert search.shortest is None
    assert search.goes_on(ended(elapsed_s=1000.0))
    assert search.tries == (search.shortest,)


@pytest.mark.parametrize(
    ("ending", "what", "name"),
    [(Ending.HUNG, "hang", ""), (Ending.CRASHED, "crash", "SIGSEGV")],
)
def test_rank_that_did_not_end_is_a_disagreement(ending: Ending, what: str, name: str) -> None:
    it = met(ended(ending, Reached(2, 7, "recv")), first_steps)
    assert it is not None
    assert (it.trying, it.disagreement.at) == (2, 7)
    assert (it.disagreement.what, it.disagreement.name, it.disagreement.call) == (what, name, "MPI_Recv")


def test_request_that_hangs_at_the_end_of_a_history_is_placed_where_it_began() -> None:
    hung = ended(Ending.HUNG, Reached(0, 9, END, 4))
    waiting = replace(hung.roles["rank 1"], operation="MPI_Wait")
    it = met(replace(hung, roles={**hung.roles, "rank 1": waiting}), first_steps)
    assert it is not None
    assert it.disagreement.at == 4


def test_crash_whose_signal_no_launcher_reports_is_the_same_crash() -> None:
    """On a busy node Open MPI's launcher can end first, and then the signal of the rank is unknown."""
    search = found(large_receive)
    [history] = search.tries
    at = large_receive([operation for operation, _ in steps_of(history)])
    known = ended(Ending.CRASHED, Reached(0, at, "recv"))
    untold = replace(known.roles["rank 1"], signal="", exit_code=None)
    unknown = replace(known, roles={**known.roles, "rank 1": untold})
    for one, other in ((known, unknown), (unknown, known)):
        first = met(one, first_steps)
        assert first is not None
        search = found(large_receive)
        search.first = first.disagreement
        assert search.goes_on(other)
        assert search.base is not None
    assert first.disagreement.says == "rank 1: MPI_Recv ended the process"
    logged = replace(untold, log_tail=("Fatal Python error: Segmentation fault",))
    told = met(replace(known, roles={**known.roles, "rank 1": logged}), first_steps)
    assert told is not None
    assert told.disagreement.name == "SIGSEGV"


def test_rank_that_ended_before_any_operation_is_no_disagreement() -> None:
    assert met(ended(Ending.CRASHED), first_steps) is None
    assert met(ended(), first_steps) is None


def test_history_survives_as_json() -> None:
    history = found(large_receive).candidates[0]
    assert results.history_from_json(results.history_to_json(history)) == history


FLAT, LATE = [34] * 24, [34] * 16 + [35, 37, 36, 40, 40, 41, 44, 43]


@pytest.mark.parametrize(
    ("usages", "phase"),
    [
        ([{"descriptors": FLAT}, {"descriptors": LATE}], 19),
        ([{"descriptors": FLAT}, {"descriptors": [34] * 13 + [58, 61, 87] + [88] * 8}, {}], 15),
        ([{"descriptors": [*FLAT[:-4], 35, 36, 36, 37]}], 23),  # it began late
        ([{"descriptors": FLAT, "addresses": [1 << 40, *[(1 << 40) + 4096] * 23]}], None),  # at the start
        ([{"descriptors": [34] * 20 + [40, 34, 40, 34]}], None),  # it also falls
        ([{"descriptors": [34] * 20 + [40] * 4}], None),  # only once
        ([{"descriptors": [34, 40, 50]}], None),  # too few phases
        ([], None),
    ],
)
def test_phase_is_repeated_if_the_usage_of_a_rank_rises(
    usages: list[dict[str, list[int]]], phase: int | None
) -> None:
    assert searching.losing_phase(usages) == phase


def test_repeated_phase_is_a_history_that_needs_nothing_before_it() -> None:
    phase = searching.repeat(RandomRun(Generator("cuda", 3, 6, (8192,))), 5, {}).shortest
    assert phase is not None
    assert phase.times == 24
    alone = replace(phase, times=1)
    assert [operation for operation, _ in steps_of(alone)] == list(phase.operations)
