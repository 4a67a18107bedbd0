"""Messages between two programs of libfabric or UCX: their arguments, and what became of them by their words.

``fi_pingpong -c`` (libfabric, util/pingpong.c) compares what arrives with what was sent, in host memory.
``ucx_perftest`` (UCX, src/tools/perf) does so with nothing: of device memory it tells that messages arrive.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from gpuipc_doctor.model import Json

RIGHT = "right"

_WORST_FIRST = ("wrong", "crashed", "unable", "failed", RIGHT)
"""Of both ends' accounts the first in this order: a program whose other end crashed fails."""

MEMORY = {"cuda": "cuda", "hip": "rocm"}
"""UCX's words for the memory of a backend's devices; any other is its own."""

_TRANSPORTS = {"tcp": ("tcp", "sm", "self"), "verbs": ("ib",)}
"""By fabric, UCX's words for it (ucx_info -f, UCX_TLS)."""

_SHOWN = 3
"""Lines of what a program said that are kept."""

_NO_SUCH_MEMORY = ("Unsupported memory types", "Failed to run test: No such device")
"""What ``ucx_perftest`` says (libperf.c) where it was built without a vendor, or finds no device of it."""

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


def judge(returncode: int, text: str) -> dict[str, Json]:
    """How a program ended; ``ended`` is ``right``, ``wrong``, ``crashed``, ``unable`` or ``failed``.

    ``unable`` is one that has nothing to do with the memory that was asked for. ``said`` is how it ended.

    ``us`` is microseconds for a message one way, None where the program does not tell.
    """
    lines = [said for line in text.splitlines() if (said := _DECORATION.sub("", line).strip())]
    if corrupt := re.search(r"^Error at iteration=\d+ size=\d+ byte=(\d+)", text, re.MULTILINE):
        return {"ended": "wrong", "said": f"byte {corrupt[1]} of a message is wrong"}
    told = _TOLD_SIGNAL.search(text)
    if number := -returncode if returncode < 0 else int(told[1] or told[2]) if told else 0:
        # To write to who is gone is no crash: the other end has one, or has failed.
        return {"ended": "failed" if number == signal.SIGPIPE else "crashed", "said": _signal(number)}
    if returncode:
        ended = "unable" if any(word in text for word in _NO_SUCH_MEMORY) else "failed"
        said = " | ".join(lines[-_SHOWN:]) or "it said nothing"
        return {"ended": ended, "said": f"exit code {returncode}: {said}"}
    return {"ended": RIGHT, "said": "", "us": _latency(lines)}


def of_both(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """What the two ends together say of a message."""
    worse, better = sorted((one, other), key=lambda end: _WORST_FIRST.index(end["ended"]))
    return {**better, **{name: value for name, value in worse.items() if value is not None}}


def nobody_listens() -> dict[str, Json]:
    """How the end that begins fails where the other has ended before it could."""
    return {"ended": "failed", "said": "the other end did not begin to listen"}


def _latency(lines: Sequence[str]) -> float | None:
    """From ``fi_pingpong``'s row (…, MB/sec, usec/xfer, Mxfers/sec) or ``ucx_perftest``'s line ``Final:``."""
    for line in reversed(lines):
        fields = line.split()
        try:
            if fields[0] == "Final:":
                return float(fields[3])
            if len(fields) == 8 and fields[2].startswith("="):
                return float(fields[6])
        except (ValueError, IndexError):
            continue
    return None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
