"""The content of a job: the verdict, where the ranks are, and what could not be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.job.document import Cause, Difference, Growth, JobReport, MatchedIssue, Progress, Rank
from gpuipc_doctor.job.folding import Branch, fold, ranges
from gpuipc_doctor.model import Relation
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Entry, Group, Item, Lines, Parts, do
from gpuipc_doctor.present.html import page

COLUMNS = 10
"""For the ranks, before the way that they share."""

DEEPEST = 20
"""Columns of the deepest branch; those below it are not indented further."""

MOST_DIFFERENCES = 10
MOST_BRANCHES = 20
"""Lines of the tree: a screen for any number of ranks."""

MOST_ISSUES = 5
LONGEST = 48
"""Characters of a set of ranks."""

_WAY = " > "

_SENTENCES = {
    Cause.KERNEL: "{blamed} {is_} stuck in the kernel, in {operation}",
    Cause.HOST_LATE: "{waiting} {wait} in {waits_in} for {blamed}, outside MPI in {operation}",
    Cause.RANK_ENDED: "{waiting} {wait} in {waits_in} for {blamed}, which {has} ended",
    Cause.STOPPED: "{blamed} {is_} stopped by a signal or a debugger",
    Cause.DEVICE_BUSY: "{blamed} {wait} for the GPU in {operation}",
    Cause.MESSAGE_LOST: "{blamed} {wait} in {operation} for a message that no rank sends",
    Cause.MISMATCH: "{waiting} are in different collectives: {operation}",
    Cause.ALL_WAIT: "every rank waits in MPI for another one: {waits_in}",
    Cause.FINALIZE: "every rank waits in MPI_Finalize",
    Cause.GROWS: "{operation} of {blamed} grows",
    Cause.RUNS: "nothing is stuck",
    Cause.UNKNOWN: "cannot tell",
}

_WAITING_BLAMED = (Cause.DEVICE_BUSY, Cause.MESSAGE_LOST)
"""Where the blamed ranks are those that wait."""

_REMEDIES = {
    Cause.KERNEL: "look at dmesg of that node; a process in state D cannot be killed",
    Cause.HOST_LATE: "look at what the late rank does there; it may only be slow, so look again",
    Cause.RANK_ENDED: "look in the job's output for its last words, and in dmesg for the OOM killer",
    Cause.STOPPED: "send it SIGCONT, or end the debugger",
    Cause.DEVICE_BUSY: "see whether the GPU is busy (nvidia-smi, rocm-smi); a kernel may not end",
    Cause.MESSAGE_LOST: "compare its tag, communicator and source with the sends",
    Cause.MISMATCH: "call collectives in the same order on all ranks of a communicator",
    Cause.ALL_WAIT: "look for a cycle of sends and receives; or run gpuipc-doctor check --all on a free node",
    Cause.GROWS: "run gpuipc-doctor check --all on a free node: mpi-cache-growth and others find what grows",
    Cause.FINALIZE: "look for requests that were never completed",
}


def sentence(report: JobReport) -> str:
    """The verdict in one sentence."""
    verdict = report.verdict
    one = len(verdict.blamed) == 1
    subject = verdict.blamed if verdict.cause in _WAITING_BLAMED else verdict.waiting
    return _SENTENCES[verdict.cause].format(
        blamed=_ranks(verdict.blamed),
        waiting=_ranks(verdict.waiting),
        wait="waits" if len(subject) == 1 else "wait",
        is_="is" if one else "are",
        has="has" if one else "have",
        operation=verdict.operation or "a place that could not be seen",
        waits_in=verdict.waits_in or verdict.operation,
    )


def screen(report: JobReport, *, width: int, color: bool) -> str:
    return terminal.screen(blocks(report), width=width, color=color)


def ticket(report: JobReport) -> str:
    """Markdown, for a ticket."""
    return markdown.render(f"gpuipc-doctor job: {status(report)}", blocks(report))


def html(report: JobReport) -> str:
    return page("blocks.html", title=sentence(report), simulated="", blocks=tuple(blocks(report)))


def blocks(report: JobReport) -> Iterator[Block]:
    """The verdict, then where the ranks are, then what could not be seen."""
    hosts = sorted({rank.host for rank in report.ranks})
    yield Parts(
        (
            f"{len(report.ranks)} of {report.size} ranks" if report.size else f"{len(report.ranks)} ranks",
            f"on {NodeSetFormatter(hosts).brief(hosts)}" if hosts else "",
            f"{report.looks} looks in {report.seconds:.1f} s",
            "each process was stopped for a moment" if report.stopped else "no process was stopped",
        )
    )
    found = [
        *map(Item, report.verdict.reasons),
        *(Item(f"rank {rank.rank}: {rank.host}, pid {rank.pid} ({rank.program})") for rank in _odd(report)),
    ]
    if remedy := _REMEDIES.get(report.verdict.cause):
        found.append(do(remedy))
    yield Entry(status(report), sentence(report), tuple(found), columns=7)
    paths = {rank.rank: rank.path or (rank.doing,) for rank in report.ranks}
    yield Group((Lines(("where the ranks are at every look",)), *map(_tree, fold(paths))))
    if report.growth:
        yield Group((Lines((f"grew in {report.watched_s:.0f} s",)), *map(_growth, report.growth)))
    elif report.watched_s:
        yield Lines((f"nothing grew in {report.watched_s:.0f} s",))
    yield from map(
        _issue, sorted(report.issues, key=lambda issue: _RELATIONS.index(issue.relation))[:MOST_ISSUES]
    )
    if report.wrong_settings:
        yield Lines(tuple(f"{one.name}={one.value}: {one.says}" for one in report.wrong_settings))
    if report.ras:
        yield Lines(report.ras)
    if report.since:
        yield _progress(report.since)
    if report.differences:
        yield Group(
            (Lines(("differs between ranks",)), *map(_difference, report.differences[:MOST_DIFFERENCES]))
        )
    if report.unable:
        yield Lines(tuple(f"not seen: {what}: {why}" for what, why in sorted(report.unable.items())))


def _progress(progress: Progress) -> Lines:
    at = datetime.fromtimestamp(progress.earlier).astimezone().isoformat(" ", "seconds")
    parts = {"moved": progress.moved, "in the same place": progress.still,
             "restarted": progress.restarted, "gone": progress.gone}  # fmt: skip
    said = (f"{what}: {_ranks(ranks)}" for what, ranks in parts.items() if ranks)
    return Lines((f"since {at}", *said))


_RELATIONS = (Relation.CONFIRMED, Relation.UNKNOWN, Relation.NEW, Relation.LATENT)
"""The most telling first."""


def _issue(issue: MatchedIssue) -> Entry:
    found = [Item(f"{issue.relation.value} on {_ranks(issue.ranks)}: {issue.reason}")]
    if issue.remedy:
        found.append(do(f"for the next job, {issue.remedy}"))
    if issue.checks:
        found.append(do(f"gpuipc-doctor check {' '.join(issue.checks)} on a free node"))
    return Entry("issue", f"[{issue.id}] {issue.title}", tuple(found), "WARN", columns=7)


def _growth(growth: Growth) -> Entry:
    amount = partial(_amount, is_bytes="memory" in growth.what)
    grew = f"{growth.what} +{amount(growth.per_minute)} a minute"
    bounds = f"{amount(growth.low)} to {amount(growth.high)}"
    ends = f"from {amount(growth.first)} to {amount(growth.last)}"
    who = "no rank" if growth.rank is None else f"rank {growth.rank}"
    return Entry(who, f"{grew} (95 %: {bounds}), {ends}", look="-", columns=COLUMNS)


def _amount(number: float, *, is_bytes: bool) -> str:
    if not is_bytes:
        return f"{number:.0f}"
    return f"{number / 2**30:.2f} GiB" if abs(number) >= 2**30 else f"{number / 2**20:.1f} MiB"


def _difference(difference: Difference) -> Entry:
    values = (f"{value or 'unset'} on {_ranks(ranks)}" for value, ranks in difference.ranks.items())
    return Entry(difference.name, "; ".join(values), look="-", columns=COLUMNS)


def status(report: JobReport) -> str:
    """FAIL for a verdict, PASS where nothing is stuck, ERROR where it cannot be told."""
    return {Cause.RUNS: "PASS", Cause.UNKNOWN: "ERROR"}.get(report.verdict.cause, "FAIL")


def _odd(report: JobReport) -> Sequence[Rank]:
    """The blamed ranks, as far as they are few."""
    return [rank for rank in report.ranks if rank.rank in report.verdict.blamed][:8]


def _tree(branch: Branch) -> Entry:
    """A branch with all below it; ranks that go on alike share a line."""
    below = list(_below(branch, 0))
    if len(below) > MOST_BRANCHES:
        below[MOST_BRANCHES:] = [Item(f"{len(below) - MOST_BRANCHES} more places; --json has all")]
    return Entry(_brief(branch.ranks), _WAY.join(branch.frames), tuple(below), "-", COLUMNS)


def _below(branch: Branch, depth: int) -> Iterator[Item]:
    for below in branch.branches:
        yield Item(f"{_brief(below.ranks)}: {_WAY.join(below.frames)}", depth=depth)
        yield from _below(below, min(depth + 2, DEEPEST))


def _ranks(numbers: Sequence[int]) -> str:
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {_brief(numbers)}"


def _brief(numbers: Sequence[int]) -> str:
    """``0-6,8-15``, cut where it is long."""
    text = ranges(numbers)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST].rpartition(',')[0]},… ({len(numbers)} ranks)"
