"""What a process loses with each repetition of an operation: descriptors, threads, addresses, host memory.

A role function goes through the rounds of a loop by `watched`, which notes after each what its process has;
`judge_processes` judges that, for every check. Only the last third of the rounds counts: by then a cache that
has a bound is full, and a driver has reserved what it needs. On an H200 that is 300 GB of addresses at once,
and some MiB of host memory with the first calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from gpuipc_doctor.api.trend import last_third, slope
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, Finding, Json, ProbeOutcome

Round = TypeVar("Round")

FEWEST_RISES, RISING = 4, 0.04
"""How often a figure must rise in the last third of a loop, and in which part of its rounds. A jump or two
are no loss with each repetition, such as the 64 MiB of addresses that the C library reserves for a thread."""

_ARENAS_BYTES = 5 << 19
"""Host memory over the last third of a loop that says nothing: two of the interpreter's arenas of 1 MiB.
Where they come worst they are a slope of up to 1.2 times what they come to."""

_HEAP_BYTES = 16 << 10
"""Growth of the heap with each repetition that says nothing. On an H100 no loop here has more than 308 B."""

_RECORD = "after each "
"""How the name of a record begins that `watched` makes. The operation follows."""


def watched(
    w: Worker, what: str, rounds: Iterable[Round], times: int = 1, *, but: Collection[str] = ()
) -> Iterator[Round]:
    """Go through the rounds of a loop, and note what this process has after each.

    ``what`` names the operation that a round repeats, ``times`` is how often it does. ``but``: figures that
    may grow.
    """
    samples: dict[str, list[int]] = {}
    for each in rounds:
        yield each
        for name, figure in figures_of_process().items():
            if name not in but:
                samples.setdefault(name, []).append(figure)
    last = {name: last_third(figures) for name, figures in samples.items()}
    w.record(**{f"{_RECORD}{what}": {"times": times, **last}})


def figures_of_process() -> dict[str, int]:
    """What this process has: ``descriptors``, ``threads``, bytes of ``addresses``, ``host`` memory, ``heap``.

    Host memory is private memory that can be written (``VmData``), stacks included; addresses are all others:
    what is reserved, and what a device driver maps. See proc_pid_status(5). The heap is what ``malloc`` has
    given out of host memory, to the byte. See mallinfo(3).
    """
    status = dict(
        re.findall(r"^(Threads|VmSize|VmData):\s+(\d+)", Path("/proc/self/status").read_text(), re.M)
    )
    host = int(status["VmData"]) << 10
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(status["Threads"]),
        "addresses": (int(status["VmSize"]) << 10) - host,
        "host": host,
        "heap": _heap(),
    }


def _heap() -> int:
    """Bytes that ``malloc`` has given out; 0 where the C library does not count them."""
    if (info := _mallinfo()) is None:
        return 0
    figures = info().figures
    return int(figures[4] + figures[7])  # hblkhd, uordblks


@cache
def _mallinfo() -> Callable[[], Any] | None:
    import ctypes

    library = ctypes.CDLL(None)
    for name, kind in (("mallinfo2", ctypes.c_size_t), ("mallinfo", ctypes.c_uint)):  # glibc 2.33, before
        if hasattr(library, name):
            info = getattr(library, name)
            info.restype = type(name, (ctypes.Structure,), {"_fields_": [("figures", kind * 10)]})
            return info  # type: ignore[no-any-return]
    return None


@dataclass(frozen=True, slots=True)
class _Loss:
    """How growth of one figure is judged."""

    conclude: Callable[..., Finding]
    key: str
    says: str
    remedy: str


_LOSSES: Mapping[str, _Loss] = {
    "descriptors": _Loss(
        Finding.fail,
        "descriptors-left",
        "{role}: open descriptors grow by {growth} with each {what}",
        "raise the limit of open files (ulimit -n), or restart processes before they reach it",
    ),
    "addresses": _Loss(
        Finding.fail,
        "addresses-left",
        "{role}: reserved addresses grow by {growth:bytes} with each {what}",
        "restart processes before they reach a limit (ulimit -v, vm.max_map_count)",
    ),
    "threads": _Loss(
        Finding.warn,
        "threads-left",
        "{role}: threads grow by {growth} with each {what}",
        "restart processes before they reach the limit of threads (ulimit -u, pids.max)",
    ),
    "host": _Loss(
        Finding.warn,
        "host-memory-left",
        "{role}: host memory grows by {growth:bytes} with each {what}",
        "restart processes before the node's memory is full",
    ),
}


def judge_processes(done: ProbeOutcome) -> Iterator[Finding]:
    """Judge what processes lost with each repetition: a finding for each kind of loss, the largest first."""
    lost: list[dict[str, Json]] = [
        {"role": role, "what": record.removeprefix(_RECORD), **_lost(samples)}
        for role, records in done.records.items()
        for record, samples in records.items()
        if record.startswith(_RECORD)
    ]
    for name, loss in _LOSSES.items():
        growths = sorted((one for one in lost if one[name]), key=lambda one: -one[name])
        values = [{"role": one["role"], "what": one["what"], "growth": one[name]} for one in growths]
        if values:
            also = [Evidence.seen(loss.says, **other) for other in values[1:]]
            yield loss.conclude(loss.key, loss.says, *also, remedy=loss.remedy, **values[0])


def _lost(samples: Mapping[str, Json]) -> dict[str, float]:
    """Growth of each figure with each repetition, 0 where it says nothing."""
    times: int = samples["times"]

    def growth(name: str, noise: float = 0.0) -> float:
        return _growth(samples.get(name, ()), noise) / times

    lost = {name: growth(name) for name in ("descriptors", "threads")}
    if lost["threads"]:
        lost |= {"addresses": 0, "host": 0}  # their stacks and arenas
    else:
        lost |= {"addresses": growth("addresses"), "host": 0}
        if host := samples.get("host"):  # not where it may grow
            arenas = growth("host", _ARENAS_BYTES / len(host))
            lost["host"] = max(arenas, growth("heap", _HEAP_BYTES * times))
    return {name: round(each, 2) for name, each in lost.items()}


def _growth(samples: Sequence[int], noise: float) -> float:
    """Growth from one sample to the next, 0 where it is not above ``noise``."""
    rises = sum(later > earlier for earlier, later in pairwise(samples))
    if rises < max(FEWEST_RISES, RISING * len(samples)):
        return 0.0
    growth = slope(range(len(samples)), samples)
    return growth.estimate if growth.low > noise else 0.0
