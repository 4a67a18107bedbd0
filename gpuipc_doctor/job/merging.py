"""Merge the reports of a job's nodes into one, with one verdict on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job.document import GROWTH, Difference, JobReport, Rank
from gpuipc_doctor.job.gpu_waits import Evidence
from gpuipc_doctor.job.surroundings import with_launcher
from gpuipc_doctor.job.verdict import judge, with_growth
from gpuipc_doctor.job.waits import Activity, Kind
from gpuipc_doctor.vendors import VENDORS

BINDING = frozenset().union(*(vendor.hides for vendor in VENDORS))
"""Variables by which launchers assign a GPU to each rank."""


def merge(reports: Sequence[JobReport], silent: Mapping[str, str]) -> JobReport:
    """Merge the nodes' reports. ``silent``: nodes without a report → reason.

    A rank missing from all reports counts as ended only if every node has answered.
    """
    found = _numbered(rank for report in reports for rank in report.ranks)
    ranks = tuple(sorted(found, key=lambda rank: rank.rank))
    growth = tuple(each for report in reports for each in report.growth)
    size = max((report.size for report in reports if report.size), default=None)
    messages = _together(report.messages for report in reports)
    unable = {f"{what} on {_host(report)}": why for report in reports for what, why in report.unable.items()}
    unwatched = {what: why for what, why in unable.items() if what.startswith(GROWTH)}
    calls = max((report.collectives for report in reports), key=len)
    moves = any(report.collectives_move for report in reports)
    seconds = max(report.seconds for report in reports)
    evidence = Evidence(() if moves else calls, moves, watts(ranks), seconds, busy(ranks))
    activities = {
        rank.rank: Activity(Kind(rank.doing), rank.operation, rank.path, rank.reason, rank.works)
        for rank in ranks
    }
    stuck = judge(activities, None if silent else size, messages, evidence)
    launcher = next((report.stopped_launcher for report in reports if report.stopped_launcher), "")
    stuck = with_launcher(stuck, launcher)
    return JobReport(
        taken=min(report.taken for report in reports),
        seconds=seconds,
        looks=min(report.looks for report in reports),
        size=size,
        ranks=ranks,
        verdict=with_growth(stuck, growth, unwatched),
        messages=messages,
        collectives=evidence.calls,
        collectives_move=moves,
        unable={**unable, **silent},
        watched_s=max(report.watched_s for report in reports),
        growth=growth,
        ras=tuple(f"{_host(report)}: {line}" for report in reports for line in report.ras),
        stopped=any(report.stopped for report in reports),
        stopped_launcher=launcher,
        notes=tuple(f"{_host(report)}: {line}" for report in reports for line in report.notes),
        differences=tuple(differences(ranks)),
        memory_files=tuple(file for report in reports for file in report.memory_files),
    )


def watts(ranks: Iterable[Rank]) -> dict[int, float]:
    """Rank → power of its GPU, if known."""
    return {rank.rank: rank.gpu_watts for rank in ranks if rank.gpu_watts is not None}


def busy(ranks: Iterable[Rank]) -> dict[int, int]:
    """Rank → utilisation of its GPU in percent, if known."""
    return {rank.rank: rank.gpu_busy for rank in ranks if rank.gpu_busy is not None}


def _together(moved: Iterable[bool | None]) -> bool | None:
    """Whether messages move on any node; None if this is unknown on every node."""
    known = [each for each in moved if each is not None]
    return any(known) if known else None


def differences(ranks: Sequence[Rank]) -> Iterator[Difference]:
    """Settings and versions that differ between ranks."""
    for kind in ("settings", "versions"):
        each = {rank.rank: getattr(rank, kind) for rank in ranks if "environ" not in rank.refused}
        for name in sorted({name for values in each.values() for name in values}):
            found = by_key((values.get(name, ""), number) for number, values in each.items())
            # Every rank may have a value of its own, such as the network interface next to its GPU.
            is_own = "" not in found and len(found) == len(each) > 2
            if len(found) > 1 and (name in BINDING or not is_own):
                by_value = {value: tuple(those) for value, those in found.items()}
                binds = name in BINDING and _is_binding(by_value, {rank.rank: rank.host for rank in ranks})
                yield Difference(name=name, ranks=by_value, binds=binds)


def _is_binding(values: Mapping[str, Sequence[int]], hosts: Mapping[int, str]) -> bool:
    """Whether each rank has a GPU, and all GPUs in use on a node have equally many ranks."""
    by_host: dict[str, Counter[str]] = {}
    for value, ranks in values.items():
        for rank in ranks:
            by_host.setdefault(hosts[rank], Counter())[value] += 1
    return "" not in values and all(len(set(counts.values())) == 1 for counts in by_host.values())


def _numbered(ranks: Iterable[Rank]) -> Iterator[Rank]:
    """The ranks; those that no launcher numbered are numbered node by node."""
    taken: set[int] = set()
    for rank in ranks:
        number = rank.rank if rank.rank not in taken else max(taken) + 1
        taken.add(number)
        yield rank if number == rank.rank else replace(rank, rank=number)


def _host(report: JobReport) -> str:
    return next((rank.host for rank in report.ranks), "a node")
