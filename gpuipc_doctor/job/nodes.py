"""Have every node of a job examine its ranks, through the launchers of `fleet`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuipc_doctor.fleet.ask import GRACE_S, LaunchOptions, Target
from gpuipc_doctor.job import document
from gpuipc_doctor.job.document import JobReport
from gpuipc_doctor.job.merging import merge
from gpuipc_doctor.job.selection import NoSuchJob
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report.documents import BadDocument
from gpuipc_doctor.site import hosts
from gpuipc_doctor.supervise import tree

PATIENCE_S = 20.0
"""Seconds to wait for Slurm's answer."""


def of_slurm_job(job: str) -> list[str]:
    """Nodes of a running job or job step; empty if Slurm does not list them. Raises `NoSuchJob`."""
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


def ask(nodes: Sequence[str], way: LaunchOptions) -> JobReport:
    """The merged report of the nodes, and for nodes without a report the reason. Raises `NoSuchJob` if no
    node has a process of the job."""
    with ThreadPoolExecutor(min(way.fanout, len(nodes))) as pool:
        answers = dict(zip(nodes, pool.map(lambda node: _ask(node, way), nodes), strict=True))
    silent = {node: why for node, why in answers.items() if isinstance(why, str)}
    if reports := [answer for answer in answers.values() if isinstance(answer, JobReport)]:
        return merge(reports, silent)
    why = "; ".join(f"{node}: {reason}" for node, reason in list(silent.items())[:3])
    raise NoSuchJob(f"no process of the job on these {len(nodes)} nodes{': ' * bool(why)}{why}")


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
            tree.carry_priority(started.pid)
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
    return (lines or [f"exit code {started.returncode} and no output"])[-1][:200]


def _end(started: subprocess.Popen[bytes]) -> None:
    """Stop the command: SIGTERM first (srun then cancels its step), then SIGKILL."""
    started.terminate()
    try:
        started.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
