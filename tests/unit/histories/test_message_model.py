"""The model of messages, compared with a trivial MPI in which ranks and messages proceed in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from gpuipc_doctor.histories.message_draws import REPEATS
from gpuipc_doctor.histories.message_generator import Generator
from gpuipc_doctor.histories.message_layouts import LAYOUTS
from gpuipc_doctor.histories.message_memories import KINDS as MEMORIES
from gpuipc_doctor.histories.message_model import Model, legal
from gpuipc_doctor.histories.message_operations import GROUP_CALLS as GROUP_OPERATIONS
from gpuipc_doctor.histories.message_operations import TYPES
from gpuipc_doctor.histories.message_state import Receive, case_of
from gpuipc_doctor.histories.message_steps import step
from gpuipc_doctor.histories.mpi_library_limits import DERIVED, GROUP_CALLS, SELF
from gpuipc_doctor.histories.operations import MPI, History, Operation, ProcessPlan
from tests.unit.histories.trivial_mpi import TrivialMpi

PHASES = 6


def made(
    ranks: int, seed: int, phases: int = PHASES, group_calls: Sequence[str] = ()
) -> tuple[Generator, list[Operation]]:
    generator = Generator(
        "cuda", ranks, seed, (8192, 65536), group_calls=tuple(group_calls), memories=MEMORIES
    )
    return generator, [operation for _ in range(phases) for operation, _ in generator.phase()]


def expected(history: History) -> dict[int, list[int]]:
    """Rank → the stamps of the messages that its completed receives get, in order."""
    model = Model(history)
    steps = [(operation, model.apply(operation)) for operation in history.operations]
    assert not model.unmatched()
    received: dict[int, list[int]] = {rank: [] for rank in model.ranks}
    for operation, outcome in steps:
        for part in outcome.parts:
            completes = operation.do in ("recv", "sendrecv", "wait", "test", "receive-matched")
            if completes and isinstance(part, Receive):
                assert part.message is not None
                received[operation.by].append(part.message.sent.stamp)
    return received


@pytest.mark.parametrize("seed", [3, 18])
def test_every_phase_ends_and_messages_are_repeated(seed: int) -> None:
    """No rank waits for a message from any source that no other rank can still send."""
    for ranks in (3, 4):
        generator, operations = made(ranks, seed, phases=40)
        received = Counter(
            (operation.by, operation.on, operation.nbytes)
            for operation in operations
            if operation.do == "recv"
        )
        assert max(received.values()) >= REPEATS
        assert not generator.model.unmatched()


def without_wait_all(operations: Sequence[Operation]) -> list[Operation]:
    """The operations without ``wait-all``: pending requests then complete at the history's end."""
    return [operation for operation in operations if operation.do != "wait-all"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_generated_history_ends_and_matches_as_modelled_in_any_order(ranks: int, seed: int) -> None:
    generator, operations = made(ranks, seed)
    history = generator.history.of(legal(generator.history.of(without_wait_all(operations))))
    wanted = expected(history)
    for order in range(8):
        mpi = TrivialMpi(history.operations, sorted(history.processes), Random(order))
        mpi.run()
        assert mpi.received == wanted


@pytest.mark.parametrize("seed", range(6))
def test_part_of_a_history_ends_and_matches_as_modelled_in_any_order(seed: int) -> None:
    """Shrinking may remove any operations."""
    random = Random(seed)
    generator, operations = made(3, seed, 1)
    for _ in range(20):
        part = [operation for operation in without_wait_all(operations) if random.random() < 0.8]
        history = generator.history.of(legal(generator.history.of(part)))
        wanted = expected(history)
        mpi = TrivialMpi(history.operations, sorted(history.processes), random)
        mpi.run()
        assert mpi.received == wanted


def test_generators_with_one_seed_make_the_same_history() -> None:
    assert made(3, 7)[1] == made(3, 7)[1]


@pytest.mark.parametrize("seed", [1, 3])
def test_unsupported_operations_are_not_generated_and_every_phase_ends(seed: int) -> None:
    generator = Generator("cuda", 3, seed, (8192, 65536), lacks=(DERIVED, SELF))
    drawn = [operation for _ in range(40) for operation, _ in generator.phase()]
    assert not generator.model.unmatched()
    assert {operation.do for operation in drawn} >= {"send", "irecv", "sendrecv", "receive-matched"}
    kinds = {operation.kind for operation in drawn if operation.do != "allocate"}
    assert not [kind for kind in kinds if LAYOUTS[kind].is_derived]
    assert not [operation for operation in drawn if operation.peer == operation.by]


def test_every_operation_is_generated_and_has_a_sentence() -> None:
    done = Counter(
        operation.do for seed in range(6) for operation in made(3, seed, group_calls=GROUP_CALLS)[1]
    )
    assert set(done) == set(TYPES)
    assert all("{" not in step(operation) for operation in made(3, 0, group_calls=GROUP_CALLS)[1])


def test_group_calls_leave_all_other_operations_of_a_seed_as_they_are() -> None:
    _, without = made(3, 6)
    _, operations = made(3, 6, group_calls=GROUP_CALLS)
    plain = [operation for operation in operations if operation.do not in GROUP_OPERATIONS]
    assert plain == without
    cases = [case_of(operation) for operation in operations if operation.do in GROUP_OPERATIONS]
    assert {case.call for case in cases if case} == set(GROUP_CALLS)
    assert {case.memory for case in cases if case} == set(MEMORIES)


HISTORY = History("cuda", {number: ProcessPlan() for number in (1, 2, 3)}, check=MPI)
BUFFERS = [Operation("allocate", by, makes=by, nbytes=64, kind="host") for by in (1, 2, 3)]


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        (
            [Operation("send", 1, on=1, nbytes=65, stamp=1, peer=2)],
            "a message of 65 bytes does not fit buffer 1",
        ),
        ([Operation("send", 1, on=2, nbytes=8, stamp=1, peer=2)], "process 1 has no buffer 2"),
        ([Operation("isend", 1, on=1, nbytes=8, stamp=1, peer=2)], "needs a new request"),
        (
            [
                Operation("send", 1, on=1, nbytes=8, stamp=1, peer=2),
                Operation("free", 1, on=1),
            ],
            "process 1 is blocked in its latest operation",
        ),
        (
            [
                Operation("isend", 1, on=1, makes=9, nbytes=8, stamp=1, peer=2),
                Operation("free", 1, on=1),
            ],
            "the buffer is in use",
        ),
        (
            [
                Operation("isend", 1, on=1, makes=8, nbytes=8, stamp=1, peer=3),
                Operation("isend", 2, on=2, makes=9, nbytes=8, stamp=2, peer=3),
                Operation("recv", 3, on=3, nbytes=8),
            ],
            "messages of several ranks may match the receive",
        ),
        (
            [
                Operation("irecv", 3, on=3, makes=8, nbytes=8),
                Operation("isend", 1, on=1, makes=9, nbytes=8, stamp=1, peer=3),
                Operation("isend", 2, on=2, makes=10, nbytes=8, stamp=2, peer=3),
            ],
            "a receive from any source may match this message or another",
        ),
        ([Operation("probe", 2, peer=1)], "no such message"),
    ],
)
def test_illegal_operation_is_refused(operations: list[Operation], why: str) -> None:
    model = Model(HISTORY)
    for operation in [*BUFFERS, *operations[:-1]]:
        assert not model.illegal(operation)
        model.apply(operation)
    assert model.illegal(operations[-1]) == why


def test_barrier_makes_the_source_definite() -> None:
    model = Model(HISTORY)
    for operation in [
        *BUFFERS,
        Operation("isend", 1, on=1, makes=9, nbytes=8, stamp=1, peer=3),
        Operation("recv", 3, on=3, nbytes=8),
        Operation("barrier", 1),
    ]:
        assert not model.illegal(operation)
        model.apply(operation)
    assert not model.illegal(Operation("isend", 2, on=2, makes=10, nbytes=8, stamp=2, peer=3))


def test_unmatched_operations_are_left_out() -> None:
    unmatched = Operation("isend", 1, on=1, makes=9, nbytes=8, stamp=1, peer=2)
    assert legal(HISTORY.of([*BUFFERS, unmatched])) == BUFFERS
