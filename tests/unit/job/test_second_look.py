"""A late rank that works is blamed at a second look, if it and all that wait are where they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.job.document import Cause, JobReport, Rank, Verdict
from gpuipc_doctor.job.progress import with_second_look
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.site.config import SiteConfig

LATE_AFTER_S = SiteConfig().job.late_after_s

WAITS = Rank(
    rank=0, host="n1", pid=10, program="app", doing=Kind.COLLECTIVE.value, operation="MPI_Allreduce",
    path=("main (app)", "step (app)", "MPI_Allreduce (libmpi.so.40)"), mark="a1", started=5,
)  # fmt: skip
WORKS = Rank(
    rank=1, host="n1", pid=20, program="app", doing=Kind.COMPUTES.value, operation="svd (linalg.py:7)",
    path=("main (train.py:3)", "svd (linalg.py:7)"), works="computes in dgesdd, then in dgemm", started=6,
)  # fmt: skip


def report(at: float, waits: Rank = WAITS, works: Rank = WORKS, cause: Cause = Cause.UNKNOWN) -> JobReport:
    verdict = Verdict(cause=cause, blamed=(1,), waiting=(0,), operation=works.operation)
    return JobReport(taken=at, seconds=4.0, looks=4, size=2, ranks=(waits, works), verdict=verdict)


OTHER_FUNCTION = replace(WORKS, path=("main (train.py:3)", "qr (linalg.py:7)"))
OTHER_LINE = replace(WORKS, operation="svd (linalg.py:9)", path=("main (train.py:3)", "svd (linalg.py:9)"))


@pytest.mark.parametrize(
    ("later", "cause"),
    [
        (report(LATE_AFTER_S), Cause.HOST_LATE),
        (report(LATE_AFTER_S, works=OTHER_LINE), Cause.HOST_LATE),
        (report(LATE_AFTER_S, works=replace(WORKS, doing=Kind.LOOPS.value)), Cause.HOST_LATE),
        (report(25 * 60.0), Cause.UNKNOWN),
        (report(LATE_AFTER_S, waits=replace(WAITS, mark="b2")), Cause.UNKNOWN),
        (report(LATE_AFTER_S, waits=replace(WAITS, mark="")), Cause.UNKNOWN),
        (report(LATE_AFTER_S, works=OTHER_FUNCTION), Cause.UNKNOWN),
        (report(LATE_AFTER_S, works=replace(WORKS, started=7)), Cause.UNKNOWN),
        (report(LATE_AFTER_S, works=replace(WORKS, doing=Kind.MOVES.value)), Cause.UNKNOWN),
        (report(LATE_AFTER_S, cause=Cause.RUNS), Cause.RUNS),
    ],
)
def test_second_look_blames_only_who_is_where_it_was(later: JobReport, cause: Cause) -> None:
    seen = with_second_look(report(0.0), later, LATE_AFTER_S)
    assert (seen.verdict.cause, seen.since is not None) == (cause, True)


@pytest.mark.parametrize(("late_after_s", "cause"), [(3600.0, Cause.UNKNOWN), (600.0, Cause.HOST_LATE)])
def test_site_states_how_long_a_rank_may_work(late_after_s: float, cause: Cause) -> None:
    assert with_second_look(report(0.0), report(1500.0), late_after_s).verdict.cause is cause
