"""Native stacks from tools that stop a process briefly: py-spy for Python programs, else eu-stack or gdb.

One process is stopped at a time, for at most `LIMIT_S`, and then continues unchanged. A stop interrupts
waiting system calls; the kernel restarts them, except for some that return EINTR, such as epoll_wait
(signal(7), "Interruption of system calls and library functions by stop signals").
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuipc_doctor.files import foreign
from gpuipc_doctor.stacks.code import Code
from gpuipc_doctor.stacks.debuggers import GDB, find_program
from gpuipc_doctor.stacks.process_list import PROC
from gpuipc_doctor.stacks.python_stacks import is_python
from gpuipc_doctor.stacks.thread import Program, Stack

LIMIT_S = 2.0
"""Maximum seconds for which a process is stopped."""

MAX_FRAMES = 100

_STOPPED = "the process is already stopped"

_RESUMED_S = 10.0
"""Seconds after a tool's end until a process that is still stopped is reported."""

_THREAD = re.compile(r"^(?:TID |Thread .*\((?:LWP|process|Thread [^)]*\(LWP) )(\d+)")
_FRAME = re.compile(r"^#\d+ +0x([0-9a-f]+)(?: in)? (\S+)")
_INNERMOST = re.compile(r"^#0 +(\w+) \(.*\)(?: from (\S+))?")


class NotStopped(Exception):
    """A process was not stopped, or gave no stack; the message says why in one line."""


class _Killed(NotStopped):
    """The tool took too long, or printed too much."""


def stacks(process: Program) -> Mapping[int, Stack]:
    """Stop a process, read the stack of each thread (innermost frame first), and resume the process. Raises
    `NotStopped`."""
    if why := reason_to_leave(process.pid):
        raise NotStopped(why)
    program, command, parse = _tool(process)
    if program is None:
        raise NotStopped("neither gdb nor eu-stack is installed")
    try:
        text = _run([program, *command])
    except _Killed:
        _continue(process.pid)  # the SIGSTOP of its attach may be on its way, neither pending nor taken
        raise
    finally:
        _resume(process.pid)
    try:
        found = foreign.parsed(lambda text: dict(parse(text, process.pid)), text)
    except foreign.Refused as reason:
        raise NotStopped(f"cannot parse the output of {Path(program).name}: {reason}") from None
    if found:
        return found
    raise NotStopped(f"{Path(program).name} printed no stack")


def reason_to_leave(pid: int) -> str:
    """Why a process must not be stopped; empty if it may be."""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
        states = [
            (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            for task in (PROC / str(pid) / "task").iterdir()
        ]
    except (OSError, IndexError):
        return "the process has ended, or its threads cannot be read"
    tracer = re.search(r"^TracerPid:\t(\d+)$", status, re.MULTILINE)
    if tracer and tracer[1] != "0":
        return f"the process is traced by process {tracer[1]}"
    if "T" in states or "t" in states:
        return _STOPPED
    if "D" in states:
        return "a thread is in state D and would not stop"
    return ""


Parser = Callable[[str, int], Iterator[tuple[int, Stack]]]


def _tool(process: Program) -> tuple[str | None, tuple[str, ...], Parser]:
    pid = str(process.pid)
    if is_python(process) and (spy := find_program("py-spy")):
        return spy, ("dump", "--native", "--json", "--pid", pid), _of_py_spy
    if found := find_program("eu-stack"):
        return found, ("-p", pid), _of_debugger
    return find_program("gdb"), (*GDB, "-p", pid, "-ex", "thread apply all backtrace 60"), _of_debugger


def _run(command: list[str]) -> str:
    """Output of a tool. A tool that takes too long is killed, and the kernel detaches it from the process."""
    name = Path(command[0]).name
    try:
        tool = foreign.run(command, limit_s=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise _Killed(f"{name} took longer than {LIMIT_S:g} s") from None
    except OSError as error:
        raise _Killed(f"{name}: {error.strerror}") from None
    if tool.returncode:
        words = tool.stderr.split() or [f"exit code {tool.returncode}"]
        raise NotStopped(f"{name}: {' '.join(words)[:200]}")
    return tool.stdout


def _resume(pid: int) -> None:
    """Continue a process that a killed tool left stopped."""
    end = time.monotonic() + _RESUMED_S
    while (why := reason_to_leave(pid)) and "D" not in why and time.monotonic() < end:
        if why == _STOPPED:
            _continue(pid)
        time.sleep(0.02)


def _continue(pid: int) -> None:
    """Send SIGCONT, which also discards a SIGSTOP that a thread has not taken yet (signal(7))."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)


def _of_py_spy(text: str, pid: int) -> Iterator[tuple[int, Stack]]:
    """Native frames of each thread up to the interpreter. Python frames are read separately."""
    for thread in json.loads(text):
        frames: list[str] = []
        for frame in thread["frames"]:
            if not frame["module"]:
                break
            frames.append(_native(frame["name"], Path(frame["module"]).name))
        yield int(thread["os_thread_id"] or pid), (*frames[:MAX_FRAMES], "[python]")


def _native(name: str, file: str) -> str:
    """A frame as text. py-spy names mpi4py's functions as in the source; here they get MPI's names."""
    if name.startswith("0x"):
        return f"[{file}]"
    return f"MPI_{name[:1].upper()}{name[1:]} ({file})" if file.startswith("MPI.") else f"{name} ({file})"


def _of_debugger(text: str, pid: int) -> Iterator[tuple[int, Stack]]:
    """Frames of each thread printed by eu-stack or gdb, without inlined functions."""
    try:
        code = Code(pid)
    except OSError:
        raise NotStopped("the process has ended") from None
    thread, frames = 0, list[str]()
    for line in [*text.splitlines(), "TID 0"]:
        if begin := _THREAD.match(line):
            if frames:
                yield thread, tuple(frames[:MAX_FRAMES])
            thread, frames = int(begin[1]), []
        elif frame := _FRAME.match(line):
            file = code.file(int(frame[1], 16))
            name = frame[2].partition("@")[0]
            if file:
                frames.append(f"[{file}]" if name == "??" else f"{name} ({file})")
        elif (innermost := _INNERMOST.match(line)) and innermost[2]:
            frames.append(f"{innermost[1]} ({Path(innermost[2]).name})")
