"""The model, compared with a trivial driver in memory: legal operations succeed with the expected data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuipc_doctor.histories.composed_case import FLOOR
from gpuipc_doctor.histories.composed_cases import SIZES, sizes_without_room
from gpuipc_doctor.histories.generator import Generator
from gpuipc_doctor.histories.legality import DECLARED, ILLEGAL, LEGAL, rules
from gpuipc_doctor.histories.memory_draft import Limits
from gpuipc_doctor.histories.memory_model import Model
from gpuipc_doctor.histories.memory_operations import RARE, TYPES, without_families, without_room
from gpuipc_doctor.histories.memory_state import Expected
from gpuipc_doctor.histories.operations import History, Operation, ProcessPlan
from gpuipc_doctor.histories.steps import step
from tests.unit.histories.trivial_driver import TrivialDriver

PLANS = {number: ProcessPlan() for number in (1, 2, 3)}
NUMBERS = st.integers(0, 8)
A, B = 1, 2
SHARED = (Operation("allocate", A, makes=1, nbytes=64), Operation("open", B, on=1, makes=2))

EVENT = (
    *SHARED,
    Operation("allocate", A, makes=3, nbytes=64),
    Operation("create-event", A, makes=4),
    Operation("open-event", B, on=4, makes=5),
)
UNDER_WAY = (*EVENT, Operation("copy-and-record", A, on=1, of=3, within=4))


class AnyLegalOperation(RuleBasedStateMachine):
    """Performs any operation that the model calls legal on the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(History("cuda", PLANS))
        self.driver = TrivialDriver()

    @rule(
        do=st.sampled_from(sorted(TYPES)),
        by=st.integers(1, 3),
        on=NUMBERS,
        of=NUMBERS,
        makes=NUMBERS,
        nbytes=st.sampled_from([0, 1, 4096]),
        stamp=st.integers(0, 99),
    )
    def perform(self, do: str, by: int, on: int, of: int, makes: int, nbytes: int, stamp: int) -> None:
        operation = Operation(do, by, on, makes, of, nbytes, stamp)
        if not self.model.illegal(operation):
            expected = self.model.apply(operation)
            shown = self.driver.perform(operation)
            assert shown is None or shown.agrees(expected.parts)

    @invariant()
    def nothing_is_left_where_the_model_knows_of_nothing(self) -> None:
        if not self.model.things:
            assert not self.driver.memory


TestAnyLegalOperation = AnyLegalOperation.TestCase


@pytest.mark.parametrize("backend", ["cuda", "hip"])
@pytest.mark.parametrize("seed", range(5))
def test_generated_history_is_legal_and_succeeds_on_the_trivial_driver(backend: str, seed: int) -> None:
    generator = Generator(backend, 2, seed)
    driver = TrivialDriver(contexts_own_memory=backend == "cuda")
    done = Counter[str]()
    judge = Model(History(backend, generator.plans))
    for _ in range(20):
        for operation, expected in generator.phase():
            assert judge.illegal(operation) == ""
            assert judge.apply(operation) == expected
            shown = driver.perform(operation)
            assert shown is None or shown.agrees(expected.parts)
            done[operation.do] += 1
        assert not driver.memory
    assert {"allocate", "open", "close", "free", "write", "read", "copy", "end-context"} <= done.keys()
    assert ("free-open" in done) <= (backend == "cuda")


@pytest.mark.parametrize("backend", ["cuda", "hip"])
@pytest.mark.parametrize("seed", range(5))
def test_concurrent_operations_have_one_meaning_in_any_order(backend: str, seed: int) -> None:
    generator, order = Generator(backend, 2, seed), Random(seed)
    driver = TrivialDriver(contexts_own_memory=backend == "cuda")
    group, together = list[tuple[Operation, Expected]](), 0

    def perform() -> None:
        """Operations of one process in order, those of different processes in any order."""
        while group:
            chosen = order.choice([operation.by for operation, _ in group])
            place = next(at for at, (operation, _) in enumerate(group) if operation.by == chosen)
            operation, expected = group.pop(place)
            shown = driver.perform(operation)
            assert shown is None or shown.agrees(expected.parts)

    for _ in range(20):
        for operation, expected in generator.phase():
            if not expected.beside and {earlier.by for earlier, _ in group} != {operation.by}:
                perform()
            group.append((operation, expected))
            together += expected.beside
    perform()
    assert not driver.memory
    assert together > 100


@pytest.mark.parametrize(
    ("before", "operation", "joins"),
    [
        (SHARED, Operation("allocate", A, makes=3, nbytes=64), True),
        (SHARED, Operation("export", A, on=1), True),
        (SHARED[:1], Operation("open", B, on=1, makes=2), False),  # needs the handle
        ((*SHARED, Operation("read", B, on=2)), Operation("read", A, on=1), True),
        ((*SHARED, Operation("read", B, on=2)), Operation("write", A, on=1, stamp=1), False),
        ((*SHARED, Operation("write", B, on=2, stamp=1)), Operation("read", A, on=1), False),
        ((*SHARED, Operation("close", B, on=2)), Operation("free", A, on=1), False),
        ((*SHARED, Operation("rest", B)), Operation("allocate", A, makes=3, nbytes=64), False),
        (
            (
                *SHARED,
                Operation("write", B, on=2, stamp=1),
                Operation("fork", B),
                Operation("use-context", B),
            ),
            Operation("read", A, on=1),
            False,  # data written before the fork is sent with it
        ),
        ((*SHARED, Operation("fork", A), Operation("use-context", A)), Operation("close", B, on=2), False),
        (SHARED, Operation("kill", A), False),
        (SHARED, Operation("read", B, on=2), False),  # only its own process is at work
    ],
)
def test_operations_are_concurrent_only_if_neither_depends_on_the_other(
    before: tuple[Operation, ...], operation: Operation, joins: bool
) -> None:
    model = Model(History("cuda", PLANS))
    for earlier in before:
        model.apply(earlier)
    assert model.joins(operation) is joins
    assert model.apply(replace(operation, beside=True)).beside is joins


def test_wide_history_has_more_operations_and_is_legal() -> None:
    generator = Generator("cuda", 2, 1, Limits(room=9 << 30, wide=True), peers=((0, 1), (1, 0)))
    driver, done, sizes = TrivialDriver(), Counter[str](), set[int]()
    for _ in range(80):
        for operation, expected in generator.phase():
            shown = driver.perform(operation)
            assert shown is None or shown.agrees(expected.parts)
            done[operation.do] += 1
            sizes.add(operation.nbytes)
    assert {"read-by-kernel", "write-by-kernel"} <= done.keys()
    assert {"copy-across-streams", "fork", "idle"} <= done.keys()
    assert max(sizes) > 4 << 30


@pytest.mark.parametrize(("backend", "devices"), [("cuda", 1), ("hip", 1), ("cuda", 2), ("cuda", 8)])
def test_scenes_perform_each_kind_of_operation_often_and_each_size_once(backend: str, devices: int) -> None:
    peers = tuple(permutations(range(devices), 2))
    generator = Generator(backend, devices, 6, Limits(room=512 << 20, composed=True), peers=peers)
    driver = TrivialDriver(contexts_own_memory=backend == "cuda")
    done, sizes, pairs = Counter[str](), set[int](), set[tuple[int, int]]()
    owner = dict[int, int]()
    for _ in range(15 + 3 * (devices > 1)):
        for operation, expected in generator.phase():
            shown = driver.perform(operation)
            assert shown is None or shown.agrees(expected.parts)
            done[operation.do] += 1
            sizes.add(operation.nbytes)
            device = generator.plans[operation.by].device
            if operation.do == "allocate":
                owner[operation.makes] = device
            elif operation.do == "open":
                pairs.add((owner[operation.on], device))
        assert not driver.memory
    without = {"free-open"} if backend == "hip" else set()
    assert {do for do in TYPES.keys() - RARE.keys() - without if done[do] < FLOOR} == set()
    assert set(SIZES.values()) <= sizes
    assert set(peers) <= pairs


@pytest.mark.parametrize(
    "room", [4 << 20, 64 << 20, *(pytest.param(mib << 20, marks=pytest.mark.full) for mib in (8, 16, 32))]
)
@pytest.mark.parametrize("devices", [1, 2])
def test_no_scene_takes_more_memory_than_there_is_room(room: int, devices: int) -> None:
    peers = tuple(permutations(range(devices), 2))
    without = without_families(without_room(room, frozenset()))
    for seed in range(3):
        generator = Generator(
            "cuda", devices, seed, Limits(room=room, composed=True), without=without, peers=peers
        )
        for case in range(15 + 3 * (devices > 1)):
            for _ in generator.phase():
                live = {thing.storage.number: thing.storage for thing in generator.model.things.values()}
                for device in range(devices):
                    taken = sum(each.nbytes for each in live.values() if each.device == device)
                    assert taken <= room, f"case {case}"


def test_sizes_without_room_are_named() -> None:
    assert sizes_without_room(64 << 20) == ["memory above 64 MiB", "memory above 256 MiB"]
    assert sizes_without_room(512 << 20) == []


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_crew_uses_every_device(devices: int) -> None:
    generator = Generator("cuda", devices, 6)
    used = {
        generator.plans[operation.by].device for _ in range(devices) for operation, _ in generator.phase()
    }
    assert used == set(range(devices))
    assert len(generator.model.processes) <= devices + 2


def test_same_seed_generates_the_same_history() -> None:
    first, second, other = (list(Generator("cuda", 1, seed).phase()) for seed in (5, 5, 6))
    assert first == second != other


@pytest.mark.parametrize(
    ("before", "operation", "says"),
    [
        ((), Operation("open", B, on=1, makes=2), "no buffer 1"),
        (SHARED[:1], Operation("open", A, on=1, makes=2), "cannot open its own handle"),
        (SHARED, Operation("free", A, on=1), "open in another process"),
        (SHARED, Operation("end-context", A), "open in another process"),
        ((*SHARED, Operation("free-open", A, on=1)), Operation("read", B, on=2), "was freed"),
        ((*SHARED, Operation("kill", A)), Operation("read", B, on=2), "was freed"),
        ((*SHARED, Operation("kill", A)), Operation("allocate", A, makes=3, nbytes=1), "has ended"),
        (
            (*SHARED, Operation("create-context", B, makes=3)),
            Operation("open", B, on=1, makes=4),
            "open in another context",
        ),
        (SHARED, Operation("copy", B, on=2, of=2), "two buffers"),
        (SHARED, Operation("write", B, on=2, stamp=1, offset=60, length=5), "ends before"),
        (SHARED, Operation("fill", B, on=2, stamp=1, kind="32", offset=2, length=8), "whole units"),
        (UNDER_WAY, Operation("read", B, on=2), "under way"),
        (UNDER_WAY, Operation("destroy-event", B, on=5), "under way"),
        (EVENT, Operation("destroy-event", A, on=4), "another process has the event"),
        (EVENT, Operation("kill", A), "an event of the process is open"),
        (SHARED, Operation("rest", A), "still has objects"),
    ],
)
def test_illegal_operation_is_refused_with_the_reason(
    before: tuple[Operation, ...], operation: Operation, says: str
) -> None:
    model = Model(History("cuda", PLANS))
    for earlier in before:
        assert model.illegal(earlier) == ""
        model.apply(earlier)
    assert says in model.illegal(operation)


def test_every_rule_has_a_value_and_a_source_for_both_vendors() -> None:
    for case, of_backend in rules().items():
        assert of_backend.keys() == {"cuda", "hip"}, case
        for ruling in of_backend.values():
            assert ruling.value in (LEGAL, ILLEGAL, DECLARED)
            assert ruling.source


def test_every_operation_has_a_sentence() -> None:
    for do, primary in product(TYPES, (True, False)):
        said = step(Operation(do, 7, on=3, makes=4, of=5, nbytes=64, stamp=9), primary=primary)
        assert said.startswith("process 7 "), do
        assert "{" not in said, do
