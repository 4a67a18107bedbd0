"""Random valid messages between ranks, in phases with different weights; none outlasts its phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gpuipc_doctor.histories.generator import SWARM
from gpuipc_doctor.histories.group_cases import (
    ATOMIC,
    CAN_BE_DERIVED,
    CAN_BE_IN_PLACE,
    FENCE,
    FLUSH,
    IN_PLACE,
    LOCK,
    MPI_TYPES,
    ONE_SIDED,
)
from gpuipc_doctor.histories.group_cases import DERIVED as OF_DERIVED_TYPE
from gpuipc_doctor.histories.message_draft import MIDDLE, Draft, Phase
from gpuipc_doctor.histories.message_draws import DRAWS
from gpuipc_doctor.histories.message_memories import DEVICE
from gpuipc_doctor.histories.message_model import Model
from gpuipc_doctor.histories.message_state import WORLD, Expected
from gpuipc_doctor.histories.mpi_library_limits import DERIVED
from gpuipc_doctor.histories.operations import MPI, History, Operation, ProcessPlan

SMALL = (1, 2, 4, 8, 16, 32, 63, 64, 128, 256, 512, 1000, 1024)
LARGE = (256 << 10, 1 << 20, (1 << 20) + 40)
HUGE = (4 << 20,)
"""Message sizes in bytes, beside those of `MIDDLE`."""

PHASE_OPERATIONS = (60, 160)

COMMON_PHASES = 18
"""Number of first phases that are the same for every library, given the same seed and number of ranks."""

MOST_ROUNDS = 1000
"""Maximum rounds of matching pending operations at a phase's end; a few are enough."""

GROUP_CALL = 0.05
"""Probability that a call of all ranks follows an operation."""

GROUP_SIZES = (8, 1000, 4096, 16_384, 65_544)
"""Bytes of the largest buffer in these calls."""


@dataclass
class Generator:
    """Makes a history, phase by phase; equal arguments give equal histories."""

    backend: str
    ranks: int
    seed: int
    edges: Sequence[int] = ()
    """Sizes in bytes at which the library changes its protocol."""
    huge: bool = False
    lacks: tuple[str, ...] = ()
    """Unsupported features to avoid, see `mpi_library_limits.lacks`."""
    group_calls: tuple[str, ...] = ()
    """Calls of all ranks to make, see `group_calls`."""
    memories: tuple[str, ...] = (DEVICE,)
    """Kinds of memory for these calls, see `message_memories`."""
    plans: dict[int, ProcessPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._aside = Random(f"group calls {self.seed}")
        """Draws the calls of all ranks, so that all other operations are the same with and without them."""
        self._dealt_words: dict[tuple[str, ...], list[str]] = {}
        self._dealt_sizes: dict[tuple[int, ...], list[int]] = {}
        self.plans = {number: ProcessPlan() for number in range(1, self.ranks + 1)}
        self.model = Model(History(self.backend, self.plans, check=MPI))
        self._draft = Draft(self.model, self.random, self.lacks, huge=self.huge)
        self._phases = 0

    @property
    def history(self) -> History:
        """A history of this generator's ranks, still without operations."""
        return History(self.backend, self.plans, seed=self.seed, check=MPI)

    def phase(self) -> list[tuple[Operation, Expected]]:
        """Generate one phase: its operations with the expected results."""
        draft, phase = self._draft, self._plan()
        draft.made, draft.phase = [], phase
        of_all_ranks = 0
        while len(draft.made) - of_all_ranks < phase.operations:
            self._step(phase)
            of_all_ranks += self._group_call()
        self._end()
        return draft.made

    def _plan(self) -> Phase:
        random = self.random
        self._phases += 1
        is_common = self._phases <= COMMON_PHASES
        weights = self._weigh(is_common)
        kinds = [SMALL, SMALL, SMALL + MIDDLE, MIDDLE, MIDDLE + LARGE]
        around = tuple(edge + step for edge in self.edges if edge < LARGE[-1] for step in (-1, 0, 1))
        if around and not is_common:
            kinds += [around] * 3
        if self.huge:
            kinds.append(LARGE + HUGE)
        sizes = self._deal_sizes(random.choice(kinds), random.randint(2, 6))
        return Phase(
            weights,
            (*sizes, 0) if random.random() < 0.2 else sizes,
            tuple(range(random.choice((1, 1, 2, 3)))),
            random.randint(*PHASE_OPERATIONS),
            on_device=random.choice((0.3, 0.5, 0.8, 1.0, 1.0)),
            derived=random.choice((0.0, 0.0, 0.2, 0.6)),
            any_source=random.choice((0.0, 0.0, 0.2, 0.6)) if self.ranks > 2 else 0.1,
            any_tag=random.choice((0.0, 0.2, 0.5)),
            longer=random.choice((0.0, 0.2, 0.5)),
        )

    def _weigh(self, is_common: bool) -> tuple[float, ...]:
        """The weight of each draw in a phase."""
        weights = [draw.weight * self.random.choice(SWARM) for draw in DRAWS]
        for place, draw in enumerate(DRAWS):
            if draw.always:
                weights[place] = draw.weight * self.random.choice((0.5, 1, 2))
            if not is_common:
                weights[place] += draw.more
        return tuple(weights)

    def _deal_sizes(self, sizes: tuple[int, ...], number: int) -> tuple[int, ...]:
        """``number`` sizes; no size repeats before all sizes have been used."""
        deck, dealt = self._dealt_sizes.setdefault(sizes, []), list[int]()
        while len(dealt) < min(number, len(set(sizes))):
            if not deck:
                deck += self.random.sample(sizes, len(sizes))
            if (size := deck.pop()) not in dealt:
                dealt.append(size)
        return tuple(dealt)

    def _step(self, phase: Phase) -> None:
        if self.model.blocked and self.random.random() < 0.5:
            self._draft.resolve()
            return
        (drawn,) = self.random.choices(DRAWS, phase.weights)
        drawn.draw(self._draft)

    def _group_call(self) -> bool:
        """Add a call of all ranks, or none; returns whether there is one."""
        if not self.group_calls or self._aside.random() >= GROUP_CALL:
            return False
        aside = self._aside
        call = self._deal_word(self.group_calls)
        is_one_sided = call in (*ONE_SIDED, *ATOMIC)
        forms = [FENCE, LOCK, FLUSH] if is_one_sided else [""]
        if call in CAN_BE_IN_PLACE and not is_one_sided:
            forms.append(IN_PLACE)
        if call in CAN_BE_DERIVED and DERIVED not in self.lacks:
            forms.append(OF_DERIVED_TYPE)
        memory = self._deal_word(self.memories) if aside.random() < 0.5 else DEVICE
        kind = "|".join((call, aside.choice(list(MPI_TYPES)), memory, aside.choice(forms)))
        do = "one-sided" if is_one_sided else "collective"
        nbytes, stamp = aside.choice(GROUP_SIZES), aside.randrange(1, 1 << 20)
        return self._draft.add(Operation(do, 1, nbytes=nbytes, stamp=stamp, kind=kind))

    def _deal_word(self, words: tuple[str, ...]) -> str:
        """One of these words; none comes twice before all have come."""
        deck = self._dealt_words.setdefault(words, [])
        if not deck:
            deck += self._aside.sample(words, len(words))
        return deck.pop()

    def _end(self) -> None:
        """Match all messages, complete all requests and free most buffers."""
        draft = self._draft
        self._match_all()
        for number, request in list(self.model.requests.items()):
            draft.add(Operation("free-request", request.by, on=number))
        for number, buffer in list(self.model.buffers.items()):
            if draft.chance(0.3):
                draft.add(Operation("free", buffer.by, on=number))
        for number in list(self.model.communicators):
            if number != WORLD and draft.chance(0.5):
                draft.add(Operation("free-communicator", 1, on=number))

    def _match_all(self) -> None:
        draft, barrier = self._draft, Operation("barrier", 1)
        for _ in range(MOST_ROUNDS):
            if not (self.model.unmatched() or self.model.blocked or self.model.matched):
                break
            for part in self.model.waiting:
                draft.match(part)
            draft.resolve()
            draft.wait_for_all()
            draft.add(barrier)
        else:
            raise RuntimeError("no rank has a valid next operation, but messages are incomplete")
        draft.wait_for_all()
        draft.add(barrier)
