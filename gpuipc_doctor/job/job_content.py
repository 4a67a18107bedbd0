"""Content of a job's screen: the verdict, the ranks' stacks, and what could not be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby

from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job.document import (
    GROWTH,
    Cause,
    Difference,
    Growth,
    JobReport,
    MatchedIssue,
    MemoryFile,
    Progress,
    Rank,
)
from gpuipc_doctor.job.process_facts import VFORK_WAITS
from gpuipc_doctor.job.roles import BY_GPU
from gpuipc_doctor.job.stack_tree import Branch, fold, readable
from gpuipc_doctor.job.waits import Kind
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Entry, Group, Item, Lines, Notice, Parts, do
from gpuipc_doctor.present.html import page
from gpuipc_doctor.present.text import counted, ranges, shorten
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.vendors import SUPPORTED, untried

COLUMNS = 10
"""Columns for the ranks, to the left of their common frames."""

DEEPEST = 20
"""Maximum indent in columns; deeper branches are not indented further."""

MOST_DIFFERENCES = 10
MOST_HELPERS = 2
MOST_FILES = 3
MUCH_LEFT = 64 << 20
"""If ended processes left at least this many bytes of shared memory, a line is shown."""
MOST_BRANCHES = 20
"""Maximum lines of the tree, so that any number of ranks fits a screen."""

MOST_FRAMES = 8
"""Maximum frames of a line of the tree."""

MOST_BLAMED = 3
MOST_ISSUES = 5
LONGEST = 48
"""Maximum characters of a set of ranks, such as ``0-6,8-15``."""

_WAY = " > "
_CPP = re.compile(r"^_*Z\w|[(\[]lib(torch|c10|stdc\+\+|gcc_s)")
_TORCH = "torch.distributed."
_WRAPPER = re.compile(r"\(c10d_logger\.py:\d+\)$")
"""Frames of the decorators around PyTorch's collectives."""

_SENTENCES = {
    Cause.KERNEL: "{blamed} {is_} stuck in the kernel, in {operation}",
    Cause.HOST_LATE: "{blamed} {does} in {operation}; {waiting} {wait} for {it} in {waits_in}",
    Cause.RANK_ENDED: "{blamed} {has} ended or never started; {waiting} {wait} for {it} in {waits_in}",
    Cause.STOPPED: "{blamed} {is_} stopped by a signal or a debugger",
    Cause.DEVICE_BUSY: "{blamed} {wait} for the GPU in {operation}",
    Cause.MESSAGE_LOST: "{blamed} {wait} in {operation} for a message that {none} sends",
    Cause.MISMATCH: "the ranks are in different collectives: {calls}",
    Cause.ORDER: "{every} in {waits_in}, called at different places{but}",
    Cause.ALL_WAIT: "{every} in MPI for another rank: {waits_in}",
    Cause.FINALIZE: "{every} in MPI_Finalize",
    Cause.GPU_WAIT: "{every} for the GPU, in {waits_in}{but}: cannot tell whether they are stuck",
    Cause.GROWS: "growth of {operation} in {blamed}",
    Cause.RUNS: "nothing is stuck",
    Cause.UNKNOWN: "cannot tell",
}

_PARTNERS = (
    "{blamed} {wait} in {operation} for a partner that does not answer; "
    "{waiting} {wait_too} for {blamed} in {waits_in}"
)

_WAITING_BLAMED = (Cause.DEVICE_BUSY, Cause.MESSAGE_LOST, Cause.ALL_WAIT)
"""Verdicts in which the blamed ranks are waiting."""

_ON_A_FREE_NODE = "run gpuipc-doctor check --all on a free node"

_BELOW = (
    "look below the operation: a kernel before it in the stream of a rank that differs, or the network "
    "(dmesg, the adapters' counters); if the step may only be long, ask again with --for 60s"
)
"""Remedy if all ranks have called the same collectives, which NCCL's RAS has said."""

_REMEDIES = {
    Cause.KERNEL: "check dmesg and the file systems of that node; SIGKILL may not end the process",
    Cause.HOST_LATE: "check why the late rank is in this function; if it may only be slow, rerun to compare",
    Cause.RANK_ENDED: "check the job's output for its last messages, and dmesg for the OOM killer",
    Cause.STOPPED: "send the process SIGCONT, or quit the debugger",
    Cause.DEVICE_BUSY: "check which kernel runs on that GPU: it may never end, or be a collective's that "
    "waits for another rank",
    Cause.GPU_WAIT: "ask again with --ras, which reads NCCL's count for each rank, or give the Flight "
    "Recorder's dumps to gpuipc-doctor diagnose; if the step may only be long, ask again with --for 60s",
    Cause.MESSAGE_LOST: "compare the receive's tag, communicator and source with the sends",
    Cause.MISMATCH: "call collectives in the same order on all ranks, also those of two communicators",
    Cause.ORDER: "call collectives of communicators that share ranks in the same order on all of them; "
    "of one communicator, compare root and sizes",
    Cause.ALL_WAIT: f"look for a cycle of sends and receives; or {_ON_A_FREE_NODE}",
    Cause.GROWS: "list what the process holds (ls -l /proc/PID/fd, pmap PID); if the program frees it, "
    f"{_ON_A_FREE_NODE}: mpi-cache-growth and other checks find the leak",
    Cause.FINALIZE: "look for requests that were never completed",
}


_ONE_WAY = {
    Kind.RECEIVES.value: "let a rank send before it receives, or use MPI_Sendrecv",
    Kind.SENDS.value: "let a rank receive before it sends, or use MPI_Sendrecv",
}
"""Remedies if every rank waits in the same kind of message."""


def sentence(report: JobReport) -> str:
    """The verdict in one sentence."""
    verdict = report.verdict
    one = len(verdict.blamed) == 1
    subject = verdict.blamed if verdict.cause in _WAITING_BLAMED else verdict.waiting
    template = _SENTENCES[verdict.cause]
    if not report.ranks:
        template = "no rank found: cannot tell whether anything is stuck"
    elif verdict.cause is Cause.UNKNOWN and (late := _late(report)):
        template = f"{late}; {{waiting}} {{wait}} in {{waits_in}}"
    elif verdict.cause is Cause.UNKNOWN and len({*verdict.blamed, *verdict.waiting}) == len(report.ranks):
        template = "{every} in {waits_in}{but}: cannot tell whether they are stuck"
    if verdict.cause is Cause.MISMATCH and verdict.blamed and verdict.waits_in:
        template = "{blamed} called {operation}, where {waiting} called {waits_in}"
    if verdict.cause is Cause.STOPPED and not verdict.blamed:
        template = "the launcher, {operation}, is stopped; {every} in {waits_in}"
    if verdict.cause is Cause.ALL_WAIT and verdict.blamed:
        template = _PARTNERS
    elif verdict.cause is Cause.RUNS and verdict.waiting:
        template = "some ranks make progress; {waiting} {wait} in {waits_in}"
    seen = len(report.ranks)
    is_part = seen < (report.size or 0)
    every = f"the {seen} of {report.size} ranks seen wait" if is_part else "every rank waits"
    return template.format(
        every=every,
        none="no rank seen" if is_part else "no rank",
        blamed=_ranks(verdict.blamed) if verdict.blamed else "no rank",
        waiting=_ranks(verdict.waiting),
        wait="waits" if len(subject) == 1 else "wait",
        wait_too="waits" if len(verdict.waiting) == 1 else "wait",
        is_="is" if one else "are",
        does=_doing(report),
        it="it" if one else "them",
        but=f"; {_ranks(verdict.blamed)} {'differs' if one else 'differ'}" if verdict.blamed else "",
        has="has" if one else "have",
        operation=readable(verdict.operation) or "an unknown place",
        waits_in=readable(verdict.waits_in or verdict.operation),
        calls=_calls(report),
    )


def _late(report: JobReport) -> str:
    """A template for late ranks that may arrive: they work, or go through a loop; empty for others."""
    late = [rank for rank in report.ranks if rank.rank in report.verdict.blamed]
    if late and all(rank.works and Kind(rank.doing).is_outside for rank in late):
        return "{blamed} {is_} late, and working at {operation}: look again"
    may_advance = late and all(Kind(rank.doing).may_advance for rank in late)
    return "{blamed} {is_} late, or in an endless loop, in {operation}: cannot tell" if may_advance else ""


def _doing(report: JobReport) -> str:
    """What the blamed ranks do outside MPI and PyTorch's collectives: ``sleeps``."""
    blamed = [rank.doing for rank in report.ranks if rank.rank in report.verdict.blamed]
    verb, outside, _ = blamed[0].partition(" outside MPI") if len(blamed) == 1 else ("", "", "")
    return verb if outside else ("is" if len(report.verdict.blamed) == 1 else "are")


def _calls(report: JobReport) -> str:
    """Each call and the ranks in it; the call with the fewest ranks comes first."""
    found = by_key((rank.operation, rank.rank) for rank in report.ranks)
    ordered = sorted(found, key=lambda call: len(found[call]))
    return ", ".join(f"{_ranks(found[call])} in {call}" for call in ordered)


_OF_INTEL = re.compile(r"[(\[]lib(ze_|ccl\.)")
"""Frames in Level Zero and oneCCL, of which only names are known."""

MOST_LINES = 25
"""Maximum lines of a screen; the other formats have all."""


def screen(report: JobReport, *, width: int, color: bool, saved: str = "") -> str:
    """The screen, of which the last lines are left out if it is too long."""
    lines = terminal.screen(blocks(report, saved), width=width, color=color).splitlines()
    if len(lines) > MOST_LINES:
        left = len(lines) - MOST_LINES + 1
        lines[MOST_LINES - 1 :] = [f"{left} more lines; --format markdown has all"]
    return "".join(f"{line}\n" for line in lines)


def ticket(report: JobReport, saved: str = "") -> str:
    """The report as Markdown, for a ticket."""
    return markdown.render(f"gpuipc-doctor job: {status(report)}", blocks(report, saved))


def html(report: JobReport, saved: str = "") -> str:
    return page("blocks.html", title=sentence(report), simulated="", blocks=tuple(blocks(report, saved)))


def blocks(report: JobReport, saved: str = "") -> Iterator[Block]:
    """The screen's blocks: verdict, ranks by stack, and what could not be read. ``saved``: its file."""
    hosts = sorted({rank.host for rank in report.ranks})
    orders = {rank.numbered for rank in report.ranks if rank.numbered}
    head = (
        f"{len(report.ranks)} of {report.size} ranks" if report.size else f"{len(report.ranks)} ranks",
        f"on {NodeSetFormatter(hosts).brief(hosts)}" if hosts else "",
        f"ranks numbered by {'GPU' if BY_GPU in orders else 'start'}" if orders else "",
        f"{report.looks} snapshots in {report.seconds:.1f} s",
        "each process was stopped for a moment" if report.stopped else "no process was stopped",
    )
    yield Parts(tuple(filter(None, head)))
    if any(_OF_INTEL.search(frame) for rank in report.ranks for frame in rank.path):
        yield Notice(untried(SUPPORTED), "WARN")
    blamed = [rank for rank in report.ranks if rank.rank in report.verdict.blamed]
    places = [item for rank in blamed[:MOST_BLAMED] for item in _place(rank)]
    found = [*map(Item, report.verdict.reasons), *places, do(_remedy(report, saved))]
    yield Entry(status(report), sentence(report), tuple(found), columns=7)
    is_told = report.verdict.cause is Cause.STOPPED or not report.stopped_launcher
    yield Lines(
        report.notes if is_told else (f"the launcher, {report.stopped_launcher}, is stopped", *report.notes)
    )
    paths = {rank.rank: tuple(_shown(rank.path)) or (rank.doing,) for rank in report.ranks}
    if paths:
        yield Group((Lines(("where the ranks are in every snapshot",)), *map(_tree, fold(paths))))
    if report.growth:
        yield Group((Lines((f"grew in {report.watched_s:.0f} s",)), *map(_growth, report.growth)))
    elif report.watched_s and not any(what.startswith(GROWTH) for what in report.unable):
        seen = counted(len(report.ranks), "rank")
        says = f"nothing grew in {report.watched_s:.0f} s ({seen} watched)"
        yield Lines((says if report.ranks else "growth was not watched: no rank was found",))
    issues = sorted(report.issues, key=lambda issue: _RELATIONS.index(issue.relation))
    yield from map(_issue, issues[:MOST_ISSUES])
    yield Lines(tuple(f"{setting.name}={setting.value}: {setting.says}" for setting in report.wrong_settings))
    yield Lines(report.ras)
    if report.since:
        yield _progress(report.since)
    if differences := [each for each in report.differences if not each.binds]:
        yield Group((Lines(("differs between ranks",)), *map(_difference, differences[:MOST_DIFFERENCES])))
    yield Lines(tuple(_binding(each) for each in report.differences if each.binds))
    yield Lines(tuple(_left_behind(report.memory_files)))
    yield Lines(tuple(f"not seen: {what}: {why}" for what, why in sorted(report.unable.items())))


def _remedy(report: JobReport, saved: str) -> str:
    if not report.ranks:
        return "name a rank or its launcher with --pid, or the job with --slurm"
    calls = {(rank.doing, rank.operation) for rank in report.ranks}
    if report.verdict.cause is Cause.ALL_WAIT and len(calls) == 1:
        (doing, call) = calls.pop()
        if doing == Kind.COLLECTIVE.value:
            return f"compare root, communicator and sizes of {call} on all ranks; or {_ON_A_FREE_NODE}"
        if doing in _ONE_WAY:
            return _ONE_WAY[doing]
    doing_of_waiting = {rank.doing for rank in report.ranks if rank.rank in report.verdict.waiting}
    if report.verdict.cause is Cause.MESSAGE_LOST and doing_of_waiting == {Kind.COLLECTIVE.value}:
        blamed = report.verdict.blamed
        to = "it" if len(blamed) == 1 else "them"
        return f"call {report.verdict.waits_in} on {_ranks(blamed)}, or send to {to}: same tag, communicator"
    if report.verdict.cause is Cause.GPU_WAIT and report.collectives:
        return _BELOW
    if report.verdict.cause is Cause.KERNEL and report.verdict.operation in VFORK_WAITS:
        return "check the child (pstree -p PID): the rank waits until the child ends or starts a program"
    late = {rank.doing for rank in report.ranks if rank.rank in report.verdict.blamed}
    if report.verdict.cause is Cause.UNKNOWN and report.verdict.waiting and Kind.UNKNOWN.value not in late:
        if report.since:
            return ""
        first = "" if saved else "rerun with --save FILE, and "
        return f"{first}a minute later{', rerun' if saved else ''} with --since {saved or 'FILE'}"
    return _REMEDIES.get(report.verdict.cause, "")


def _progress(progress: Progress) -> Lines:
    at = datetime.fromtimestamp(progress.earlier).astimezone().isoformat(" ", "seconds")
    parts = {"moved": progress.moved, "without progress": progress.still,
             "restarted": progress.restarted, "gone": progress.gone}  # fmt: skip
    said = (f"{what}: {_ranks(ranks)}" for what, ranks in parts.items() if ranks)
    return Lines((f"since {at}", *said))


_RELATIONS = (Relation.CONFIRMED, Relation.UNKNOWN, Relation.NEW, Relation.LATENT)
"""Relations, from the strongest evidence for an issue to the weakest."""


def _issue(issue: MatchedIssue) -> Entry:
    found = Item(f"{issue.relation.value} on {_ranks(issue.ranks)}: {issue.reason}")
    helps = do(f"for the next job, {issue.remedy}" if issue.remedy else "")
    proves = do(f"gpuipc-doctor check {' '.join(issue.checks)} on a free node" if issue.checks else "")
    return Entry("issue", f"[{issue.id}] {issue.title}", (found, helps, proves), "WARN", columns=7)


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


def _left_behind(files: Sequence[MemoryFile]) -> Iterator[str]:
    """Shared memory that no process uses, largest first, if there is much of it."""
    left = sorted((file for file in files if file.ranks is None), key=lambda file: -(file.held or 0))
    held = sum(file.held or 0 for file in left)
    if held >= MUCH_LEFT:
        names = [f"{file.name} on {file.host}" for file in left[:MOST_FILES]] + ["…"] * (
            len(left) > MOST_FILES
        )
        what = f"{counted(len(left), 'shared memory file')}, {_amount(held, is_bytes=True)}"
        yield f"no visible process uses {what}: {', '.join(names)}"


def _binding(difference: Difference) -> str:
    values = sorted(difference.ranks, key=lambda value: difference.ranks[value])
    return f"the launcher binds ranks to GPUs by {difference.name}: {shorten(', '.join(values), LONGEST)}"


def status(report: JobReport) -> str:
    """The report's status: FAIL if something is wrong with the job, PASS if not, ERROR if that is unknown."""
    if report.verdict.cause.is_open:
        return "ERROR"
    return "PASS" if report.verdict.cause is Cause.RUNS else "FAIL"


def _place(rank: Rank) -> Iterator[Item]:
    gpus = f", {', '.join(rank.gpus)}" if rank.gpus else ""
    yield Item(f"rank {rank.rank}: {rank.host}, pid {rank.pid} ({rank.program}){gpus}")
    yield from (Item(f"has a {helper}") for helper in rank.helpers[:MOST_HELPERS])


def _tree(branch: Branch) -> Entry:
    """Lines for a branch and everything below it; ranks with the same frames share a line."""
    below = list(_below(branch, 0))
    if len(below) > MOST_BRANCHES:
        below[MOST_BRANCHES:] = [Item(f"{len(below) - MOST_BRANCHES} more places; --json has all")]
    return Entry(_brief(branch.ranks), _way(branch.frames), tuple(below), "-", COLUMNS)


def _below(branch: Branch, depth: int) -> Iterator[Item]:
    for below in branch.branches:
        yield Item(f"{_brief(below.ranks)}: {_way(below.frames)}", depth=depth)
        yield from _below(below, min(depth + 2, DEEPEST))


def _shown(path: Sequence[str]) -> Iterator[str]:
    """A rank's frames, outermost first, up to the collective of PyTorch in which it waits.

    C++ below a program in Python is left out.
    """
    has_python = any(".py:" in frame for frame in path)
    for frame in path:
        if has_python and _CPP.search(frame):
            continue
        if frame.startswith(_TORCH) and not _WRAPPER.search(frame):
            yield frame.partition(" (")[0]  # without the line, which differs between ranks
            return
        if not _WRAPPER.search(frame):
            yield frame


def _way(frames: Sequence[str]) -> str:
    """Frames from the outermost to the innermost; of many, the first and the last ones."""
    names = [name for name, _ in groupby(map(readable, frames))]
    if len(names) > MOST_FRAMES:
        names[MOST_FRAMES // 2 : -MOST_FRAMES // 2] = ["…"]
    return _WAY.join(names)


def _ranks(numbers: Sequence[int]) -> str:
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {_brief(numbers)}"


def _brief(numbers: Sequence[int]) -> str:
    """Ranks as ``0-6,8-15``, truncated if long."""
    text = ranges(numbers)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST].rpartition(',')[0]},… ({len(numbers)} ranks)"
