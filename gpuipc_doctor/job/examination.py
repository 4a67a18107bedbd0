"""From several looks at a job to its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuipc_doctor.job import loaded
from gpuipc_doctor.job.activity import Activity, activity
from gpuipc_doctor.job.document import JobReport, Look, Process, Rank
from gpuipc_doctor.job.looking import by_rank
from gpuipc_doctor.job.merging import differences
from gpuipc_doctor.job.verdict import judge


def examine(looks: Sequence[Look], unable: Mapping[str, str]) -> JobReport:
    """The report of a job; ``unable``: what could not be seen, and why."""
    seen = [by_rank(look) for look in looks]
    last = seen[-1]
    activities = {rank: activity([each[rank] for each in seen if rank in each]) for rank in last}
    size = max((process.size for process in last.values() if process.size), default=None)
    ranks = tuple(_rank(number, last[number], activities[number], looks[-1].host) for number in sorted(last))
    return JobReport(
        taken=looks[0].at,
        seconds=looks[-1].at - looks[0].at,
        looks=len(looks),
        size=size,
        ranks=ranks,
        verdict=judge(activities, _size_here(size, last)),
        unable={**unable, **_refused(last)},
        differences=tuple(differences(ranks)),
    )


def _rank(number: int, process: Process, doing: Activity, host: str) -> Rank:
    return Rank(
        rank=number,
        host=host,
        pid=process.pid,
        program=process.program,
        doing=doing.kind.value,
        operation=doing.operation,
        path=doing.path,
        reason=doing.reason,
        settings=process.settings,
        versions=loaded.versions(process),
        started=process.started,
        refused=process.refused,
    )


def _size_here(size: int | None, ranks: Mapping[int, Process]) -> int | None:
    """How many ranks should be here: all of the job where this node has most of them, else not known.

    The other ranks of a job of several nodes are absent here, and have not ended.
    """
    return size if size and len(ranks) > size / 2 else None


def _refused(ranks: Mapping[int, Process]) -> dict[str, str]:
    """What could not be read of a rank, and why."""
    return {what: why for process in ranks.values() for what, why in process.refused.items()}
