"""Leaks: usage figures of idle processes that grow with each repetition of a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.api.slopes import last_third, slope
from gpuipc_doctor.histories.operations import IPC, History, Operation

NOISE = {"descriptors": 0, "threads": 0, "addresses": 0, "device": 0, "host": 5 << 19}
"""Figure → growth over the last third of the repetitions that counts as noise; see `api.process_leaks`."""

SUSPECT = {"descriptors": 1, "threads": 1, "addresses": 64 << 10, "device": 64 << 10, "host": 1 << 20}
"""Figure → rise since the last idle time from which the figure is suspicious. The phase is repeated if the
figure is `EXACT`, or rose in two phases in a row."""

EXACT = ("device", "descriptors", "threads")
"""Figures that one rise makes suspicious: operations alone change them."""

REPEATED = 2
"""Times that processes repeat a phase in which a figure rose, before fresh ones do. A driver reserves memory
and addresses when a call is first made; a leak makes them rise each time."""

WORDS = {
    "descriptors": "open descriptors",
    "threads": "threads",
    "addresses": "reserved addresses",
    "device": "used device memory",
    "host": "host memory",
}

BYTES = {"addresses", "device", "host"}

TRIED, CERTAIN = 12, 24
"""Number of repetitions while a history is shrunk, and before a leak is reported."""

IDLE_S = 1.0
"""Seconds in which used memory must not change as fast by itself."""

FEWEST, SPENT_BYTES = 4, 2 << 30
"""Fewest repetitions that show growth, and device memory that the leaks of one replay may take: some stay
after the processes have ended, and dozens of replays follow."""

_NEXT = 1 << 20
"""Distance between the numbers of objects and writes in successive repetitions."""


class Watch:
    """Usage of idle processes over a long history."""

    def __init__(self) -> None:
        self._latest: dict[int, Mapping[str, int]] = {}

    def rises(self, rests: Sequence[tuple[int, Mapping[str, int]]]) -> dict[str, int]:
        """Suspicious figure → its rise from the last but one idle time to the last, of the process with the
        largest.

        Used device memory counts only if the same processes idled both times: each context takes some.
        """
        times = [self._latest]
        for by, figures in rests:
            if by in times[-1] or len(times) == 1:
                times.append({})
            times[-1][by] = figures
        before, self._latest = times[-2:] if len(times) > 1 else (self._latest, self._latest)
        same = before.keys() == self._latest.keys()
        both = before.keys() & self._latest.keys()
        return {
            name: rise
            for name, least in SUSPECT.items()
            if same or name != "device"
            if (rise := max((self._latest[by][name] - before[by][name] for by in both), default=0)) >= least
        }


def changed(rests: Sequence[tuple[int, Mapping[str, int]]]) -> int:
    """Bytes by which used device memory changed between a process's first and its last idle time."""
    first, last = {by: of["device"] for by, of in reversed(rests)}, {by: of["device"] for by, of in rests}
    return max(abs(last[by] - first[by]) for by in first)


def repetitions(name: str, rise: int) -> int:
    """Number of repetitions that show whether a figure grows, if it rose by ``rise`` in one."""
    return min(TRIED, max(FEWEST, SPENT_BYTES // rise)) if name == "device" else TRIED


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
            yield replace(operation.renumbered(offset.__add__), by=by)
        for by in alive if history.check == IPC else ():
            yield Operation("rest", by)

    operations = tuple(operation for number in range(history.times) for operation in one(number))
    return replace(history, processes=plans, operations=operations, times=1)


def growth(rests: Sequence[tuple[int, Mapping[str, int]]], name: str, times: int) -> tuple[int, float]:
    """(process, growth per repetition) of the process that grew most; (0, 0) if none grew.

    The last third of the repetitions counts, but at least `FEWEST` of them.
    """
    grew = (0, 0.0)
    for process in {by for by, _ in rests}:
        figures = [of[name] for by, of in rests if by == process]
        if len(figures) == times:
            last = figures[-max(FEWEST, len(last_third(figures))) :]
            found = slope(range(len(last)), last)
            if found.low > NOISE[name] / len(last) and found.estimate > grew[1]:
                grew = (process, found.estimate)
    return grew
