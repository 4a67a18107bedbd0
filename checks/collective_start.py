"""Start and end communicators of NCCL or RCCL repeatedly: seconds, and what a process loses by it.

A first collective that takes a minute, and memory, descriptors, threads or files in /dev/shm that stay when a
communicator is destroyed, are reported of real libraries. Each of four cycles, in ``soak`` of sixteen, starts
a communicator of all ranks, verifies one sum and destroys it, in ``soak`` every second time by aborting it.
Buffers of the library itself are registered, used and deregistered.

In ``soak`` a rank is also killed while the others are in an operation: they abort, and the next start must
succeed and leave nothing behind.

All collective checks share one launch; the killed rank has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import ClassVar

from gpuipc_doctor.api import (
    Context,
    Evidence,
    Finding,
    Json,
    Measurement,
    Probe,
    ProbeOutcome,
    Subject,
)
from gpuipc_doctor.collective import killed_rank
from gpuipc_doctor.collective.communicators import LEAST_DEVICE, growing
from gpuipc_doctor.collective.killed_rank import be_killed, outlive
from gpuipc_doctor.collective.launch import CollectiveCheck, by_rank, take_part
from gpuipc_doctor.collective.transport_switches import CONTROLS

__all__ = ["be_killed", "outlive", "take_part"]

SLOW_S = 10.0
"""Seconds of a first start from which it is reported. On eight H200s it takes 3 s."""

LEFT: Mapping[str, tuple[str, str, int]] = {
    "device": ("device-left", "{growth:mib} of device memory", LEAST_DEVICE),
    "descriptors": ("descriptors-left", "{growth} descriptors", 1),
    "threads": ("threads-left", "{growth} threads", 1),
    "shared": ("shared-left", "{growth} files in /dev/shm", 1),
}
"""Figure → key of the finding, how the growth is said, and the least growth that counts."""


class CollectiveStart(CollectiveCheck):
    id = "collective-start"
    title = "NCCL or RCCL starts in time and leaves nothing behind"
    subject = Subject.COLLECTIVES
    workarounds: ClassVar = CONTROLS

    def probes(self, ctx: Context) -> Iterable[Probe | Finding]:
        for planned in super().probes(ctx):
            yield planned
            if isinstance(planned, Probe):
                yield from killed_rank.after_launch(ctx, planned)

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        return _after_kill(done) if done.probe == killed_rank.NAME else self._of_launch(done)

    def _of_launch(self, done: ProbeOutcome) -> Iterable[Finding]:
        ranks, first = by_rank(done), done.records["rank 0"]
        bad = []
        if wrong := [name for name, rank in ranks.items() if rank["wrong_starts"]]:
            says = "the first sum of a new communicator was wrong on {wrong}"
            bad.append(Finding.fail("wrong-first-sum", says, wrong=wrong))
        if wrong := [name for name, rank in ranks.items() if "wrong" in rank["registered"]]:
            says = "the sum in registered buffers was wrong on {wrong}"
            bad.append(Finding.fail("wrong-when-registered", says, wrong=wrong))
        for figure, (key, amount, least) in LEFT.items():
            grown = {
                name: growth
                for name, rank in ranks.items()
                if (growth := growing(rank["usage"].get(figure, ()), least))
            }
            if grown:
                says = f"each communicator left {amount} behind on {{where}}"
                bad.append(
                    Finding.fail(
                        key,
                        says,
                        *(
                            Evidence.seen(
                                "{rank}: {samples} after each",
                                rank=name,
                                samples=ranks[name]["usage"][figure],
                            )
                            for name in grown
                        ),
                        remedy="keep communicators instead of making new ones; update the library",
                        growth=max(grown.values()),
                        where=list(grown),
                    )
                )
        start_s, collective_s = first["first"]
        cycle_s = median(first["cycles"])
        values: dict[str, Json] = {
            "start": _short(start_s),
            "collective": _short(collective_s),
            "cycle": _short(cycle_s),
            "ranks": f"{len(ranks)} ranks" if len(ranks) > 1 else "one rank",
        }
        measured = [Measurement("first start of a communicator", start_s + collective_s, "s")]
        figures = "first communicator {start:s}, its first all-reduce {collective:s}; a later one {cycle:s}"
        if start_s + collective_s > SLOW_S:
            bad.append(
                Finding.warn(
                    "slow-start",
                    f"starting is slow: {figures}",
                    remedy="look in the library's log for what it waits for: name resolution, adapters "
                    "without a link, a topology that it cannot read",
                    measured=measured,
                    **values,
                )
            )
        yield from bad or [
            Finding.ok(
                "started",
                f"{{cycles}} communicators of {{ranks}} made and destroyed, nothing left; {figures}",
                *([Evidence.seen("{said}", said=first["registered"])] if first["registered"] else []),
                measured=measured,
                cycles=len(first["cycles"]) + 1,
                **values,
            )
        ]


def _after_kill(done: ProbeOutcome) -> Iterable[Finding]:
    ranks = by_rank(done)
    bad = []
    if wrong := [name for name, rank in ranks.items() if rank["wrong"]]:
        bad.append(
            Finding.fail(
                "wrong-first-sum", "the first sum after a rank was killed was wrong on {wrong}", wrong=wrong
            )
        )
    for figure, (key, amount, _) in LEFT.items():
        if left := {name: rank["left"][figure] for name, rank in ranks.items() if figure in rank["left"]}:
            says = f"a killed rank and the others' abort left {amount} behind on {{where}}"
            remedy = "after a job was killed, look for what stays (`gpuipc-doctor memory`, ls /dev/shm)"
            bad.append(Finding.fail(key, says, remedy=remedy, growth=max(left.values()), where=list(left)))
    yield from bad or [
        Finding.ok(
            "outlived",
            "a rank of {ranks} was killed in an all-reduce: the others aborted in {abort:s}, the next "
            "communicator of all started in {start:s}, nothing left",
            ranks=len(ranks),
            abort=_short(max(rank["abort_s"] for rank in ranks.values())),
            start=_short(max(rank["start_s"] for rank in ranks.values())),
        )
    ]


def _short(seconds: float) -> float:
    return float(f"{seconds:.2g}")


CHECK = CollectiveStart()
