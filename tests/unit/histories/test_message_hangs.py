"""Of ranks that wait for each other, the one whose operation was lost is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_hangs import lost
from gpuipc_doctor.histories.message_model import legal
from gpuipc_doctor.histories.message_operations import OF_ALL
from gpuipc_doctor.histories.message_performer import END
from gpuipc_doctor.histories.message_search import steps_of
from gpuipc_doctor.histories.operations import MPI, History, Operation, ProcessPlan
from gpuipc_doctor.probe_types import Ending, ProbeOutcome, Reached, RoleOutcome
from tests.unit.histories.trivial_mpi import Deadlock, TrivialMpi

RANKS = 3

SSEND_BEFORE_ITS_RECEIVE = (
    Operation("allocate", 1, makes=1, nbytes=4096, kind="host"),
    Operation("allocate", 2, makes=2, nbytes=4096, kind="host"),
    Operation("allocate", 2, makes=3, nbytes=4096, kind="host"),
    Operation("allocate", 3, makes=4, nbytes=4096, kind="host"),
    Operation("irecv", 2, on=2, makes=5, nbytes=64, peer=3),
    Operation("send", 3, on=4, nbytes=64, stamp=6, peer=2),
    Operation("ssend", 1, on=1, nbytes=64, stamp=7, peer=2),
    Operation("wait", 2, on=5),
    Operation("recv", 2, on=3, nbytes=64, peer=1),
)
"""Rank 0 waits until rank 1 receives, which rank 1 does after it waited for the message of rank 2."""


def outcome(places: Mapping[int, tuple[int, str, str]], trying: int = 0) -> ProbeOutcome:
    """Process → index of its operation, its ``do``, and the call it hangs in."""
    roles = {
        f"rank {process - 1}": RoleOutcome(
            f"rank {process - 1}",
            Ending.HUNG,
            operation=call,
            reached=Reached(trying, at, do),
        )
        for process, (at, do, call) in sorted(places.items())
    }
    return ProbeOutcome("", (), {}, roles, next(iter(roles)), 1.0)


def named(history: History, places: Mapping[int, tuple[int, str, str]]) -> str:
    return lost(outcome(places), lambda _: steps_of(history)).role


def history(operations: Sequence[Operation]) -> History:
    plans = {process: ProcessPlan() for process in range(1, RANKS + 1)}
    return History("cuda", plans, tuple(operations), check=MPI)


def test_rank_that_waits_for_a_receive_behind_the_hang_is_not_blamed() -> None:
    made = history(SSEND_BEFORE_ITS_RECEIVE)
    assert legal(made) == list(SSEND_BEFORE_ITS_RECEIVE)
    end = (8, END, "MPI_Barrier")
    assert named(made, {1: (6, "ssend", "MPI_Ssend"), 2: (7, "wait", "MPI_Wait"), 3: end}) == "rank 1"
    assert named(made, {1: (6, "ssend", "MPI_Ssend"), 2: (8, "recv", "MPI_Recv"), 3: end}) == "rank 0"
    assert named(made, {1: end, 2: (7, "wait", "MPI_Wait"), 3: (5, "send", "MPI_Send")}) == "rank 2"


def test_rank_in_a_call_of_the_driver_waits_for_no_rank() -> None:
    places = {1: (6, "ssend", "cuMemcpyHtoD"), 2: (4, "irecv", "MPI_Irecv"), 3: (5, "send", "MPI_Send")}
    assert named(history(SSEND_BEFORE_ITS_RECEIVE), places) == "rank 0"


@pytest.mark.parametrize("call", ["MPI_Barrier", "MPI_Comm_free", "MPI_Allreduce"])
def test_rank_at_its_end_waits_for_one_that_completes_a_request_there(call: str) -> None:
    places = {1: (8, END, call), 2: (8, END, call), 3: (8, END, "MPI_Wait")}
    assert named(history(SSEND_BEFORE_ITS_RECEIVE), places) == "rank 2"


def test_rank_in_an_earlier_history_of_the_launch_is_blamed_first() -> None:
    ended = outcome({1: (3, "allocate", "MPI_Wait"), 2: (7, "wait", "MPI_Wait")}, trying=1)
    earlier = outcome({3: (8, END, "MPI_Wait")}).roles
    together = ProbeOutcome("", (), {}, {**ended.roles, **earlier}, "rank 0", 1.0)
    made = steps_of(history(SSEND_BEFORE_ITS_RECEIVE))
    assert lost(together, lambda _: made).role == "rank 2"


@pytest.mark.parametrize("seed", range(6))
def test_operation_that_never_returns_is_named_in_any_order_of_ranks(seed: int) -> None:
    """In random histories, with sends that wait until they are matched."""
    random, generator = Random(seed), Generator("cuda", RANKS, seed, (8192, 65536))
    drawn = [operation for _ in range(2) for operation, _ in generator.phase() if operation.do != "wait-all"]
    made = generator.history.of(legal(generator.history.of(drawn)))
    operations, steps = made.operations, steps_of(made)
    calls = [at for at, one in enumerate(operations) if one.do not in ("allocate", "free")]
    for hanging in calls:
        mpi = TrivialMpi(operations, sorted(made.processes), random, hangs=operations[hanging])
        with pytest.raises(Deadlock) as deadlock:
            mpi.run()
        places = {process: (len(operations) - 1, END, "MPI_Barrier") for process in made.processes}
        for process, pending in deadlock.value.pending.items():
            at = next(at for at, one in enumerate(operations) if one is pending)
            places[process] = (at, pending.do, "MPI_Call")
        found = lost(outcome(places), lambda _: steps)
        if operations[hanging].do in OF_ALL:
            assert found.reached
            assert found.reached.at == hanging
        else:
            assert found.role == f"rank {operations[hanging].by - 1}", operations[hanging]
