"""Have every node of a job look at its ranks, over the launchers of `fleet`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpuipc_doctor.fleet.ask import GRACE_S, LaunchOptions, Target, Via
from gpuipc_doctor.job import document
from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report.documents import BadDocument
from gpuipc_doctor.site import hosts

PATIENCE_S = 20.0
"""For an answer of Slurm's."""


def of_slurm_job(job: str) -> list[str]:
    """The nodes of a running job or of one step of it; empty where Slurm does not say. Raises `NoSuchJob`."""
    number, _, step = job.partition(".")
    words = ["squeue", "-h", "-j", number, "-o", "%N"]
    if step:
        words = ["squeue", "-h", "-s", job, "-o", "%N"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = ",".join(asked.stdout.split())
    if asked.returncode != 0 and "Invalid job" in asked.stderr:
        raise NoSuchJob(f"Slurm has no job {job}")
    try:
        return hosts.expand(names) if names else []
    except hosts.BadNodes:
        return []


def within_job(way: LaunchOptions, job: str) -> LaunchOptions:
    """The same way, by a step beside those of a Slurm job, which needs no other allocation."""
    if way.via is not Via.SLURM:
        return way
    return replace(way, job=job.partition(".")[0])


def ask(nodes: Sequence[str], way: LaunchOptions) -> tuple[list[JobReport], Mapping[str, str]]:
    """What each node reports, and why the others do not. A node without a process of the job is neither."""
    with ThreadPoolExecutor(min(way.fanout, len(nodes))) as pool:
        answers = list(pool.map(lambda node: _ask(node, way), nodes))
    reports = [answer for answer in answers if isinstance(answer, JobReport)]
    silent = {node: why for node, why in zip(nodes, answers, strict=True) if isinstance(why, str)}
    return reports, silent


def _ask(node: str, way: LaunchOptions) -> JobReport | str | None:
    words = way.words(Target.of_node(node))
    try:
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as started:
            try:
                output, errors = started.communicate(timeout=way.deadline_s)
            except subprocess.TimeoutExpired:
                _end(started)
                return f"no answer within {way.deadline_s:g} s"
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    begin = 0 if output.startswith(b"{") else output.find(b"\n{") + 1
    if output[begin : begin + 1] == b"{":
        try:
            return document.loads(output[begin:])
        except BadDocument as bad:
            return f"another version of the tool: {bad}"
    if started.returncode == Exit.NOTHING:
        return None
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return (lines or [f"exit code {started.returncode}, and nothing was printed"])[-1][:200]


def _end(started: subprocess.Popen[bytes]) -> None:
    """With TERM, at which srun cancels its step, then with KILL."""
    started.terminate()
    try:
        started.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
