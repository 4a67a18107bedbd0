"""What a history loses: figures of processes at rest that grow with each repetition of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.api.trend import last_third, slope
from gpuipc_doctor.histories.operations import History, Operation

NOISE = {"descriptors": 0, "threads": 0, "addresses": 0, "device": 0, "host": 5 << 19}
"""Figure → growth over the last third of the repetitions that says nothing. `api.process_ledger` says why."""

SUSPECT = {"descriptors": 1, "threads": 1, "addresses": 64 << 10, "device": 64 << 10, "host": 1 << 20}
"""Figure → the rise from one rest to the next for which an epoch is repeated."""

WORDS = {
    "descriptors": "open descriptors",
    "threads": "threads",
    "addresses": "reserved addresses",
    "device": "used device memory",
    "host": "host memory",
}

BYTES = {"addresses", "device", "host"}

TRIED, CERTAIN = 12, 24
"""Repetitions while a history is shortened, and before a leak is believed."""

_NEXT = 1 << 20
"""From one repetition to the next, numbers of objects and writes differ by so much."""


class Watch:
    """What processes had when they rested last, as a long history goes on."""

    def __init__(self) -> None:
        self._latest: dict[int, Mapping[str, int]] = {}
        self._risen: set[str] = set()

    def risen(self, rests: Sequence[tuple[int, Mapping[str, int]]]) -> list[str]:
        """The figures that have risen twice in a row: drivers reserve something once, for what is new."""
        same = {by for by, _ in rests} == self._latest.keys()
        risen = {
            name
            for by, figures in rests
            for name, least in SUSPECT.items()
            if by in self._latest and (same or name != "device")
            if figures[name] - self._latest[by][name] >= least
        }
        self._latest = dict(rests)
        before, self._risen = self._risen, risen
        return [name for name in NOISE if name in risen & before]


def repeated(history: History) -> History:
    """The operations one after the other, as often as the history says; who was killed has a successor."""
    killed = {operation.by for operation in history.operations if operation.do == "kill"}
    alive = [number for number in history.processes if number not in killed]
    plans = dict(history.processes)
    most = max(plans)

    def one(number: int) -> Iterator[Operation]:
        offset = number * _NEXT
        for operation in history.operations:
            if operation.do == "rest":
                continue
            by = operation.by + (number * most if operation.by in killed else 0)
            plans[by] = history.processes[operation.by]
            yield replace(
                operation,
                by=by,
                on=operation.on and operation.on + offset,
                of=operation.of and operation.of + offset,
                makes=operation.makes and operation.makes + offset,
                stamp=operation.stamp and operation.stamp + offset,
            )
        for by in alive:
            yield Operation("rest", by)

    operations = tuple(operation for number in range(history.times) for operation in one(number))
    return replace(history, processes=plans, operations=operations, times=1)


def growth(rests: Sequence[tuple[int, Mapping[str, int]]], name: str, times: int) -> tuple[int, float]:
    """(process, growth of a figure with each repetition) of the one that grew most; (0, 0) where none did."""
    grew = (0, 0.0)
    for process in {by for by, _ in rests}:
        figures = [of[name] for by, of in rests if by == process]
        if len(figures) == times:
            last = last_third(figures)
            found = slope(range(len(last)), last)
            if found.low > NOISE[name] / len(last) and found.estimate > grew[1]:
                grew = (process, found.estimate)
    return grew
