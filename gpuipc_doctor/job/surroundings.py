"""What is unusual about a job's processes, beside what its ranks do: launchers, children, processors."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.job.document import Cause, Process, Snapshot, Verdict
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.stacks.proc_files import Gone, Reader
from gpuipc_doctor.stacks.process_list import processes, with_descendants

LOOKS, BETWEEN_S = 5, 0.1
"""Looks at the processes of other jobs; one that is ready to run in most of them is busy."""

KTHREADD = 2
"""Parent of the kernel's threads."""

_OPEN = (Cause.ALL_WAIT, Cause.FINALIZE, Cause.GPU_WAIT, Cause.UNKNOWN)
"""Verdicts that a stopped launcher explains."""


def stopped_launcher(snapshots: Sequence[Snapshot], ranks: Mapping[int, Process]) -> str:
    """The process above ranks that is stopped in every snapshot: ``mpiexec (7)``; empty if there is none."""
    last = {process.pid: process for process in snapshots[-1].processes}
    of_ranks = {process.pid for process in ranks.values()}
    above: set[int] = set()
    for pid in of_ranks:
        while (pid := last[pid].parent if pid in last else 0) in last and pid not in above:
            above.add(pid)
    for pid in sorted(above - of_ranks):
        seen = [each.main for look in snapshots for each in look.processes if each.pid == pid]
        if seen and all(main and main.state in "Tt" for main in seen):
            return f"{last[pid].program} ({pid})"
    return ""


def with_launcher(verdict: Verdict, launcher: str) -> Verdict:
    """The verdict if a launcher is stopped: it does not do what ranks ask it for, such as to start others."""
    if not launcher or not verdict.waiting or verdict.cause not in _OPEN:
        return verdict
    reasons = (f"kill -CONT {launcher.rpartition('(')[2].rstrip(')')} continues it", *verdict.reasons)
    return replace(verdict, cause=Cause.STOPPED, blamed=(), operation=launcher, reasons=reasons)


def defunct_children(snapshots: Sequence[Snapshot], pid: int) -> str:
    """The children of a process that ended before the first snapshot and for which it has not waited."""
    looks = [
        {each.pid: each.program for each in look.processes if each.parent == pid and _is_defunct(each)}
        for look in snapshots
    ]
    lasting = [
        f"{name} ({child})" for child, name in looks[-1].items() if all(child in look for look in looks)
    ]
    noun = "a defunct child" if len(lasting) == 1 else f"{len(lasting)} defunct children"
    return f"has {noun}, {', '.join(lasting[:3])}" if lasting else ""


def _is_defunct(process: Process) -> bool:
    return process.main is not None and process.main.state == "Z"


def crowded(ranks: Mapping[int, Process]) -> Iterator[str]:
    """Ranks of this node that are bound to fewer processors than there are such ranks."""
    for cpus, bound in by_key(
        (process.cpus, rank) for rank, process in ranks.items() if process.cpus
    ).items():
        number = len(numbers(cpus))
        if len(bound) > number and number < (os.cpu_count() or 1):
            yield f"ranks {ranges(bound)} are bound to {_in_words(cpus)}"


def neighbours(ranks: Mapping[int, Process], own: Iterable[int]) -> Iterator[str]:
    """Busy processes of others that are bound to a rank's processors. ``own``: the job and this command."""
    bound = {rank: process.cpus for rank, process in ranks.items() if process.cpus}
    narrow = {rank: cpus for rank, cpus in bound.items() if len(numbers(cpus)) < (os.cpu_count() or 1)}
    if not narrow:
        return
    ready: Counter[int] = Counter()
    everyone = processes()
    for look in range(LOOKS):
        time.sleep(BETWEEN_S * bool(look))
        everyone = processes()
        ours = with_descendants(own, everyone)
        ready.update(pid for pid, each in everyone.items() if each.state == "R" and pid not in ours)
    for pid in sorted(pid for pid, times in ready.items() if times > LOOKS / 2 and pid in everyone):
        if everyone[pid].parent == KTHREADD:
            continue
        cpus = allowed(pid)
        shared = [rank for rank, others in narrow.items() if cpus and numbers(cpus) <= numbers(others)]
        if shared:
            others = f"{everyone[pid].name} ({pid}), which is not of this job"
            yield f"{others}, is bound to {_in_words(cpus)} of rank {ranges(shared)}"


def allowed(pid: int) -> str:
    """The processors on which a process may run, such as ``0-3,8``; empty if unknown."""
    with suppress(Gone):
        found = re.search(r"^Cpus_allowed_list:\s*([\d,-]+)$", Reader(pid).text("status"), re.MULTILINE)
        return found[1] if found else ""
    return ""


def numbers(cpus: str) -> frozenset[int]:
    """Numbers of the processors in a list such as ``0-3,8``."""
    parts = (part.partition("-") for part in cpus.split(","))
    return frozenset(n for low, _, high in parts for n in range(int(low), int(high or low) + 1))


def _in_words(cpus: str) -> str:
    return f"processor {cpus}" if cpus.isdecimal() else f"processors {cpus}"
