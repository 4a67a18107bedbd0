"""Run a command for each node, each within its deadline, so that a hanging node delays no other.

A command is started here for each node: `ssh`, `flux run`, or `srun` with a step (inside an allocation) or a
job (outside). `node_blocks` runs many nodes with one command. A node prints its report to the command's
output, so no shared file system is needed.
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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpuipc_doctor.fleet import flux
from gpuipc_doctor.fleet.summary import (
    BadSummary,
    GarbledSummary,
    NodeReport,
    State,
    clocked,
    loads,
    named,
    of,
    silent,
)
from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import report_json
from gpuipc_doctor.report.json_documents import BadDocument, NotJson
from gpuipc_doctor.supervise import tree

MAX_ANSWER = 64 << 20
"""Maximum bytes of a report."""

SHOWN_OUTPUT = 120
"""Maximum characters shown of an output that is not a report: the beginning of its first line."""

MAX_WORDS = 8 << 10
"""Bytes of a launcher's output to keep."""

GRACE_S = 5.0
"""Seconds from SIGTERM, at which srun cancels its step or job, to SIGKILL; also seconds to wait for the last
output."""

CANCELLING_S = 4 * GRACE_S
"""Maximum seconds to wait for cancelled tasks: a step ends before its allocation, each within two graces."""

NO_INPUT = Path(os.devnull)

NOT_ASKED = "not run: the time budget for all nodes was exhausted"

_OBJECT = re.compile(rb"^\{(?=\s*\"|\s*\Z|\})", re.MULTILINE)
"""Start of an object that may be the answer. A login banner may contain a brace, but not before a key."""

SUMMARY_BEGINS = b'{"node":'
"""First field of a summary, which is one line."""

_MISSING = re.compile(r"not found|No such file or directory|No module named")

_ENDED = "Exited with exit code"
"""Part of srun's error for a task that started and failed. Its other errors mean that no task started."""

_WRONG = re.compile(r"(?:Error|gpuipc-doctor(?: [a-z-]+)+): ")
_OWN = re.compile(r"gpuipc-doctor: ")
"""Prefixes of this tool's messages: for usage errors (older versions have click's), and for all others."""

TRUSTED = """\
umask 077
refuse() { echo "gpuipc-doctor: $1; name another --ship-to" >&2; exit 126; }
place=$(cd -P -- "$1" 2>/dev/null && pwd -P) || refuse "$1: No such file or directory"
me=$(id -u); way=$place
while :; do
    found=$(stat -c '%u %A' -- "$way" 2>&1) || refuse "$found"
    case ${found%% *} in
        0 | "$me") ;;
        *) refuse "nothing is run from $1: $way belongs to user ${found%% *}" ;;
    esac
    case $me${found#* } in
        *[tT]) ;;
        *w? | 0d????w*) refuse "nothing is run from $1: others can write $way" ;;
    esac
    [ "$way" != / ] || break
    way=${way%/*}; way=${way:-/}
done
"""
"""Start of a shell script whose first argument is a directory for a file that will be run. Sets ``place`` to
the directory without links; ends with 126 if another user could replace the file.

The directory and all above it must belong to this user or root. Others may write a sticky one, such as /tmp;
for users other than root, a group may write any."""

_CARRY = f"""\
{TRUSTED}
file=$(mktemp "$place/gpuipc-doctor.XXXXXX") && cat > "$file" || {{ rm -f "$file"; exit 126; }}
seconds=$2; export GPUIPC_DOCTOR_PYTHON="$3"; shift 3
timeout "$seconds" sh "$file" --once "$@" < /dev/null
exit $?
"""
"""Shell script that saves a shipped file from standard input, readable for its user only, and runs it with
`--once`, which removes the file."""

_TIMED = 'timeout "$@"; exit $?'
"""Ends a command on its node. The shell exits with a code even if timeout(1) was killed by a signal:
otherwise ssh would exit with 255, as for an unreachable node."""


class Via(enum.Enum):
    """How to run a command on a node."""

    SLURM = "slurm"
    FLUX = "flux"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The tool as one file (`make zipapp`), which is sent to each node."""

    file: Path
    to: str = "/tmp"  # noqa: S108 - there mktemp(1) makes a file, and Slurm one that was none
    """Target directory on the nodes."""
    python: str = ""
    """Python on the nodes; default: the first on PATH that is new enough."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to reach the nodes. Times in seconds; ``options`` are passed to `srun` or `ssh` unchanged."""

    via: Via
    command: tuple[str, ...]
    """Command for the node that prints a JSON report, a summary, or both, the summary last."""
    fanout: int = 64
    """Maximum commands at a time."""
    rate: float = math.inf
    """Maximum jobs and steps started per second."""
    block: int = 1
    """Maximum nodes of a job."""
    job_limit_s: float = math.inf
    """Longest job in seconds that Slurm admits."""
    deadline_s: float = 600.0
    budget_s: float = math.inf
    """Seconds for the whole fleet. At the end, running nodes are stopped and the rest are not started."""
    patience_s: float = 30.0
    """Seconds for which a job waits for a node that is busy, drained or down, or for which ssh tries to
    connect."""
    options: tuple[str, ...] = ()
    job: str = ""
    """The Slurm allocation whose steps run on the nodes; without it, each command is a job."""
    shipped: Shipped | None = None
    """The tool to send; ``command`` then starts with its arguments."""
    given: Path | None = None
    """A file that every command reads as its standard input; none with a shipped tool."""
    at_interruption: Callable[[], None] = lambda: None
    """Called at once, before the running commands are ended."""
    names: str = ""
    """An option that tells the command over ssh how its node is called here; Slurm tells it itself."""

    def words(self, target: Target) -> list[str]:
        """The local command line for a target."""
        command = self._on_node(target)
        if self.via is Via.SSH:
            quiet = ["-oBatchMode=yes", f"-oConnectTimeout={math.ceil(self.patience_s)}"]
            return ["ssh", *quiet, *self.options, target.node, "--", self.line(target)]
        if self.via is Via.FLUX:
            return [*flux.run([target.node], self.deadline_s), *self.options, *command]
        where = ["--overlap", f"--jobid={self.job}"] if self.job else [self.immediate]
        # in minutes: ends the job even if this process is killed
        limit = f"--time={math.ceil(self.deadline_s / 60)}"
        return ["srun", *where, limit, "-w", target.node, "-N1", "-n1", *self.options, *command]

    @property
    def immediate(self) -> str:
        """Seconds for which a job waits for its nodes."""
        return f"--immediate={math.ceil(self.patience_s)}"

    def line(self, target: Target) -> str:
        """The shell command that ssh runs on the node."""
        # After a broken connection the command continues; timeout(1) ends it.
        timed = [] if self.shipped else ["sh", "-c", _TIMED, "sh", f"{math.ceil(self.deadline_s)}"]
        return shlex.join([*timed, *self._on_node(target)])

    def _on_node(self, target: Target) -> list[str]:
        is_known = self.names and self.via is Via.SSH and target.node  # not through gateways
        called = [self.names, target.node] if is_known else []
        command = [*self.command, *called, *target.arguments]
        if not self.shipped:
            return command
        seconds = f"{math.ceil(self.deadline_s)}"
        return ["sh", "-c", _CARRY, "sh", self.shipped.to, seconds, self.shipped.python, *command]

    def stdin(self) -> Path:
        """The command's standard input."""
        return self.shipped.file if self.shipped else self.given or NO_INPUT


@dataclass(frozen=True, slots=True)
class Target:
    """A run of the command on ``node`` with additional arguments. ``uses``: the nodes that it occupies."""

    name: str
    node: str
    arguments: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    @classmethod
    def of_node(cls, node: str) -> Target:
        return cls(node, node, uses=(node,))


class Listener(Protocol):
    """Has the methods that `ask` calls when a target starts and ends."""

    def started(self, name: str) -> None: ...
    def finished(self, report: NodeReport, full: bytes) -> None: ...


def ask(targets: Sequence[Target], way: LaunchOptions, listener: Listener) -> None:
    """Run all targets, one at a time on each node; returns when no more answers can come. Ctrl-C is raised
    after ending the running commands, which srun and ssh end on the nodes."""
    run_interruptibly(_ask_all(targets, way, listener), way.at_interruption)


T = TypeVar("T")
P = TypeVar("P", bound=asyncio.SubprocessProtocol)


class _Starts:
    """Number of commands that are being started."""

    number = 0


async def start(
    protocol: Callable[[], P], words: Sequence[str], **options: Any
) -> tuple[asyncio.SubprocessTransport, P]:
    """Start a command in a session of its own. Raises `OSError`.

    An interruption is raised only afterwards: in between, it would leave a command that nobody knows.
    """
    _Starts.number += 1
    try:
        loop = asyncio.get_running_loop()
        return await loop.subprocess_exec(protocol, *words, start_new_session=True, **options)
    finally:
        _Starts.number -= 1


def run_interruptibly(work: Coroutine[Any, Any, T], tell: Callable[[], None] = lambda: None) -> T:
    """Run a coroutine as asyncio.run does, but wait at most `CANCELLING_S` for the tasks that it leaves.

    Except while a command starts (`start`), an interruption is raised anywhere in the loop, also where that
    loses the end of a command: the task that waits for that end then outlasts its cancelling.
    """
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # such a task is not worth a message
    interrupted = asyncio.Event()

    def interrupt() -> None:
        tell()
        if not _Starts.number or loop.is_closed():
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(interrupted.set)

    with tree.interruptible(interrupt):
        try:
            main = loop.create_task(work)
            ends = {main, loop.create_task(interrupted.wait())}
            loop.run_until_complete(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
            if not main.done():
                raise KeyboardInterrupt
            return main.result()
        finally:
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=CANCELLING_S))
            loop.close()


class Pace:
    """Limits the rate of starting commands to ``rate`` per second, so as not to flood a controller."""

    def __init__(self, rate: float) -> None:
        self._apart_s = 1 / rate
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next command may start."""
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
            for node in sorted(target.uses):  # in a fixed order, to avoid deadlock
                await held.enter_async_context(busy[node])
            await held.enter_async_context(places)
            await pace.turn()
            listener.started(target.name)
            listener.finished(*await ask_one_until(target, way, ends))

    await asyncio.gather(*map(ask_one, targets))


async def ask_one_until(target: Target, way: LaunchOptions, ends: float) -> tuple[NodeReport, bytes]:
    """The answer of a target, limited by its deadline and by ``ends`` (monotonic clock)."""
    left, node = ends - time.monotonic(), target.name
    if left <= 0:
        return silent(node, State.NO_ANSWER, NOT_ASKED), b""
    way = replace(way, deadline_s=min(left, way.deadline_s))
    words = way.words(target)
    try:
        ended = await run(words, way.deadline_s, way.stdin())
    except OSError as error:
        return silent(node, State.NOT_LAUNCHED, f"{words[0]}: {error.strerror}"), b""
    if ended.code is None:
        return silent(node, State.DEADLINE, f"no answer within {way.deadline_s:g} s"), b""
    report, full = answer(node, bytes(ended.told), ended.code, ended.said.decode(errors="replace"), way.via)
    return clocked(report, ended.arrived), full


async def run(words: Sequence[str], seconds: float, stdin: Path = NO_INPUT) -> Channel:
    """Run a command in a session of its own, and end it at its deadline. Raises `OSError`."""
    with stdin.open("rb") as sent:
        transport, channel = await start(Channel, words, stdin=sent)
    try:
        tree.carry_priority(transport.get_pid())
        await within(seconds, channel.exited)
        if channel.exited.is_set():
            await within(GRACE_S, channel.closed)  # a child that ssh left behind may keep it open
            channel.code = transport.get_returncode()
        return channel
    finally:
        await asyncio.shield(end(transport, channel))


class Channel(asyncio.SubprocessProtocol):
    """A command's output, read up to a maximum length, and its exit code (None at the deadline)."""

    def __init__(self) -> None:
        self.told, self.said = bytearray(), bytearray()
        self.code: int | None = None
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
    """End a command; srun and salloc then end their step or job."""
    try:
        with contextlib.suppress(ProcessLookupError):
            if not channel.exited.is_set():
                transport.terminate()
                await within(GRACE_S, channel.exited)
    finally:
        transport.close()  # kills remaining processes
    await channel.exited.wait()


def answer(node: str, data: bytes, code: int, said: str, via: Via) -> tuple[NodeReport, bytes]:
    """A node's summary and report from its output, or the reason for having none."""
    words = " ".join(said.split())
    if len(data) >= MAX_ANSWER:
        return silent(node, State.NO_ANSWER, f"the answer is longer than {MAX_ANSWER >> 20} MiB"), b""
    if start := _OBJECT.search(data):
        begin = start.start()
        # Login banners may precede the line of the summary.
        end = 0 if data.startswith(SUMMARY_BEGINS) else data.find(b"\n" + SUMMARY_BEGINS) + 1 or -1
        try:
            if end >= 0:
                line = data[end:].partition(b"\n")[0]
                return named(loads(line), node), data[begin:end]
            full = data[begin : data.rindex(b"}") + 2] if b"}" in data else data[begin:]
            return of(report_json.loads(full.decode(errors="replace")), node, code), full
        except (BadDocument, BadSummary) as error:
            if not data.rstrip().endswith(b"}"):
                return silent(node, State.NO_ANSWER, f"the answer was truncated after {len(data)} bytes"), b""
            if isinstance(error, (NotJson, GarbledSummary)):
                garbled = _first_line(data[max(begin, end) :])
                return silent(node, State.NO_ANSWER, f"the answer is garbled: {garbled}; {error}"), b""
            return silent(node, State.OTHER_VERSION, str(error)), b""
    if code == Exit.USAGE and (refusal := _refusal(said)):
        # The option is ours, not the user's: tool versions without summaries do not know it.
        state = State.OTHER_VERSION if "--summary" in refusal else State.REFUSED
        return silent(node, state, refusal), b""
    state = _state(code, words, via)
    unsaid = "ended at the deadline" if state is State.DEADLINE else f"exit code {code}"
    reason = words or f"{unsaid}, no output"
    if printed := data.strip():
        reason = f"the output is not a report: {_first_line(printed)}" + f"; {words}" * bool(words)
    return silent(node, state, reason), b""


def _first_line(data: bytes) -> str:
    return repr(data.partition(b"\n")[0].decode(errors="replace")[:SHOWN_OUTPUT])


def _refusal(said: str) -> str:
    """The tool's error about the command line or the node; empty if none."""
    lines = [line.strip() for line in said.splitlines()]
    for prefix in (_WRONG, _OWN):
        if found := [prefix.sub("", line, count=1) for line in lines if prefix.match(line)]:
            return "; ".join(found)
    return ""


def _state(code: int, words: str, via: Via) -> State:
    """The state, judged by the exit codes of ssh(1), timeout(1) and shells, and by srun's messages."""
    if code in (126, 127) or (via is Via.SLURM and _MISSING.search(words)):
        return State.NO_TOOL
    if via is Via.SSH and code == 255:
        return State.UNREACHABLE
    if via is not Via.SLURM and code == 124:
        return State.DEADLINE
    if (
        via is Via.SLURM and "srun: error" in words and _ENDED not in words
    ):  # srun exits with 233, for example
        return State.NOT_LAUNCHED
    return State.KILLED if code < 0 or code > 128 else State.NO_ANSWER
