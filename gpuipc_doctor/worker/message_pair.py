"""Two test programs of libfabric or UCX that exchange messages: their arguments, and reading their output.

``fi_pingpong -c`` (libfabric, util/pingpong.c) verifies data in host memory. ``ucx_perftest`` (UCX,
src/tools/perf) verifies nothing, but shows that messages of device memory arrive.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from gpuipc_doctor.model import Json
from gpuipc_doctor.supervise.tree import signal_name
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker import ucx_protocols

RIGHT = "right"

_WORST_FIRST = ("wrong", "crashed", "cannot start", "unable", "failed", RIGHT)
"""Results, worst first. The worse result of the two ends counts: an end also fails if its partner crashes."""

MEMORY = {backend: vendor.mpi.accelerator for backend, vendor in SUPPORTED.items()}
"""Backend → UCX's name for its devices' memory."""

_TRANSPORTS = {"tcp": ("tcp", "sm", "self"), "verbs": ("ib",)}
"""Fabric → UCX's transports (ucx_info -f, UCX_TLS)."""

_NO_LISTENER = "the peer program did not start listening"

_SHOWN = 3
"""Lines kept of a program's output."""

_NO_SUCH_MEMORY = ("Unsupported memory types", "Failed to run test: No such device")
"""Messages of ``ucx_perftest`` (libperf.c) if UCX does not support the kind of memory, or a device is
missing."""

CANNOT_EXECUTE = 126
"""A shell's exit code for a file that the kernel refuses to execute; 127 if the file is not found."""

_LOADER = re.compile(r"error while loading shared libraries|symbol lookup error|version `\S+' not found")
"""Messages of the dynamic loader (glibc, elf/rtld.c and elf/dl-version.c) before the program starts."""

_DECORATION = re.compile(r"^(?:\[[\d.]+\] \[[^]]+\]\s+)?[+|].*|^\[[\d.]+\] \[[^]]+\]\s+\S+\s+UCX\s+\w+\s+")
"""Text to ignore: tables of ``ucx_perftest`` and of UCX's protocols, and the prefix of UCX's log lines."""


_TOLD_SIGNAL = re.compile(r"terminated with signal (\d+)|Caught signal (\d+)")
"""Messages of libraries that report a signal and exit: first PSM2's, then UCX's."""


def command(program: str, route: str, nbytes: int | str, rounds: int) -> list[str]:
    """Arguments of both ends. ``route``: a provider of libfabric, or the memory that UCX sends from.
    ``nbytes``: of a message, or for UCX the file with the `batch` of sizes."""
    if Path(program).name == "fi_pingpong":
        options = ["-e", "rdm", "-m", "tagged", "-c", "-I", str(rounds), "-S", str(nbytes)]
        return [program, "-p", route, *options]
    memory = MEMORY.get(route, route)
    size = "-b" if isinstance(nbytes, str) else "-s"
    return [program, "-t", "tag_lat", "-m", memory, size, str(nbytes), "-n", str(rounds), "-w", "1"]


def batch(sizes: Sequence[int], operations: Sequence[str]) -> str:
    """Text of the file with which ``ucx_perftest`` does several operations and sizes in one run."""
    tests = ((ucx_protocols.OPERATIONS[operation], nbytes) for operation in operations for nbytes in sizes)
    return "".join(f"{test}_{nbytes}B -t {test} -s {nbytes}\n" for test, nbytes in tests)


def transports(program: str, route: str, stated: str | None) -> dict[str, str]:
    """The variable that makes UCX use the ``stated`` fabric; UCX has no transport for cxi. libfabric needs no
    variable: its provider selects the fabric."""
    if Path(program).name != "ucx_perftest" or stated not in _TRANSPORTS:
        return {}
    copies = [MEMORY[route]] if route in MEMORY else []
    return {"UCX_TLS": ",".join([*_TRANSPORTS[stated], *copies])}


def serve(program: str, port: int) -> list[str]:
    """Additional arguments of the end that waits."""
    return ["-B" if Path(program).name == "fi_pingpong" else "-p", str(port)]


def call(program: str, host: str, port: int) -> list[str]:
    """Additional arguments of the end that starts."""
    return ["-P" if Path(program).name == "fi_pingpong" else "-p", str(port), host]


def has_result(program: str, *, serves: bool) -> bool:
    """Whether this end prints a result; the waiting end of ``ucx_perftest`` does not."""
    return not serves or Path(program).name == "fi_pingpong"


def judge(
    returncode: int, text: str, rounds: int, *, has_result: bool = True, sizes: int = 1
) -> dict[str, Json]:
    """The result of one of the two programs after ``rounds`` messages there and back of so many ``sizes``.

    ``ended`` is ``right``, ``wrong`` or a result of `failure`; ``said`` is the reason; ``us`` is the time of
    a message one way in microseconds, or None; of several sizes, ``each`` lists the times. If the end
    ``has_result``, it is ``right`` only with a result for all messages.
    """
    if corrupt := re.search(r"^Error at iteration=\d+ size=\d+ byte=(\d+)", text, re.MULTILINE):
        return {"ended": "wrong", "said": f"byte {corrupt[1]} of a message is wrong"}
    if bad := failure(returncode, text):
        return bad
    lines = _lines(text)
    latencies = _latencies(lines, rounds)
    if len(latencies) < sizes and has_result:
        missing = f"{rounds} messages" if sizes == 1 else f"{sizes - len(latencies)} of {sizes} sizes"
        return {"ended": "failed", "said": f"exit code 0, but no result for {missing}: {_end(lines)}"}
    if sizes > 1:
        return {"ended": RIGHT, "said": "", "each": latencies or None}
    return {"ended": RIGHT, "said": "", "us": latencies[-1] if latencies else None}


def failure(returncode: int, text: str) -> dict[str, Json] | None:
    """How a program failed, from exit code (negative for a signal) and output; None if it succeeded.

    ``ended`` is ``cannot start``, ``crashed``, ``unable`` (the requested memory is not supported) or
    ``failed``.
    """
    lines = _lines(text)
    if returncode in (CANNOT_EXECUTE, CANNOT_EXECUTE + 1) or (returncode > 0 and _LOADER.search(text)):
        return {"ended": "cannot start", "said": _end(lines)}
    told = _TOLD_SIGNAL.search(text)
    if number := -returncode if returncode < 0 else int(told[1] or told[2]) if told else 0:
        # Writing to a closed connection is no crash: the other end crashed or failed.
        said = [signal_name(number), *(line for line in lines if "Assertion" in line)][:2]
        return {"ended": "failed" if number == signal.SIGPIPE else "crashed", "said": ": ".join(said)}
    if returncode:
        ended = "unable" if any(word in text for word in _NO_SUCH_MEMORY) else "failed"
        return {"ended": ended, "said": f"exit code {returncode}: {_end(lines)}"}
    return None


def _lines(text: str) -> list[str]:
    return [said for line in text.splitlines() if (said := _DECORATION.sub("", line).strip())]


def _end(lines: Sequence[str]) -> str:
    return " | ".join(lines[-_SHOWN:]) or "no output"


def worse_of(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """The combined result of both ends of a message."""

    def rank(end: dict[str, Json]) -> tuple[int, bool]:
        # An end whose partner crashed is ended by us, or finds no listener.
        return _WORST_FIRST.index(end["ended"]), end["said"] in (_NO_LISTENER, "SIGTERM")

    worse, better = sorted((one, other), key=rank)
    return {**better, **{name: value for name, value in worse.items() if value is not None}}


def no_listener() -> dict[str, Json]:
    """Failure of the starting end if the other end ended before it could connect."""
    return {"ended": "failed", "said": _NO_LISTENER}


def _latencies(lines: Sequence[str], rounds: int) -> list[float]:
    """Microseconds per message, from each row for ``rounds`` messages.

    ``fi_pingpong`` prints the columns bytes, #sent, #ack, …, usec/xfer, Mxfers/sec; a row of ``ucx_perftest``
    begins with ``Final:``.
    """
    found = []
    for line in lines:
        fields = line.split()
        if fields[:2] == ["Final:", str(rounds)]:
            told = fields[3:4]
        elif len(fields) == 8 and fields[1:3] == [str(rounds), f"={rounds}"]:
            told = fields[6:7]
        else:
            continue
        if (latency := _number(*told)) >= 0:
            found.append(latency)
    return found


def _number(text: str = "") -> float:
    """A finite number; -1 for anything else."""
    try:
        return number if math.isfinite(number := float(text)) else -1.0
    except ValueError:
        return -1.0
