"""Progress of a job since an earlier report."""

from __future__ import annotations

from dataclasses import replace

from gpuipc_doctor.job.document import Cause, JobReport, Progress, Rank
from gpuipc_doctor.job.process_facts import without_line
from gpuipc_doctor.job.waits import Kind, program_frames


def since(earlier: JobReport, now: JobReport) -> Progress:
    """Compare each rank with the earlier report: whether it is the same process with the same stack."""
    before = {rank.rank: rank for rank in earlier.ranks}
    here = {rank.rank: rank for rank in now.ranks}
    known = [rank for number, rank in here.items() if number in before]
    restarted = [rank.rank for rank in known if _identity(before[rank.rank]) != _identity(rank)]
    same = [rank for rank in known if rank.rank not in restarted]
    still = [rank.rank for rank in same if _is_still(before[rank.rank], rank)]
    return Progress(
        earlier=earlier.taken,
        moved=tuple(rank.rank for rank in same if rank.rank not in still),
        still=tuple(still),
        restarted=tuple(restarted),
        gone=tuple(sorted(before.keys() - here.keys())),
    )


def with_second_look(earlier: JobReport, now: JobReport, late_after_s: float) -> JobReport:
    """The report with its progress, and with late ranks blamed that are still where they were.

    A rank that works may arrive. It is blamed if it is in the same function, and those that wait for it have
    made no other call, for ``late_after_s``.
    """
    progress = since(earlier, now)
    now = replace(now, since=progress)
    verdict, seconds = now.verdict, now.taken - earlier.taken
    ranks = {rank.rank: rank for rank in now.ranks}
    before = {rank.rank: rank for rank in earlier.ranks}
    late = [ranks[rank] for rank in verdict.blamed if rank in ranks]
    if verdict.cause is not Cause.UNKNOWN or not late or seconds < late_after_s:
        return now
    is_outside = all(Kind(rank.doing).is_outside for rank in late)
    is_same = {*verdict.blamed, *verdict.waiting} <= {*progress.still}
    marks = [(before[rank].mark, ranks[rank].mark) for rank in verdict.waiting if is_same]
    if not (is_outside and is_same and marks and all(mark and mark == old for old, mark in marks)):
        return now
    why = f"in the same function since {seconds / 60:.0f} min, in which no rank that waits made another call"
    blamed = replace(verdict, cause=Cause.HOST_LATE, reasons=(*verdict.reasons, why))
    return replace(now, verdict=blamed)


def _identity(rank: Rank) -> tuple[str, int, int]:
    return rank.host, rank.pid, rank.started


def _is_still(before: Rank, now: Rank) -> bool:
    moves = Kind.MOVES.value in (before.doing, now.doing)
    return not moves and _place(before) == _place(now)


def _place(rank: Rank) -> tuple[str, str, tuple[str, ...]]:
    """What a rank does and where; of one outside of calls without the lines, which change while it works."""
    if Kind(rank.doing).is_outside:
        frames = tuple(without_line(frame) for frame in program_frames(rank.path) if ".py:" in frame)
        return "", without_line(rank.operation) if not frames else "", frames
    return rank.doing, rank.operation, program_frames(rank.path)
