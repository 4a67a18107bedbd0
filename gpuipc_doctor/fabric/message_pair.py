"""Messages between two programs of libfabric or UCX: their arguments, and what became of them by their words.

``fi_pingpong -c`` (libfabric, util/pingpong.c) compares what arrives with what was sent, in host memory.
``ucx_perftest`` (UCX, src/tools/perf) does so with nothing: of device memory it tells that messages arrive.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from gpuipc_doctor.model import Json
from gpuipc_doctor.supervise.tree import signal_name

RIGHT = "right"

_WORST_FIRST = ("wrong", "crashed", "cannot start", "unable", "failed", RIGHT)
"""Severity order: the worse of the two ends' results wins, since an end fails when its partner crashes."""

MEMORY = {"cuda": "cuda", "hip": "rocm"}
"""UCX's words for the memory of a backend's devices; any other is its own."""

_TRANSPORTS = {"tcp": ("tcp", "sm", "self"), "verbs": ("ib",)}
"""By fabric, UCX's words for it (ucx_info -f, UCX_TLS)."""

_NO_LISTENER = "the other end did not begin to listen"

_SHOWN = 3
"""Lines of what a program said that are kept."""

_NO_SUCH_MEMORY = ("Unsupported memory types", "Failed to run test: No such device")
"""What ``ucx_perftest`` says (libperf.c) where it was built without a vendor, or finds no device of it."""

CANNOT_EXECUTE = 126
"""The exit code of a shell for a file that the kernel refuses to execute; 127 for one that is not found."""

_LOADER = re.compile(r"error while loading shared libraries|symbol lookup error|version `\S+' not found")
"""What the dynamic loader (glibc, elf/rtld.c and elf/dl-version.c) prints before the program begins."""

_DECORATION = re.compile(r"^[+|].*|^\[[\d.]+\] \[[^]]+\]\s+\S+\s+UCX\s+\w+\s+")
"""What ``ucx_perftest`` draws, and how UCX's log begins a line: time, process, place in its source."""


_TOLD_SIGNAL = re.compile(r"terminated with signal (\d+)|Caught signal (\d+)")
"""Libraries may tell of a signal and exit: the first is PSM2's, the second UCX's way to say it."""


def command(program: str, route: str, nbytes: int, rounds: int) -> list[str]:
    """Both ends' arguments. ``route``: a provider of libfabric, or the memory of UCX's messages."""
    if Path(program).name == "fi_pingpong":
        options = ["-e", "rdm", "-m", "tagged", "-c", "-I", str(rounds), "-S", str(nbytes)]
        return [program, "-p", route, *options]
    memory = MEMORY.get(route, route)
    return [program, "-t", "tag_lat", "-m", memory, "-s", str(nbytes), "-n", str(rounds), "-w", "1"]


def transports(program: str, route: str, stated: str | None) -> dict[str, str]:
    """The variable that has UCX send over the fabric that a site states.

    Of libfabric the provider says that, and UCX has nothing for cxi.
    """
    if Path(program).name != "ucx_perftest" or stated not in _TRANSPORTS:
        return {}
    copies = [MEMORY[route]] if route in MEMORY else []
    return {"UCX_TLS": ",".join([*_TRANSPORTS[stated], *copies])}


def serve(program: str, port: int) -> list[str]:
    """What the end that waits is told beside."""
    return ["-B" if Path(program).name == "fi_pingpong" else "-p", str(port)]


def call(program: str, host: str, port: int) -> list[str]:
    """The same of the end that begins."""
    return ["-P" if Path(program).name == "fi_pingpong" else "-p", str(port), host]


def has_result(program: str, *, serves: bool) -> bool:
    """Whether an end prints a result: the one of ``ucx_perftest`` that waits prints none."""
    return not serves or Path(program).name == "fi_pingpong"


def judge(returncode: int, text: str, rounds: int, *, has_result: bool = True) -> dict[str, Json]:
    """How one end of ``rounds`` messages there and back ended.

    ``ended`` is ``right``, ``wrong`` or what `failure` says, and ``said`` how it ended. It is ``right`` only
    with a result for as many messages, from an end that ``has_result``. ``us`` is microseconds for a message
    one way, None without a result.
    """
    if corrupt := re.search(r"^Error at iteration=\d+ size=\d+ byte=(\d+)", text, re.MULTILINE):
        return {"ended": "wrong", "said": f"byte {corrupt[1]} of a message is wrong"}
    if bad := failure(returncode, text):
        return bad
    lines = _lines(text)
    latency = _latency(lines, rounds)
    if latency is None and has_result:
        return {"ended": "failed", "said": f"exit code 0, but no result for {rounds} messages: {_end(lines)}"}
    return {"ended": RIGHT, "said": "", "us": latency}


def failure(returncode: int, text: str) -> dict[str, Json] | None:
    """How a program failed, by exit code (negative for a signal) and what it printed; None if it did not.

    ``ended`` is ``cannot start``, ``crashed``, ``unable`` or ``failed``. ``unable`` is one that has nothing
    to do with the memory that was asked for.
    """
    lines = _lines(text)
    if returncode in (CANNOT_EXECUTE, CANNOT_EXECUTE + 1) or (returncode > 0 and _LOADER.search(text)):
        return {"ended": "cannot start", "said": _end(lines)}
    told = _TOLD_SIGNAL.search(text)
    if number := -returncode if returncode < 0 else int(told[1] or told[2]) if told else 0:
        # To write to who is gone is no crash: the other end has one, or has failed.
        return {"ended": "failed" if number == signal.SIGPIPE else "crashed", "said": signal_name(number)}
    if returncode:
        ended = "unable" if any(word in text for word in _NO_SUCH_MEMORY) else "failed"
        return {"ended": ended, "said": f"exit code {returncode}: {_end(lines)}"}
    return None


def _lines(text: str) -> list[str]:
    return [said for line in text.splitlines() if (said := _DECORATION.sub("", line).strip())]


def _end(lines: Sequence[str]) -> str:
    """The last that a program printed."""
    return " | ".join(lines[-_SHOWN:]) or "it printed nothing"


def worse_of(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """What the two ends together say of a message."""

    def rank(end: dict[str, Json]) -> tuple[int, bool]:
        return _WORST_FIRST.index(end["ended"]), end["said"] == _NO_LISTENER

    worse, better = sorted((one, other), key=rank)
    return {**better, **{name: value for name, value in worse.items() if value is not None}}


def no_listener() -> dict[str, Json]:
    """How the end that begins fails where the other has ended before it could."""
    return {"ended": "failed", "said": _NO_LISTENER}


def _latency(lines: Sequence[str], rounds: int) -> float | None:
    """From ``fi_pingpong``'s row (bytes, #sent, #ack, …, usec/xfer, Mxfers/sec), or from ``Final:``.

    The latter is ``ucx_perftest``'s. Only of so many messages, all of them acknowledged, in a possible time.
    """
    for line in reversed(lines):
        fields = line.split()
        if fields[:2] == ["Final:", str(rounds)]:
            told = fields[3:4]
        elif len(fields) == 8 and fields[1:3] == [str(rounds), f"={rounds}"]:
            told = fields[6:7]
        else:
            continue
        if (latency := _number(*told)) >= 0:
            return latency
    return None


def _number(text: str = "") -> float:
    """A finite number; -1 for what is none."""
    try:
        return number if math.isfinite(number := float(text)) else -1.0
    except ValueError:
        return -1.0
