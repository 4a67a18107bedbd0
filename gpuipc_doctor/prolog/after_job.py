"""After a job: which error counters of its GPUs rose, and what it left. Creates no context, removes nothing.

It reads NVML and kernel files in a worker, and drains only for a rise from the site's ``epilog_fail`` on.
What it cannot tell it says, with exit code 0: the next job must not wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpuipc_doctor.files.private import NotOurs
from gpuipc_doctor.prolog import decision, guard, job_counters, node_identity
from gpuipc_doctor.prolog.answer import Invocation, conclude
from gpuipc_doctor.prolog.decision import Concern, Kind
from gpuipc_doctor.prolog.guard import Channel
from gpuipc_doctor.report import error_counters
from gpuipc_doctor.report.error_counters import COUNTERS, Look, Rise

if TYPE_CHECKING:
    from gpuipc_doctor.model import Json, Node
    from gpuipc_doctor.node.gpus import JobGpus
    from gpuipc_doctor.node.memory_usage import GpuUse, GpuUsers, Holder
    from gpuipc_doctor.node.memory_watching import End
    from gpuipc_doctor.site.config import SiteConfig

BUDGET_S = 8.0

END_S = 1.0
"""Seconds of it to end a worker that hangs and to say in which call."""

NOBODYS_BYTES = 1 << 30
"""Least memory without a process that is told: drivers before 510 count their own also."""

MOST = 3
"""Maximum processes named in the line; the log has all."""


def run(config: Path | None, budget_s: float | None = None) -> NoReturn:
    """Look at this node after the job in the batch system's environment, and exit."""
    began, env = guard.started_at(), os.environ
    job = env.get("SLURM_JOB_ID", "")
    asked = Invocation(began, config, budget_s, env.get("SLURM_JOB_GPUS", ""), job or "(unknown)")
    ends_at = began + (budget_s or BUDGET_S)
    guard.run(partial(answer, asked), partial(answer_for_lost, asked), ends_at=ends_at)


def answer_for_lost(asked: Invocation, kind: str, what: str, kept: Json, channel: Channel) -> None:
    """The answer for a lost child; see `guard.AnswerFor`."""
    channel.answer(0, decision.one_line(f"ERROR cannot tell what job {asked.job} did: {what}"))


def answer(asked: Invocation, channel: Channel) -> None:
    from gpuipc_doctor.files.yamlfile import BadFile
    from gpuipc_doctor.node import gpus
    from gpuipc_doctor.node.memory_usage import age
    from gpuipc_doctor.prolog import run_checks
    from gpuipc_doctor.site.config import load

    channel.doing(f"the epilog read {asked.config or 'its own files'}")
    try:
        site = load(asked.config)
    except BadFile as mistake:
        channel.answer(0, decision.one_line("ERROR invalid config; nothing was compared:", str(mistake)))
        return
    policy, boot = site.prolog, node_identity.boot()
    before = latest = None
    try:
        before, latest = job_counters.recall(Path(policy.state_dir), boot, asked.job)
    except (NotOurs, OSError) as reason:
        channel.say(f"gpuipc-doctor: the error counters before the job cannot be read: {reason}")
    base = before or latest
    with run_checks.node(policy.simulate) as node:
        job = gpus.of_job(node.root, asked.gpus)
        channel.doing("the GPUs' counters were read")
        deadline_s = max(asked.started_at + (asked.budget_s or BUDGET_S) - END_S - time.monotonic(), END_S)
        used, end = _look(site, node, job, base, deadline_s)
        told = end.health or {}
        addresses = {gpu.label: gpu.pci for gpu in job.devices}
        now = error_counters.counted([told], addresses, node_identity.now())
        if asked.gpus:  # others may be another job's
            own = {gpu.pci for gpu in job.devices}
            now = now._replace(gpus={pci: counts for pci, counts in now.gpus.items() if pci in own})
        left = list(_left(node, job, used, end.users, base))
    labels = {gpu.pci: gpu.label for gpu in job.of_node}
    rises = sorted(error_counters.rises(base, now, told), key=lambda one: -one.by) if base else []
    unknown = list(_unknown(told, end, base, now, labels))
    if end.users and end.users.hidden:
        unknown.append(f"not all processes can be seen: {end.users.hidden}")
    if job.unknown:
        unknown.append(f"the kernel does not list GPU {', '.join(job.unknown)} of the job")
    since = f" in {age(now.at - base.at)}{'' if before else ', since the last epilog'}" if base else ""
    words = [_words(rise, labels) for rise in rises]
    parts = [f"{_first(words, 1)}{since}"] if words else []
    if base and not words and base.gpus.keys() & now.gpus.keys():
        parts.append(f"no error counter rose{since}")
    if left:
        parts.append(f"left: {_first(left, MOST)}")
    if not (left or unknown):
        parts.append("nothing was left")
    least = policy.epilog_fail
    bad = [rise for rise in rises if rise.counter in least and rise.by >= least[rise.counter]]
    says = [f"FAIL epilog: job {asked.job}: {_words(rise, labels)}{since}" for rise in bad]
    text = f"job {asked.job}: {'; '.join([*parts, *unknown])}"
    decided = decision.decide([Concern(Kind.FAIL, each) for each in says], policy, text)
    more = {"epilog": {"rises": words, "left": left, "unknown": unknown, "since": since.strip()}}
    conclude(asked, policy, decided, channel, more=more, is_told=bool(words or left))
    if now.gpus:
        channel.doing("the error counters were stored")
        try:
            job_counters.end(Path(policy.state_dir), boot, asked.job, now)
        except (NotOurs, OSError) as reason:
            channel.say(f"gpuipc-doctor: the error counters were not stored: {reason}")


def _look(
    site: SiteConfig, node: Node, job: JobGpus, base: Look | None, deadline_s: float
) -> tuple[Sequence[GpuUse], End]:
    """One sample of the node's GPUs, and who uses them; and the counters of the job's GPUs."""
    from gpuipc_doctor.node import memory_watching
    from gpuipc_doctor.vendors import SUPPORTED

    asked = [[gpu.label, gpu.backend, gpu.uuid, gpu.pci] for gpu in job.devices]
    if any(not uuid and SUPPORTED[backend].manages for _, backend, uuid, _ in asked):
        asked = []  # MIG, or not initialised since boot: all GPUs that NVML lists
    used: list[GpuUse] = []
    end = memory_watching.watch(
        node,
        tuple(SUPPORTED),
        0.0,
        lambda sample: used.extend(sample.gpus),
        start_up_s=site.start_up_s,
        users=True,
        health={"gpus": asked, "after": base.log if base else -1},
        deadline_s=deadline_s,
    )
    return used, end


def _unknown(
    told: Mapping[str, Json], end: End, base: Look | None, now: Look, labels: Mapping[str, str]
) -> Iterator[str]:
    from gpuipc_doctor.present.text import fold_devices
    from gpuipc_doctor.report import sentences

    if end.trouble:
        yield f"ERROR {sentences.summary(end.trouble, brief=True)}"
    elif told.get("why"):
        yield f"error counters are unknown: {told['why']}"
    elif not now.gpus:
        yield "these GPUs report no error counters"
    elif new := [labels.get(pci, pci) for pci in now.gpus if not base or pci not in base.gpus]:
        yield f"no error counters from before the job of {fold_devices(new)}"
    both = [(now.gpus[pci], base.gpus[pci]) for pci in now.gpus if base and pci in base.gpus]
    if once := {name for has, had in both for name in has.keys() ^ had.keys()}:
        yield f"not reported at both times: {', '.join(COUNTERS[name] for name in sorted(once))}"
    for label, reason in {**told.get("lost", {}), **told.get("silent", {})}.items():
        yield f"NVML does not answer for {label}: {reason}"


def _left(
    node: Node, job: JobGpus, used: Sequence[GpuUse], users: GpuUsers | None, base: Look | None
) -> Iterator[str]:
    """Processes of the job, memory of no process on its GPUs, and its user's files that nobody has open."""
    from gpuipc_doctor.node import survey_room
    from gpuipc_doctor.node.memory_content import size
    from gpuipc_doctor.present.text import counted

    uid, id_ = os.environ.get("SLURM_JOB_UID", ""), os.environ.get("SLURM_JOB_ID", "")
    user = survey_room.user_of(Path(node.root), int(uid), True) if uid.isdecimal() else ""
    age_s = node_identity.now() - base.at if base else None
    on = {process.pid: gpu.label for gpu in used for process in gpu.processes or ()}
    those = [*users.holders, *(each.process for each in users.others)] if users else []
    for process in those:
        if process.is_alive and _is_of_job(process, id_, user, age_s):
            where = f" on {on[process.pid]}" if process.pid in on else ""
            yield f"process {process.pid}{f' ({process.name})' if process.name else ''}{where}"
    if not users or users.hidden:  # who is not seen may use the rest
        return
    own = {gpu.pci for gpu in job.devices}
    for gpu in used:
        idle = gpu.processes == () and gpu.pci in own and not survey_room.is_numa(Path(node.root), gpu.pci)
        if idle and (gpu.used or 0) >= NOBODYS_BYTES:
            yield f"{size(gpu.used or 0)} of nobody on {gpu.label}"
    if files := [file for file in users.left if user in ("", file.user)]:
        whose = f" of {user}" if user else ""
        yield f"{counted(len(files), 'file')}{whose} in /dev/shm ({size(sum(file.held for file in files))})"


def _is_of_job(process: Holder, job: str, user: str, age_s: float | None) -> bool:
    """By its cgroup; without one, a process of the job's user that began after the job. Daemons are not."""
    if process.job:
        return process.job == job
    is_new = age_s is not None and process.age_s is not None and process.age_s < age_s
    return is_new and user in ("", process.user)


def _words(rise: Rise, labels: Mapping[str, str]) -> str:
    """``cuda:0, NVLink 3 to cuda:1: 120 more NVLink replays``."""
    where = error_counters.place(labels.get(rise.pci, rise.pci), rise.link)
    peer = f" to {labels.get(rise.peer, rise.peer)}" if rise.peer else ""
    number = f" {rise.detail}" if rise.detail else ""
    return f"{where}{peer}: {rise.by} more {COUNTERS[rise.counter]}{number}"


def _first(texts: Sequence[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if texts[most:] else ""
    return ", ".join(texts[:most]) + more
