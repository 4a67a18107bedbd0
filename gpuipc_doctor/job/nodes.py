"""Have every node of a job examine its own ranks, through the launchers of `fleet`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gpuipc_doctor import node_name
from gpuipc_doctor.fleet import nodeset, slurm
from gpuipc_doctor.fleet.ask import LaunchOptions, Target, run, run_interruptibly
from gpuipc_doctor.job import document
from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.job.merging import merge
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report.json_documents import BadDocument
from gpuipc_doctor.site import hosts

PATIENCE_S = 20.0
"""Seconds to wait for Slurm's answer."""


def of_slurm_job(job: str) -> list[str]:
    """Nodes of a running job or job step; empty if Slurm does not list them. Raises `NoSuchJob`."""
    number, _, step = job.partition(".")
    which = ("-s", job) if step else ("-j", number)
    try:
        printed = slurm.printed_by("squeue", "-h", *which, "-o", "%N", limit_s=PATIENCE_S)
        return nodeset.expand(",".join(printed.split()))
    except slurm.Refused as refused:
        if "Invalid job" in str(refused):
            raise NoSuchJob(f"Slurm has no job {job}") from None
        return []
    except hosts.BadNodes:  # also of an empty set
        return []


def wanted(named: str, job: str) -> list[str] | None:
    """The nodes to examine: those of the node set ``named``, else those of the Slurm job.

    An empty result means this node only; None means that Slurm lists no nodes of the job. Raises `NoSuchJob`
    and `hosts.BadNodes`.
    """
    found = nodeset.expand(named) if named else of_slurm_job(job) if job else []
    if job and not found:
        return None
    return found if named or found != [node_name.short()] else []


def ask(nodes: Sequence[str], way: LaunchOptions) -> JobReport:
    """The merged report of the nodes. It lists each node that sent no report, with the reason. Raises
    `NoSuchJob` if no node has a process of the job."""
    answers = dict(zip(nodes, run_interruptibly(_ask_all(nodes, way)), strict=True))
    silent = {node: why for node, why in answers.items() if isinstance(why, str)}
    if reports := [answer for answer in answers.values() if isinstance(answer, JobReport)]:
        return merge(reports, silent)
    why = "; ".join(f"{node}: {reason}" for node, reason in list(silent.items())[:3])
    raise NoSuchJob(f"no process of the job on these {len(nodes)} nodes{': ' * bool(why)}{why}")


async def _ask_all(nodes: Sequence[str], way: LaunchOptions) -> list[JobReport | str | None]:
    places = asyncio.Semaphore(way.fanout)

    async def ask_one(node: str) -> JobReport | str | None:
        async with places:
            return await _ask(node, way)

    return await asyncio.gather(*map(ask_one, nodes))


async def _ask(node: str, way: LaunchOptions) -> JobReport | str | None:
    words = way.words(Target.of_node(node))
    try:
        ended = await run(words, way.deadline_s)
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    if ended.code is None:
        return f"no answer within {way.deadline_s:g} s"
    output = bytes(ended.told)
    begin = 0 if output.startswith(b"{") else output.find(b"\n{") + 1
    if output[begin : begin + 1] == b"{":
        try:
            return document.loads(output[begin:])
        except BadDocument as bad:
            return f"another version of the tool: {bad}"
    if ended.code == Exit.NOTHING:
        return None
    lines = [line for line in ended.said.decode(errors="replace").splitlines() if line.strip()]
    return (lines or [f"exit code {ended.code} and no output"])[-1][:200]
