"""Foreign texts: the output of programs, the answers of services, dumps of processes of other users.

`run` bounds what is read of a program, `parsed` what a parser may use.
"""

from __future__ import annotations

import errno
import os
import pickle
import resource
import selectors
import signal
import struct
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

LIMIT_S = 5.0
"""Maximum seconds of a parser."""
MEMORY_BYTES = 512 << 20
"""Maximum bytes of address space that a parser may use beyond what the process has."""
MAX_RESULT = 64 << 20
"""Maximum bytes of a parser's result, pickled."""
MAX_OUTPUT = 16 << 20
"""Maximum bytes of each of a program's two outputs."""

_LENGTH = struct.Struct("Q")
_Text = TypeVar("_Text")
_Result = TypeVar("_Result")


class Refused(Exception):
    """A foreign text was not parsed; the message says why in one line, without the text's name."""


def parsed(parser: Callable[[_Text], _Result], text: _Text, *, limit_s: float = LIMIT_S) -> _Result:
    """What the parser returns, in a child process with limits of time and memory.

    Raises `Refused` if the parser raises anything, is killed, or exceeds a limit. The process must not have
    loaded a driver. The result is pickled.
    """
    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, if there are other threads
            pid = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        raise Refused(f"no process to parse it: {error.strerror}") from None
    if pid == 0:
        _parse(parser, text, writing, limit_s)
    os.close(writing)
    try:
        answer = _answer(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # SIGCHLD is ignored
            os.waitpid(pid, 0)
    is_value, value = pickle.loads(answer)  # noqa: S301 - written by a process of ours
    if not is_value:
        raise Refused(value)
    result: _Result = value
    return result


def _parse(parser: Callable[[Any], Any], text: Any, writing: int, limit_s: float) -> NoReturn:
    """In the child: write the result's length and the result."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)  # should the parent have died
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = used + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
        try:
            answer = pickle.dumps((True, parser(text)))
        except MemoryError:
            answer = pickle.dumps((False, f"it needs more than {MEMORY_BYTES >> 20} MiB"))
        except Exception as error:
            said = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            answer = pickle.dumps((False, said[:200]))
        if len(answer) > MAX_RESULT:
            answer = pickle.dumps((False, f"its content is more than {MAX_RESULT >> 20} MiB"))
        with open(writing, "wb") as pipe:
            pipe.write(_LENGTH.pack(len(answer)) + answer)
    finally:
        os._exit(0)


def _answer(reading: int, until: float) -> bytes:
    """What the child wrote. Raises `Refused`."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
            left_s = until - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise Refused("it was not parsed in time")
            if not (more := os.read(reading, 1 << 20)):
                raise Refused("its parser was killed")
            data += more
    return bytes(data[_LENGTH.size :])


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    max_bytes: int = MAX_OUTPUT,
) -> subprocess.CompletedProcess[str]:
    """A program's output, without input. Raises `OSError` and `subprocess.TimeoutExpired`.

    A program that prints more than ``max_bytes`` is killed: `OSError` with EFBIG.
    """
    process = subprocess.Popen(
        command,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stderr
    until = time.monotonic() + limit_s
    read = [bytearray(), bytearray()]
    try:
        _read(
            dict(zip((process.stdout.fileno(), process.stderr.fileno()), read, strict=True)), until, max_bytes
        )
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise subprocess.TimeoutExpired(command, limit_s, _text(read[0]), _text(read[1])) from None
    finally:
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver may hold it
                process.wait(1.0)
        process.stdout.close()
        process.stderr.close()
    return subprocess.CompletedProcess(command, process.returncode, _text(read[0]), _text(read[1]))


def _read(into: Mapping[int, bytearray], until: float, max_bytes: int) -> None:
    """Read descriptors until all are closed. Raises `subprocess.TimeoutExpired` and `OSError`."""
    with selectors.DefaultSelector() as selector:
        for fd in into:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready or time.monotonic() > until:
                raise subprocess.TimeoutExpired((), 0.0)
            for key, _ in ready:
                more = os.read(key.fd, 1 << 16)
                into[key.fd].extend(more)
                if not more:
                    selector.unregister(key.fd)
                elif len(into[key.fd]) > max_bytes:
                    raise OSError(errno.EFBIG, f"it printed more than {max_bytes >> 10} KiB")


def _text(data: bytearray) -> str:
    return bytes(data).decode(errors="replace")
