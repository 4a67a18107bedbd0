"""Losses of a process per repetition of an operation: descriptors, threads, addresses, host memory.

A role function iterates with `watched`, which records its process's usage after each round; `judge_processes`
judges that, for every check. Only the last third of the rounds counts: by then a bounded cache is full and
the driver's reservations are made (on an H200, 300 GB of addresses at once and some MiB of host memory with
the first calls).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from gpuipc_doctor.api.slopes import last_third, slope
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Evidence, Finding, Json
from gpuipc_doctor.probe_types import ProbeOutcome

Round = TypeVar("Round")

FEWEST_RISES, RISING = 4, 0.04
"""Minimum rises of a figure in the last third of a loop, as a number and as a fraction of the rounds. Fewer
rises, such as one of 64 MiB of addresses for a new thread, are no loss per repetition."""

_ARENAS_BYTES = 5 << 19
"""Growth of host memory over the last third of a loop to ignore: two of Python's 1 MiB arenas, with a margin
of 25 %."""

_HEAP_BYTES = 16 << 10
"""Growth of the heap per repetition to ignore. The checks' own loops grow it by 308 B at most (H100)."""

_STATUS = re.compile(rb"^(Threads|VmSize|VmData):\s+(\d+)", re.M)


def watched(
    w: Worker, what: str, rounds: Iterable[Round], times: int = 1, *, but: Collection[str] = ()
) -> Iterator[Round]:
    """Iterate over the rounds of a loop, and record the process's usage after each measured round.

    ``what`` names the operation that a round repeats, ``times`` is the number of repetitions per round. The
    figures named in ``but`` may grow.
    """
    numbers = range(len(rounds) if isinstance(rounds, Sized) else 0)
    uncounted = set(numbers).difference(last_third(numbers))  # this takes as long as several driver calls
    samples: dict[str, list[int]] = {}
    for number, each in enumerate(rounds):
        yield each
        if number in uncounted:
            continue
        for name, figure in figures_of_process().items():
            if name not in but:
                samples.setdefault(name, []).append(figure)
    last = {name: figures if numbers else last_third(figures) for name, figures in samples.items()}
    w.keep_usage(what, {"times": times, **last})


def figures_of_process() -> dict[str, int]:
    """This process's ``descriptors``, ``threads``, bytes of ``addresses``, ``host`` memory and ``heap``.

    Host memory is private writable memory (``VmData``), including stacks; addresses are all other address
    space: reservations and mappings of device drivers. See proc_pid_status(5). The heap is the bytes handed
    out by ``malloc``, see mallinfo(3). A figure that this kernel does not show is missing.
    """
    figures = {"heap": _heap()}
    with suppress(OSError):
        figures["descriptors"] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # makes no objects of them
    with suppress(OSError):
        found = dict(_STATUS.findall(Path("/proc/self/status").read_bytes()))
        status = {name: int(value) for name, value in found.items()}
        if b"Threads" in status:
            figures["threads"] = status[b"Threads"]
        if b"VmData" in status:
            figures["host"] = status[b"VmData"] << 10
            if b"VmSize" in status:
                figures["addresses"] = (status[b"VmSize"] - status[b"VmData"]) << 10
    return figures


def _heap() -> int:
    """Bytes handed out by ``malloc``; 0 if the C library does not count them."""
    if (info := _mallinfo()) is None:
        return 0
    figures = info().figures
    return int(figures[4] + figures[7])  # hblkhd, uordblks


@cache
def _mallinfo() -> Callable[[], Any] | None:
    import ctypes

    library = ctypes.CDLL(None)
    for name, kind in (("mallinfo2", ctypes.c_size_t), ("mallinfo", ctypes.c_uint)):  # before glibc 2.33
        if hasattr(library, name):
            info = getattr(library, name)
            info.restype = type(name, (ctypes.Structure,), {"_fields_": [("figures", kind * 10)]})
            return info  # type: ignore[no-any-return]
    return None


@dataclass(frozen=True, slots=True)
class _Loss:
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
        "restart long jobs before their processes reach ulimit -v or vm.max_map_count; update the driver",
    ),
    "threads": _Loss(
        Finding.warn,
        "threads-left",
        "{role}: threads grow by {growth} with each {what}",
        "restart processes before they reach the thread limit (ulimit -u, pids.max)",
    ),
    "host": _Loss(
        Finding.warn,
        "host-memory-left",
        "{role}: host memory grows by {growth:bytes} with each {what}",
        "restart processes before the node's memory is full",
    ),
}


def judge_processes(done: ProbeOutcome) -> Iterator[Finding]:
    """A finding for each kind of loss per repetition in the roles' processes, largest first."""
    lost: list[dict[str, Json]] = [
        {"role": name, "what": what, **_lost(samples)}
        for name, role in done.roles.items()
        for what, samples in role.usage.items()
    ]
    for name, loss in _LOSSES.items():
        growths = sorted((loss for loss in lost if loss[name]), key=lambda one: -one[name])
        values = [
            {"role": growth["role"], "what": growth["what"], "growth": growth[name]} for growth in growths
        ]
        if values:
            also = [Evidence.seen(loss.says, **other) for other in values[1:]]
            yield loss.conclude(loss.key, loss.says, *also, remedy=loss.remedy, **values[0])


def _lost(samples: Mapping[str, Json]) -> dict[str, float]:
    """Growth of each figure per repetition, 0 if insignificant."""
    times: int = samples["times"]

    def growth(name: str, noise: float = 0.0) -> float:
        return _growth(samples.get(name, ()), noise) / times

    lost = {name: growth(name) for name in ("descriptors", "threads")}
    if lost["threads"]:
        lost |= {"addresses": 0, "host": 0}  # threads' stacks and arenas
    else:
        lost |= {"addresses": growth("addresses"), "host": 0}
        if host := samples.get("host"):  # not where it may grow
            arenas = growth("host", _ARENAS_BYTES / len(host))
            lost["host"] = max(arenas, growth("heap", _HEAP_BYTES * times))
    return {name: round(each, 2) for name, each in lost.items()}


def _growth(samples: Sequence[int], noise: float) -> float:
    """Growth from one sample to the next, 0 if not above ``noise``."""
    rises = sum(later > earlier for earlier, later in pairwise(samples))
    if rises < max(FEWEST_RISES, RISING * len(samples)):
        return 0.0
    growth = slope(range(len(samples)), samples)
    return growth.estimate if growth.low > noise else 0.0
