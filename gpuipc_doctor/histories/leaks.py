"""Leaks: usage figures of idle processes that grow with each repetition of a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.api.trend import last_third, slope
from gpuipc_doctor.histories.operations import IPC, History, Operation

NOISE = {"descriptors": 0, "threads": 0, "addresses": 0, "device": 0, "host": 5 << 19}
"""Figure → growth over the last third of the repetitions that counts as noise; see `api.process_ledger`."""

SUSPECT = {"descriptors": 1, "threads": 1, "addresses": 64 << 10, "device": 64 << 10, "host": 1 << 20}
"""Figure → rise since the last idle time from which the figure is suspicious. The epoch is then repeated."""

WORDS = {
    "descriptors": "open descriptors",
    "threads": "threads",
    "addresses": "reserved addresses",
    "device": "used device memory",
    "host": "host memory",
}

BYTES = {"addresses", "device", "host"}

TRIED, CERTAIN = 12, 24
"""Number of repetitions while a history is shrunk, and number before a leak is reported."""

_NEXT = 1 << 20
"""Distance between the numbers of objects and writes in successive repetitions."""


class Watch:
    """Usage of idle processes over a long history."""

    def __init__(self) -> None:
        self._latest: dict[int, Mapping[str, int]] = {}
        self._risen: set[str] = set()

    def risen(self, rests: Sequence[tuple[int, Mapping[str, int]]]) -> list[str]:
        """The figures that rose twice in a row. A single rise can be memory that the driver reserves."""
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
    """The operations, repeated as often as the history states; killed processes are replaced by new ones."""
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
                within=operation.within and operation.within + offset,
            )
        for by in alive if history.check == IPC else ():
            yield Operation("rest", by)

    operations = tuple(operation for number in range(history.times) for operation in one(number))
    return replace(history, processes=plans, operations=operations, times=1)


def growth(rests: Sequence[tuple[int, Mapping[str, int]]], name: str, times: int) -> tuple[int, float]:
    """(process, growth per repetition) of the process that grew most; (0, 0) if none grew."""
    grew = (0, 0.0)
    for process in {by for by, _ in rests}:
        figures = [of[name] for by, of in rests if by == process]
        if len(figures) == times:
            last = last_third(figures)
            found = slope(range(len(last)), last)
            if found.low > NOISE[name] / len(last) and found.estimate > grew[1]:
                grew = (process, found.estimate)
    return grew
