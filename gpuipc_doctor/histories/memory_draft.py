"""A random history in the making: its processes and numbers, and the choices that operations make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from gpuipc_doctor.histories.memory_state import State, Thing
from gpuipc_doctor.histories.operations import Operation, ProcessPlan

STAYS = 0.75
"""Probability that the next operation is in the same process: switching costs a message."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Size of a history. ``room`` is in bytes for each device."""

    room: int = 64 << 20
    processes: int = 3
    """Maximum processes in a phase on one device; each further device adds one."""
    objects: int = 24
    wide: bool = False
    """Whether to add second streams, idle time, huge memory and reuse with other sizes."""
    composed: bool = False
    """Whether to begin with the composed histories of `composed_cases`."""


@dataclass
class Phase:
    """The weights of one phase."""

    weights: dict[str, float]
    sizes: tuple[int, ...]
    operations: int


class Draft(ABC):
    """A history so far, and its state."""

    def __init__(self, state: State, devices: int, seed: int, limits: Limits) -> None:
        self.state, self.devices, self.limits = state, devices, limits
        self.plans = state.plans
        self.random = Random(seed)
        self.vary = Random(f"vary {seed}")
        """Chooses the dimensions of an operation, so that a seed always gives the same operations."""
        self.processes: list[int] = []
        """The processes of the phase."""
        self.latest = 0
        self._numbers = 0

    @abstractmethod
    def attempt(self, do: str, by: int, **fields: Any) -> Iterator[Operation]:
        """This operation, if it is valid now."""

    def number(self) -> int:
        """A number for a new object or new contents."""
        self._numbers += 1
        return self._numbers

    def plan_process(self, device: int) -> int:
        """Plan a process; it exists from its first operation on."""
        number = len(self.plans) + 1
        self.plans[number] = ProcessPlan(device, self.random.random() < 0.5)
        return number

    def alive(self) -> list[int]:
        return [number for number in self.plans if number not in self.state.ended]

    def members(self, size: int, device: int | None = None) -> list[int]:
        """So many processes that live, the first on this device if one is named, as few as possible of them
        new."""
        alive = self.alive()
        first = [number for number in alive if device is None or self.plans[number].device == device][:1]
        chosen = first or [self.plan_process(device or 0)]
        chosen += [number for number in alive if number not in chosen][: size - 1]
        while len(chosen) < size:
            of_devices = Counter(self.plans[number].device for number in [*alive, *chosen])
            chosen.append(self.plan_process(min(range(self.devices), key=of_devices.__getitem__)))
        return chosen

    # -- choosing -----------------------------------------------------------------------------------------

    def process(self) -> int:
        if self.latest in self.processes and self.random.random() < STAYS:
            return self.latest
        return self.random.choice(self.processes)

    def pick(self, *kinds: str) -> Thing | None:
        """A random object of these kinds, preferably of the current process."""
        things = self.state.of_kind(*kinds)
        return self.one_of(things)

    def one_of(self, things: list[Thing]) -> Thing | None:
        """A random one of these objects, preferably of the current process; None if there is none."""
        own = [thing for thing in things if thing.by == self.latest]
        if own and self.random.random() < STAYS:
            things = own
        return self.random.choice(things) if things else None

    def usable(self, *kinds: str) -> Thing | None:
        """As `pick`, of memory that was not freed."""
        return self.one_of([thing for thing in self.state.of_kind(*kinds) if not thing.storage.freed])

    def elsewhere(self, do: str, thing: Thing) -> Iterator[Operation]:
        """The operation on another process's object."""
        others = [number for number in self.processes if number != thing.by]
        yield from self.attempt(do, self.random.choice(others), on=thing.number, makes=self.number())

    @property
    def is_full(self) -> bool:
        return len(self.state.things) >= self.limits.objects

    def has_room(self, nbytes: int) -> bool:
        live = {thing.storage.number: thing.storage.nbytes for thing in self.state.things.values()}
        return sum(live.values()) + nbytes <= self.limits.room and not self.is_full
