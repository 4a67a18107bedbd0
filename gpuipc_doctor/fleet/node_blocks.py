"""Run many nodes with one command: a job for a block of nodes, with one step over all of them.

The controller then has one job for a hundred nodes. Answers arrive in the command's output, in short lines
that begin with the node's name, so that no shared file system is needed. If a launch fails on one node, Slurm
aborts the whole step (tried: 22.05). Then a second step runs the nodes with truncated answers, and separate
steps run the nodes that still have no answer.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import math
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from gpuipc_doctor.fleet import flux
from gpuipc_doctor.fleet.ask import (
    GRACE_S,
    MAX_ANSWER,
    NO_INPUT,
    TRUSTED,
    Channel,
    LaunchOptions,
    Listener,
    Pace,
    Target,
    Via,
    answer,
    ask_one_until,
    end,
    run,
    run_interruptibly,
    start,
    within,
)
from gpuipc_doctor.fleet.summary import State, clocked, silent

BLOCKS = 16
"""Maximum blocks at a time."""

REMOVAL_S = 30.0
"""Seconds for removing a shipped file from nodes that did not start it."""

PENDING_S = 3.0
"""Seconds between questions why a job waits, which Slurm can tell once it has examined the job."""

POLICY = "accounting/QOS policy"
"""Part of Slurm's message for a job beyond a user's or a QOS's limit (tried: 22.05, slurmdbd)."""

_PENDING = re.compile(rb"Pending job allocation (\d+)")

_JOB_LIMIT = re.compile(rb"Max\w*(Node|CPU|GRES|Mem|Billing)\w*PerJob|PartitionNodeLimit", re.IGNORECASE)
"""Slurm's reasons for a job that is too large ever to start (`squeue --format=%r`; tried:
QOSMaxNodePerJobLimit)."""

_UNEXAMINED = (b"", b"None")
"""Reasons of a job that Slurm has not examined yet."""

MARK = b"@gpuipc-doctor "
"""Prefix of our lines; the node's name follows, then one of the words below or a part of the answer."""

BEGINS, ENDS = b"begins", b"ends"

TIMED_OUT = 124
"""Exit code of timeout(1)."""

KILLED = 128
"""A shell exits with this plus the signal's number if its command was killed."""

_ON_NODE = """\
seconds=$1; shift
name="@gpuipc-doctor ${SLURMD_NODENAME:-$(uname -n)}"
echo "$name begins"
{
    {
        said=$({
            timeout -k 5 "$seconds" "$@" 2>&1 >&3 3>&-
            printf '\\n%s' "$?"
        } | tail -c 8000)
    } 3>&1
    printf '\\0%s' "$said"
} | base64 -w 400 | sed "s/^/$name /"
echo "$name ends"
"""
"""Runs the command on a node; prints its output, a NUL, the end of its standard error, and its exit code.

Slurm forwards a task's output line by line, in pieces of at most 1024 bytes.
"""

_HOLD = 'echo "$SLURM_JOB_ID"; exec cat'
"""Holds an allocation until this process ends, which closes the pipe."""


def ask(nodes: Sequence[str], way: LaunchOptions, listener: Listener, *, apart: Sequence[str] = ()) -> None:
    """Run all nodes, `LaunchOptions.block` at a time; returns when no more answers can come.

    The nodes in ``apart`` get separate commands, since they would delay a block. Ctrl-C is raised after
    ending the running commands, which srun and salloc end on the nodes.
    """
    run_interruptibly(_Asking(way, listener).all(nodes, apart), way.at_interruption)


@dataclass
class _Asking:
    way: LaunchOptions
    listener: Listener
    ends: float = field(init=False)
    """End of the budget (monotonic clock)."""

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.way.budget_s
        self._pace = Pace(self.way.rate)
        self._singles = asyncio.Semaphore(self.way.fanout)
        self._blocks = asyncio.Semaphore(min(BLOCKS, self.way.fanout))
        self._jobs, self._job_ended = 0, asyncio.Event()
        """Number of our jobs that hold nodes, and an event that is set when the next of them ends."""
        self._too_many = math.inf
        """Number of nodes in the smallest job that exceeded a limit of Slurm's."""

    async def all(self, nodes: Sequence[str], apart: Sequence[str]) -> None:
        left = iter(nodes)
        blocks = iter(lambda: list(islice(left, self.way.block)), [])
        await asyncio.gather(*map(self._in_turn, blocks), self._one_by_one(apart, self.way))

    async def _in_turn(self, nodes: list[str]) -> None:
        async with self._blocks:
            refused = await self._block(nodes)
        if refused:
            await asyncio.gather(*map(self._in_turn, refused))

    async def _block(self, nodes: list[str]) -> list[list[str]]:
        """Run a block; returns smaller blocks if Slurm refuses a job of this size."""
        if len(nodes) == 1 or time.monotonic() >= self.ends:
            await self._one_by_one(nodes, self.way)
        elif self.way.via is Via.FLUX or self.way.job:
            await self._steps(nodes, self.way)
        elif len(nodes) >= self._too_many:
            return _halves(nodes)
        else:
            async with self._allocation(nodes) as (job, is_refused):
                if job:
                    async with self._job():
                        await self._steps(nodes, replace(self.way, job=job, options=()))
            if is_refused:
                # A limit on a user's jobs or nodes may admit the job after one of ours has ended.
                if len(nodes) < self._too_many and await self._another_ended():
                    return [nodes]
                return _halves(nodes)
            if not job:
                await self._one_by_one(nodes, self.way)
        return []

    @contextlib.asynccontextmanager
    async def _job(self) -> AsyncIterator[None]:
        self._jobs += 1
        try:
            yield
        finally:
            self._jobs -= 1
            self._job_ended.set()
            self._job_ended = asyncio.Event()

    async def _another_ended(self) -> bool:
        """Wait until any of our jobs ends; returns whether there was one to wait for."""
        if self._jobs:
            await self._job_ended.wait()
            return True
        return False

    async def _one_by_one(self, nodes: Iterable[str], way: LaunchOptions) -> None:
        async def single(node: str) -> None:
            async with self._singles:
                while True:
                    await self._pace.turn()
                    self.listener.started(node)
                    async with contextlib.nullcontext() if way.job else self._job():
                        report, full = await ask_one_until(Target.of_node(node), way, self.ends)
                    is_refused = report.state is State.NOT_LAUNCHED and POLICY in report.reason
                    if not is_refused or not await self._another_ended():
                        break
                self.listener.finished(report, full)

        await asyncio.gather(*map(single, nodes))

    async def _steps(self, nodes: Sequence[str], way: LaunchOptions, *, is_first: bool = True) -> None:
        """Run a step over all nodes, then one over the nodes with truncated answers, then separate steps for
        the nodes without an answer."""
        step = await self._step(nodes, way)
        if way.shipped and len(step.begun) < len(nodes):
            await _remove([node for node in nodes if node not in step.begun], way)
        left = [node for node in nodes if node not in step.ended]
        cut = [node for node in left if node in step.begun]
        unbegun = [node for node in left if node not in step.begun]
        if step.is_late:
            for node in cut:
                self.listener.finished(silent(node, State.DEADLINE, step.late), b"")
            await self._one_by_one(unbegun, way)
        elif is_first and len(cut) > 1 and not way.shipped:  # the file is gone from nodes that started it
            await asyncio.gather(self._steps(cut, way, is_first=False), self._one_by_one(unbegun, way))
        else:
            await self._one_by_one(left, way)

    async def _step(self, nodes: Sequence[str], way: LaunchOptions) -> _Answers:
        """One command over the nodes; returns the nodes that started and those that answered."""
        seconds = min(way.deadline_s, max(self.ends - time.monotonic(), 0))
        answers = _Answers(nodes, self.listener, seconds)
        await self._pace.turn()
        words = _words(nodes, way, seconds)
        try:
            with (way.given or NO_INPUT).open("rb") as given:
                transport, _ = await start(lambda: answers, words, stdin=given)
        except OSError:
            return answers  # each node is then run separately, which shows the reason
        try:
            await within(seconds + GRACE_S, answers.exited)
            answers.is_late = not answers.exited.is_set()
            if not answers.is_late:
                await within(GRACE_S, answers.closed)
        finally:
            await asyncio.shield(end(transport, answers))
        return answers

    @contextlib.asynccontextmanager
    async def _allocation(self, nodes: Sequence[str]) -> AsyncIterator[tuple[str, bool]]:
        """The id of a job that holds the nodes (empty if there is none), and whether Slurm refused the job at
        once."""
        way = self.way
        minutes = min(way.job_limit_s, 2 * way.deadline_s + way.patience_s) / 60
        limits = [way.immediate, f"--time={math.ceil(minutes)}", "--no-kill", "--job-name=gpuipc-doctor"]
        words = ["salloc", *limits, f"-N{len(nodes)}", "-w", ",".join(nodes), *way.options, "sh", "-c", _HOLD]
        # srun's options are salloc's, unless those are set.
        of_srun = {f"SALLOC_{name[6:]}": value for name, value in os.environ.items() if name[:6] == "SLURM_"}
        await self._pace.turn()
        try:
            environment = {**of_srun, **os.environ}
            transport, channel = await start(_Job, words, stdin=asyncio.subprocess.PIPE, env=environment)
        except OSError:
            yield "", False
            return
        try:
            granted_by = time.monotonic() + way.patience_s + GRACE_S
            if _JOB_LIMIT.search(channel.said + await _reason(channel, way.patience_s)):
                self._too_many = min(self._too_many, len(nodes))
                with contextlib.suppress(ProcessLookupError):
                    transport.terminate()
                yield "", True
                return
            await within(max(granted_by - time.monotonic(), 0.0), channel.settled)
            if b"Granted job allocation" in channel.said:  # a Prolog may take some time
                await within(way.deadline_s, channel.settled)
            job = channel.told.decode(errors="replace").strip()
            is_refused = not job and channel.exited.is_set() and b"busy" not in channel.said
            if job and way.shipped and not await _send(nodes, replace(way, job=job, options=())):
                job = ""
            yield job, is_refused
        finally:
            if stdin := transport.get_pipe_transport(0):
                stdin.close()
            await within(GRACE_S, channel.exited)
            await asyncio.shield(end(transport, channel))


def _halves(nodes: list[str]) -> list[list[str]]:
    middle = len(nodes) // 2
    return [nodes[:middle], nodes[middle:]]


async def _reason(channel: _Job, patience_s: float) -> bytes:
    """Slurm's reason why a job waits; empty if it does not wait. A busy controller needs more than one
    `PENDING_S` until it has examined the job."""
    until = time.monotonic() + patience_s
    while not channel.settled.is_set() and time.monotonic() < until:
        await within(PENDING_S, channel.settled)
        if not channel.settled.is_set() and (pending := _PENDING.search(channel.said)):
            words = ["squeue", "--noheader", f"--jobs={pending[1].decode()}", "--format=%r"]
            reason = bytes((await run(words, GRACE_S)).told).strip()
            if reason not in _UNEXAMINED:
                return reason
    return b""


class _Answers(Channel):
    def __init__(self, nodes: Iterable[str], listener: Listener, deadline_s: float) -> None:
        super().__init__()
        self._listener, self._deadline_s = listener, deadline_s
        self._names = {node.partition(".")[0]: node for node in nodes}
        self._names |= {node: node for node in nodes}
        self._parts: dict[str, list[bytes]] = {}
        self._size: dict[str, int] = {}
        self._rest = b""
        self.begun: dict[str, float] = {}
        """Node → time at which it started (monotonic clock)."""
        self.ended: set[str] = set()
        self.is_late, self.late = False, f"no answer within {deadline_s:g} s"

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            return  # each silent node is run separately, which shows its reason
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_ANSWER:]
        for line in lines:
            _, mark, ours = line.partition(MARK)  # after the label that SLURM_LABELIO adds
            name, _, part = ours.partition(b" ")
            if mark and (node := self._node(name.decode(errors="replace"))):
                self._take(node, part)

    def _node(self, name: str) -> str | None:
        return self._names.get(name) or self._names.get(name.partition(".")[0])

    def _take(self, node: str, part: bytes) -> None:
        if part == BEGINS:
            self.begun[node] = time.monotonic()
            self._parts[node], self._size[node] = [], 0
            self._listener.started(node)
        elif part == ENDS:
            self._finish(node)
        elif node in self._parts and self._size[node] < 2 * MAX_ANSWER:
            self._parts[node].append(part)
            self._size[node] += len(part)

    def _finish(self, node: str) -> None:
        if node in self.ended or node not in self._parts:
            return
        try:
            data = binascii.a2b_base64(b"".join(self._parts.pop(node)))
        except binascii.Error:
            return  # a line was lost; the node is rerun
        told, _, said = data.rpartition(b"\0")
        words, _, code = said.rpartition(b"\n")
        if not code.isdigit():
            return
        is_late = time.monotonic() - self.begun[node] >= self._deadline_s
        if int(code) > KILLED and not is_late:
            return  # perhaps by Slurm, with the step; the node is rerun
        self.ended.add(node)
        if int(code) == TIMED_OUT or (int(code) == KILLED + signal.SIGKILL and is_late):
            self._listener.finished(silent(node, State.DEADLINE, self.late), b"")
        else:
            found, full = answer(node, told[:MAX_ANSWER], int(code), words.decode(errors="replace"), Via.FLUX)
            self._listener.finished(clocked(found, datetime.now().astimezone()), full)


_RUN_SENT = f"""\
{TRUSTED}
file=$place/$2; [ -O "$file" ] || refuse "$file: does not belong to this user"
shift 2
exec sh "$file" --once "$@"
"""
"""Shell script that runs a sent file; arguments: its directory, its name, and its arguments."""


class _Job(Channel):
    """An allocation; ``settled`` is set when Slurm has granted or refused it."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if self.told.endswith(b"\n"):
            self.settled.set()

    def process_exited(self) -> None:
        super().process_exited()
        self.settled.set()


def _words(nodes: Sequence[str], way: LaunchOptions, seconds: float) -> list[str]:
    command = way.command
    if way.shipped:
        python = f"GPUIPC_DOCTOR_PYTHON={way.shipped.python}"
        command = ("env", python, "sh", "-c", _RUN_SENT, "sh", *_sent(way).rsplit("/", 1), *way.command)
    command = ("sh", "-c", _ON_NODE, "sh", str(math.ceil(seconds)), *command)
    if way.via is Via.FLUX:
        return [*flux.run(nodes, seconds + GRACE_S), *way.options, *command]
    return [*_step(nodes, way, seconds + GRACE_S), *command]


def _step(nodes: Sequence[str], way: LaunchOptions, seconds: float) -> list[str]:
    """A step of Slurm with a task on each node."""
    # The other nodes continue when the command fails or ends on one node.
    patient = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    size = [f"-N{len(nodes)}", f"-n{len(nodes)}", "--ntasks-per-node=1", "-w", ",".join(nodes)]
    limit = f"--time={math.ceil(seconds / 60)}"
    return ["srun", f"--jobid={way.job}", "--overlap", limit, *patient, *size, *way.options]


def _sent(way: LaunchOptions) -> str:
    """Path of the shipped file on a job's nodes."""
    assert way.shipped
    return f"{way.shipped.to}/gpuipc-doctor.{way.job}"


async def _send(nodes: Sequence[str], way: LaunchOptions) -> bool:
    """Send the shipped file to a job's nodes, without replacing a file; returns whether all nodes have it."""
    assert way.shipped
    copy = ["sbcast", f"--jobid={way.job}", str(way.shipped.file), _sent(way)]
    if (await run(copy, way.deadline_s)).code == 0:
        return True
    await _remove(nodes, way)
    return False


async def _remove(nodes: Sequence[str], way: LaunchOptions) -> None:
    """Remove the shipped file from nodes on which it did not start; a file that started removes itself."""
    await run([*_step(nodes, way, REMOVAL_S), "rm", "-f", "--", _sent(way)], REMOVAL_S)
