"""Have many nodes answer by one command: a job for a block of nodes, and one step in it over all of them.

A controller then sees a job for a hundred nodes, not a hundred jobs. Each answer comes back over the
command's own output, in short lines that begin with the node's name, so that no file system need be shared.
Slurm aborts a step whose launch fails on one node (tried: 22.05): nodes whose answer was cut are asked by one
more step, and who has not answered then by a step of its own.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from gpuipc_doctor.fleet import flux
from gpuipc_doctor.fleet.ask import (
    GRACE_S,
    MAX_ANSWER,
    Channel,
    LaunchOptions,
    Listener,
    Pace,
    Target,
    Via,
    answer,
    ask_one_until,
    end,
    within,
)
from gpuipc_doctor.fleet.summary import State, clocked, silent

BLOCKS = 16
"""At a time."""

REMOVAL_S = 30.0
"""For the removal of a shipped file from the nodes that did not start it."""

MARK = b"@gpuipc-doctor "
"""Begins each line of ours; the node's name follows, and one of the words below or a part of the answer."""

BEGINS, ENDS = b"begins", b"ends"

TIMED_OUT = 124
"""Exit code of timeout(1)."""

KILLED = 128
"""And the number of a signal, is the exit code in a shell of what it has ended."""

_ON_NODE = """\
seconds=$1; shift
name="@gpuipc-doctor ${SLURMD_NODENAME:-$(uname -n)}"
echo "$name begins"
{
    {
        said=$({
            timeout -k 5 "$seconds" "$@" 2>&1 >&3 3>&- < /dev/null
            printf '\\n%s' "$?"
        } | tail -c 8000)
    } 3>&1
    printf '\\0%s' "$said"
} | base64 -w 400 | sed "s/^/$name /"
echo "$name ends"
"""
"""Runs the command: its output, a NUL, the end of what it said on standard error, and its exit code.

Slurm passes a task's output on by lines, in pieces of 1024 bytes at most.
"""

_HOLD = 'echo "$SLURM_JOB_ID"; exec cat'
"""Holds an allocation as long as we live: the end of our pipe ends it, however we end."""


def ask(nodes: Sequence[str], way: LaunchOptions, listener: Listener, *, apart: Sequence[str] = ()) -> None:
    """Ask all of them, `LaunchOptions.block` nodes by one command; returns when no answer can come any more.

    ``apart``: more nodes, each by a command of its own, since a block would wait for them.
    Ctrl-C ends what runs, as srun and salloc end it on the nodes, and is raised.
    """
    asyncio.run(_Asking(way, listener).all(nodes, apart))


@dataclass
class _Asking:
    """One run over all blocks."""

    way: LaunchOptions
    listener: Listener
    ends: float = field(init=False)
    """When the budget is spent, by the monotonic clock."""

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.way.budget_s
        self._pace = Pace(self.way.rate)
        self._singles = asyncio.Semaphore(self.way.fanout)
        self._blocks = asyncio.Semaphore(min(BLOCKS, self.way.fanout))

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
        """Ask a block; returns smaller ones where Slurm refuses so large a job."""
        if len(nodes) == 1 or time.monotonic() >= self.ends:
            await self._one_by_one(nodes, self.way)
        elif self.way.via is Via.FLUX or self.way.job:
            await self._steps(nodes, self.way)
        else:
            async with self._allocation(nodes) as (job, is_refused):
                if job:
                    await self._steps(nodes, replace(self.way, job=job, options=()))
            if is_refused:
                middle = len(nodes) // 2
                return [nodes[:middle], nodes[middle:]]
            if not job:
                await self._one_by_one(nodes, self.way)
        return []

    async def _one_by_one(self, nodes: Iterable[str], way: LaunchOptions) -> None:
        async def single(node: str) -> None:
            async with self._singles:
                await self._pace.turn()
                self.listener.started(node)
                self.listener.finished(*await ask_one_until(Target.of_node(node), way, self.ends))

        await asyncio.gather(*map(single, nodes))

    async def _steps(self, nodes: Sequence[str], way: LaunchOptions, *, is_first: bool = True) -> None:
        """A step over all nodes, one more over those that were cut, and one for each of the rest."""
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
        elif is_first and len(cut) > 1 and not way.shipped:  # its file is gone where it was started
            await asyncio.gather(self._steps(cut, way, is_first=False), self._one_by_one(unbegun, way))
        else:
            await self._one_by_one(left, way)

    async def _step(self, nodes: Sequence[str], way: LaunchOptions) -> _Answers:
        """One command over the nodes; returns who has begun and who has answered."""
        seconds = min(way.deadline_s, max(self.ends - time.monotonic(), 0))
        answers = _Answers(nodes, self.listener, seconds)
        await self._pace.turn()
        words = _words(nodes, way, seconds)
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: answers, *words, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            return answers  # each node is asked by itself, and that says why it is not
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
        """The id of a job that has the nodes; else empty, and whether Slurm has refused it at once."""
        way = self.way
        minutes = min(way.job_limit_s, 2 * way.deadline_s + way.patience_s) / 60
        limits = [way.immediate, f"--time={math.ceil(minutes)}", "--no-kill", "--job-name=gpuipc-doctor"]
        words = ["salloc", *limits, f"-N{len(nodes)}", "-w", ",".join(nodes), *way.options, "sh", "-c", _HOLD]
        await self._pace.turn()
        try:
            transport, channel = await asyncio.get_running_loop().subprocess_exec(
                _Job, *words, stdin=asyncio.subprocess.PIPE, start_new_session=True, env=_as_salloc_reads_it()
            )
        except OSError:
            yield "", False
            return
        try:
            await within(way.patience_s + GRACE_S, channel.settled)
            if b"Granted job allocation" in channel.said:  # a Prolog may take its time
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


class _Answers(Channel):
    """Takes the answers of a block apart as they come."""

    def __init__(self, nodes: Iterable[str], listener: Listener, deadline_s: float) -> None:
        super().__init__()
        self._listener, self._deadline_s = listener, deadline_s
        self._names = {node.partition(".")[0]: node for node in nodes}
        self._names |= {node: node for node in nodes}
        self._parts: dict[str, list[bytes]] = {}
        self._size: dict[str, int] = {}
        self._rest = b""
        self.begun: dict[str, float] = {}
        """When, by the monotonic clock."""
        self.ended: set[str] = set()
        self.is_late, self.late = False, f"no answer within {deadline_s:g} s"

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            return  # whoever has not answered is asked by itself, and that says why it does not
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_ANSWER:]
        for line in lines:
            _, mark, ours = line.partition(MARK)  # before it, the label that SLURM_LABELIO asks for
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
            return  # a line was lost; it is asked once more
        told, _, said = data.rpartition(b"\0")
        words, _, code = said.rpartition(b"\n")
        if not code.isdigit():
            return
        is_late = time.monotonic() - self.begun[node] >= self._deadline_s
        if int(code) > KILLED and not is_late:
            return  # perhaps by Slurm, with the step; it is asked once more
        self.ended.add(node)
        if int(code) in (TIMED_OUT, KILLED + signal.SIGKILL) and is_late:
            self._listener.finished(silent(node, State.DEADLINE, self.late), b"")
        else:
            found, full = answer(node, told[:MAX_ANSWER], int(code), words.decode(errors="replace"), Via.FLUX)
            self._listener.finished(clocked(found, datetime.now().astimezone()), full)


class _Job(Channel):
    """An allocation: ``settled`` when it has been granted or refused."""

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
    """The command for a step over the nodes."""
    command = way.command
    if way.shipped:
        python = f"GPUIPC_DOCTOR_PYTHON={way.shipped.python}"
        command = ("env", python, "sh", _sent(way), "--once", *way.command)
    command = ("sh", "-c", _ON_NODE, "sh", str(math.ceil(seconds)), *command)
    if way.via is Via.FLUX:
        return [*flux.run(nodes, seconds + GRACE_S), *way.options, *command]
    return [*_step(nodes, way, seconds + GRACE_S), *command]


def _step(nodes: Sequence[str], way: LaunchOptions, seconds: float) -> list[str]:
    """A step of Slurm with a task on each node."""
    # The others go on where the command has failed, or has ended, on one node.
    patient = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    size = [f"-N{len(nodes)}", f"-n{len(nodes)}", "--ntasks-per-node=1", "-w", ",".join(nodes)]
    limit = f"--time={math.ceil(seconds / 60)}"
    return ["srun", f"--jobid={way.job}", "--overlap", limit, *patient, *size, *way.options]


def _sent(way: LaunchOptions) -> str:
    """Where the shipped file is on the nodes of a job."""
    assert way.shipped
    return f"{way.shipped.to}/gpuipc-doctor.{way.job}"


async def _send(nodes: Sequence[str], way: LaunchOptions) -> bool:
    """Whether the shipped file has come to all nodes of a job. It replaces no file that is there."""
    assert way.shipped
    copy = ["sbcast", f"--jobid={way.job}", str(way.shipped.file), _sent(way)]
    if await _run(copy, way.deadline_s) == 0:
        return True
    await _remove(nodes, way)
    return False


async def _remove(nodes: Sequence[str], way: LaunchOptions) -> None:
    """Remove the shipped file from nodes on which it was not started, which removes it, too."""
    await _run([*_step(nodes, way, REMOVAL_S), "rm", "-f", "--", _sent(way)], REMOVAL_S)


async def _run(words: Sequence[str], seconds: float) -> int | None:
    """The exit code of a command; None without one by the deadline."""
    start = asyncio.get_running_loop().subprocess_exec
    transport, channel = await start(
        Channel, *words, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        await within(seconds, channel.exited)
        return transport.get_returncode()
    finally:
        await asyncio.shield(end(transport, channel))


def _as_salloc_reads_it() -> Mapping[str, str]:
    """The environment, with what ``SLURM_*`` say of jobs by srun as ``SALLOC_*``, unless there are those."""
    of_srun = (
        (name.removeprefix("SLURM_"), value) for name, value in os.environ.items() if name[:6] == "SLURM_"
    )
    return {**{f"SALLOC_{name}": value for name, value in of_srun}, **os.environ}
