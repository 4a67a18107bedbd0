"""Have every node answer by a command of its own, each within its deadline: one that hangs delays no other.

A command is started here for each node: `ssh`, `flux run`, or `srun` with a step (inside an allocation) or a
job (outside). `blocks` asks many nodes with one command. A node prints its report, which comes back over
that channel: no file system need be shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gpuipc_doctor.fleet import flux
from gpuipc_doctor.fleet.summary import BadSummary, NodeReport, State, clocked, loads, named, of, silent
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report.documents import BadDocument

MAX_ANSWER = 64 << 20
"""Bytes of a report; what is longer is none."""

SHOWN_OUTPUT = 120
"""Characters of the first line of an output that is not a report."""

MAX_WORDS = 8 << 10
"""Bytes of what a launcher says that are kept."""

GRACE_S = 5.0
"""Between TERM, at which srun cancels its step or job, and KILL; and for the last words of what has ended."""

NOT_ASKED = "it was not asked: the budget for all nodes was spent"

SUMMARY_BEGINS = b'{"node":'
"""The first field of a summary, which is one line."""

_MISSING = re.compile(r"not found|No such file or directory|No module named")

_ENDED = "Exited with exit code"
"""srun's words for what it has launched, and what has ended badly."""

_WRONG, _OWN = "Error: ", "gpuipc-doctor: "
"""How a line of the tool's begins: what click says of the command line, and all else."""

_CARRY = """\
umask 077
file=$(mktemp "$1/gpuipc-doctor.XXXXXX") && cat > "$file" || { rm -f "$file"; exit 126; }
seconds=$2; export GPUIPC_DOCTOR_PYTHON="$3"; shift 3
exec timeout "$seconds" sh "$file" --once "$@" < /dev/null
"""
"""What puts a shipped file, its standard input, in a place of its own and runs it; `--once` removes it."""


class Via(enum.Enum):
    """How a command gets to a node."""

    SLURM = "slurm"
    FLUX = "flux"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The tool as one file (`make zipapp`), which each node is sent."""

    file: Path
    to: str = "/tmp"  # noqa: S108 - there mktemp(1) makes a file, and Slurm one that was none
    """A directory of the nodes."""
    python: str = ""
    """Of the nodes, by default the first in PATH that is new enough."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to reach the nodes. Times in seconds; ``options`` are for `srun` or `ssh` as they stand."""

    via: Via
    command: tuple[str, ...]
    """What runs on the node and prints a JSON report, a summary, or the one before the other."""
    fanout: int = 64
    """Commands at a time."""
    rate: float = math.inf
    """Jobs and steps started in a second."""
    block: int = 1
    """Nodes of one job and its step, at most."""
    job_limit_s: float = math.inf
    """The longest job that Slurm admits there."""
    deadline_s: float = 600.0
    budget_s: float = math.inf
    """For all nodes together: who has not been asked by then is not, and who is being asked is no longer."""
    patience_s: float = 30.0
    """How long a job waits for a node that is busy, drained or down, and ssh for one that does not answer."""
    options: tuple[str, ...] = ()
    job: str = ""
    """Of Slurm, whose nodes are asked by steps in it; without one each command is a job."""
    shipped: Shipped | None = None
    """Then ``command`` is for the tool, and does not begin with it."""

    def words(self, target: Target) -> list[str]:
        """The command that is started here for a target."""
        command = [*self.command, *target.arguments]
        if self.via is Via.SSH:
            quiet = ["-oBatchMode=yes", f"-oConnectTimeout={math.ceil(self.patience_s)}"]
            return ["ssh", *quiet, *self.options, target.node, "--", self.line(target)]
        if self.via is Via.FLUX:
            return [*flux.run([target.node], self.deadline_s), *self.options, *command]
        where = ["--overlap", f"--jobid={self.job}"] if self.job else [self.immediate]
        # In minutes: what nobody waits for any more, for we were killed, ends by itself.
        limit = f"--time={math.ceil(self.deadline_s / 60)}"
        if self.shipped:
            python = f"--export=ALL,GPUIPC_DOCTOR_PYTHON={self.shipped.python}"
            where = [*where, python, f"--bcast={self.shipped.to}/"]
            command = [str(self.shipped.file), "--once", *command]
        return ["srun", *where, limit, "-w", target.node, "-N1", "-n1", *self.options, *command]

    @property
    def immediate(self) -> str:
        """How long a job waits for its nodes."""
        return f"--immediate={math.ceil(self.patience_s)}"

    def line(self, target: Target) -> str:
        """What a shell on the node is given over ssh."""
        # The other end of a broken connection goes on; timeout(1) there ends what nobody waits for.
        seconds = f"{math.ceil(self.deadline_s)}"
        command = [*self.command, *target.arguments]
        there = ["timeout", seconds, *command]
        if self.shipped:
            there = ["sh", "-c", _CARRY, "sh", self.shipped.to, seconds, self.shipped.python, *command]
        return shlex.join(there)

    def stdin(self) -> Path:
        """What is sent along."""
        return self.shipped.file if self.shipped and self.via is Via.SSH else Path(os.devnull)


@dataclass(frozen=True, slots=True)
class Target:
    """What to ask, by its ``name``: on ``node``, with more arguments; ``uses``: the nodes it takes up."""

    name: str
    node: str
    arguments: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    @classmethod
    def of_node(cls, node: str) -> Target:
        return cls(node, node, uses=(node,))


class Listener(Protocol):
    """Is told what becomes of the targets."""

    def started(self, name: str) -> None: ...
    def finished(self, report: NodeReport, full: bytes) -> None: ...


def ask(targets: Sequence[Target], way: LaunchOptions, listener: Listener) -> None:
    """Ask all of them, a node one thing at a time; returns when each has answered or will not.

    Ctrl-C ends what runs, as srun and ssh end it on the nodes, and is raised.
    """
    asyncio.run(_ask_all(targets, way, listener))


class Pace:
    """Lets commands begin, ``rate`` in a second, so that a controller is not flooded."""

    def __init__(self, rate: float) -> None:
        self._apart_s = 1 / rate
        self._next = 0.0

    async def turn(self) -> None:
        """Return when the next command may begin."""
        now = time.monotonic()
        begin = max(now, self._next)
        self._next = begin + self._apart_s
        await asyncio.sleep(begin - now)


async def _ask_all(targets: Sequence[Target], way: LaunchOptions, listener: Listener) -> None:
    places, pace = asyncio.Semaphore(way.fanout), Pace(way.rate)
    busy = {node: asyncio.Lock() for target in targets for node in target.uses}
    ends = time.monotonic() + way.budget_s

    async def ask_one(target: Target) -> None:
        async with contextlib.AsyncExitStack() as held:
            for node in sorted(target.uses):  # in one order, so that no two wait for each other
                await held.enter_async_context(busy[node])
            await held.enter_async_context(places)
            await pace.turn()
            listener.started(target.name)
            listener.finished(*await ask_one_until(target, way, ends))

    await asyncio.gather(*map(ask_one, targets))


async def ask_one_until(target: Target, way: LaunchOptions, ends: float) -> tuple[NodeReport, bytes]:
    """The answer of a target, which has until its deadline and until ``ends``, by the monotonic clock."""
    left = ends - time.monotonic()
    if left <= 0:
        return silent(target.name, State.NO_ANSWER, NOT_ASKED), b""
    return await _ask_one(target, replace(way, deadline_s=min(left, way.deadline_s)))


async def _ask_one(target: Target, way: LaunchOptions) -> tuple[NodeReport, bytes]:
    words, node = way.words(target), target.name
    try:
        with way.stdin().open("rb") as sent:
            transport, channel = await asyncio.get_running_loop().subprocess_exec(
                Channel, *words, stdin=sent, start_new_session=True
            )
    except OSError as error:
        return silent(node, State.NOT_LAUNCHED, f"{words[0]}: {error.strerror}"), b""
    try:
        await within(way.deadline_s, channel.exited)
        if channel.exited.is_set():
            await within(GRACE_S, channel.closed)  # what ssh has left behind may hold it open for ever
            code, said = transport.get_returncode() or 0, channel.said.decode(errors="replace")
            report, full = answer(node, bytes(channel.told), code, said, way.via)
            return clocked(report, channel.arrived), full
        return silent(node, State.DEADLINE, f"no answer within {way.deadline_s:g} s"), b""
    finally:
        await asyncio.shield(end(transport, channel))


class Channel(asyncio.SubprocessProtocol):
    """What comes back from a node. An answer that is too long is ended, not read to its end."""

    def __init__(self) -> None:
        self.told, self.said = bytearray(), bytearray()
        self.exited, self.closed = asyncio.Event(), asyncio.Event()
        self.arrived = datetime.now().astimezone()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.arrived = datetime.now().astimezone()
        kept, most = (self.told, MAX_ANSWER) if fd == 1 else (self.said, MAX_WORDS)
        kept += data[: most - len(kept)]
        if len(self.told) >= MAX_ANSWER:
            with contextlib.suppress(ProcessLookupError):
                self._transport.terminate()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def within(seconds: float, event: asyncio.Event) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def end(transport: asyncio.SubprocessTransport, channel: Channel) -> None:
    """End a command, at which srun and salloc end their step or job."""
    with contextlib.suppress(ProcessLookupError):
        if not channel.exited.is_set():
            transport.terminate()
            await within(GRACE_S, channel.exited)
    transport.close()  # kills what is still there
    await channel.exited.wait()


def answer(node: str, data: bytes, code: int, said: str, via: Via) -> tuple[NodeReport, bytes]:
    """What a node's output comes to: its summary and its report, or why there is none."""
    words = " ".join(said.split())
    if len(data) >= MAX_ANSWER:
        return silent(node, State.NO_ANSWER, f"its answer is longer than {MAX_ANSWER >> 20} MiB"), b""
    begin = _line_start(data, b"{")
    if begin >= 0:
        end = _line_start(data, SUMMARY_BEGINS)
        try:
            if end >= 0:
                line = data[end:].partition(b"\n")[0]
                return named(loads(line), node), data[begin:end]
            return of(report_json.loads(data[begin:].decode(errors="replace")), node, code), data[begin:]
        except (BadDocument, BadSummary) as error:
            if not data.rstrip().endswith(b"}"):
                return silent(node, State.NO_ANSWER, f"its answer was cut after {len(data)} bytes"), b""
            return silent(node, State.OTHER_VERSION, str(error)), b""
    if code == Exit.USAGE and (refusal := _refusal(said)):
        # The option is ours, not the user's: a tool from before summaries does not know it.
        state = State.OTHER_VERSION if "--summary" in refusal else State.REFUSED
        return silent(node, state, refusal), b""
    reason = words or f"exit code {code}, and nothing was printed"
    if printed := data.strip():
        first = printed.partition(b"\n")[0].decode(errors="replace")[:SHOWN_OUTPUT]
        reason = f"its output is not a report: {first!r}" + f"; {words}" * bool(words)
    return silent(node, _state(code, words, via), reason), b""


def _line_start(data: bytes, prefix: bytes) -> int:
    """Where the first line with a prefix begins, -1 without one: login banners may stand before it."""
    return 0 if data.startswith(prefix) else data.find(b"\n" + prefix) + 1 or -1


def _refusal(said: str) -> str:
    """What the tool said was wrong: with the command line, else with something there; empty if nothing."""
    lines = [line.strip() for line in said.splitlines()]
    wrong = [line.removeprefix(_WRONG) for line in lines if line.startswith(_WRONG)]
    return "; ".join(wrong or [line.removeprefix(_OWN) for line in lines if line.startswith(_OWN)])


def _state(code: int, words: str, via: Via) -> State:
    """By the exit codes of ssh(1), timeout(1) and shells, and by what srun says where it has no code for
    it."""
    if code in (126, 127) or (via is Via.SLURM and _MISSING.search(words)):
        return State.NO_TOOL
    if via is Via.SSH and code == 255:
        return State.UNREACHABLE
    if via is not Via.SLURM and code == 124:
        return State.DEADLINE
    if via is Via.SLURM and "srun: error" in words and _ENDED not in words:  # it exits with 233, among others
        return State.NOT_LAUNCHED
    return State.KILLED if code < 0 or code > 128 else State.NO_ANSWER
