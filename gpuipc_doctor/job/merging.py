"""The reports of a job's nodes, put together: one verdict on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuipc_doctor.job.activity import Activity, Kind
from gpuipc_doctor.job.document import Difference, JobReport, Rank
from gpuipc_doctor.job.verdict import judge, with_growth


def merge(reports: Sequence[JobReport], silent: Mapping[str, str]) -> JobReport:
    """One report of all nodes; ``silent``: the nodes without a report, and why.

    A rank that no node has shown has ended only if every node has answered.
    """
    ranks = tuple(sorted(_numbered(rank for report in reports for rank in report.ranks), key=_by_number))
    growth = tuple(each for report in reports for each in report.growth)
    size = max((report.size for report in reports if report.size), default=None)
    return JobReport(
        taken=min(report.taken for report in reports),
        seconds=max(report.seconds for report in reports),
        looks=min(report.looks for report in reports),
        size=size,
        ranks=ranks,
        verdict=with_growth(
            judge({rank.rank: _activity(rank) for rank in ranks}, None if silent else size), growth
        ),
        unable={
            **{
                f"{what} on {_host(report)}": why for report in reports for what, why in report.unable.items()
            },
            **silent,
        },
        watched_s=max(report.watched_s for report in reports),
        growth=growth,
        ras=tuple(f"{_host(report)}: {line}" for report in reports for line in report.ras),
        stopped=any(report.stopped for report in reports),
        differences=tuple(differences(ranks)),
    )


def differences(ranks: Sequence[Rank]) -> Iterator[Difference]:
    """The settings and the versions that are not the same in all ranks."""
    for kind in ("settings", "versions"):
        each = {rank.rank: getattr(rank, kind) for rank in ranks if "environ" not in rank.refused}
        for name in sorted({name for values in each.values() for name in values}):
            found: dict[str, list[int]] = {}
            for number, values in each.items():
                found.setdefault(values.get(name, ""), []).append(number)
            if len(found) > 1 and not _is_of_rank(found, len(each)):
                yield Difference(name=name, ranks={value: tuple(those) for value, those in found.items()})


def _is_of_rank(values: Mapping[str, Sequence[int]], ranks: int) -> bool:
    """Whether every rank has its own, as of CUDA_VISIBLE_DEVICES: that is how launchers bind ranks."""
    return "" not in values and len(values) == ranks and ranks > 2


def _numbered(ranks: Iterable[Rank]) -> Iterator[Rank]:
    """The ranks; of processes that no launcher numbered, each node has its own first."""
    taken: set[int] = set()
    for rank in ranks:
        number = rank.rank if rank.rank not in taken else max(taken) + 1
        taken.add(number)
        yield rank if number == rank.rank else replace(rank, rank=number)


def _by_number(rank: Rank) -> int:
    return rank.rank


def _host(report: JobReport) -> str:
    return next((rank.host for rank in report.ranks), "a node")


def _activity(rank: Rank) -> Activity:
    return Activity(Kind(rank.doing), rank.operation, rank.path, rank.reason)
