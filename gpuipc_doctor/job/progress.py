"""Progress of a job since an earlier report."""

from __future__ import annotations

from gpuipc_doctor.job.document import JobReport, Progress, Rank
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


def _identity(rank: Rank) -> tuple[str, int, int]:
    return rank.host, rank.pid, rank.started


def _is_still(before: Rank, now: Rank) -> bool:
    moves = Kind.MOVES.value in (before.doing, now.doing)
    return not moves and _place(before) == _place(now)


def _place(rank: Rank) -> tuple[str, str, tuple[str, ...]]:
    return rank.doing, rank.operation, program_frames(rank.path)
