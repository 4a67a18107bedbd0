"""Query NCCL's RAS service for its communicators' state, if querying is known to be safe or was requested."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuipc_doctor.collective import ras_counts
from gpuipc_doctor.collective.ras_counts import Answer
from gpuipc_doctor.files import foreign
from gpuipc_doctor.job.document import Process
from gpuipc_doctor.job.loaded import versions
from gpuipc_doctor.model import Fact
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.stacks.proc_files import Gone, Reader
from gpuipc_doctor.versions import Range, Verdict

PORT = 28028

LIMIT_S = 12.0
"""Seconds to wait for RAS, which itself waits 5 s for other processes, and 5 s more if some do not answer."""

SHORT_S = 2.0
"""A second question follows only if the first took at most this many seconds."""

MAX_BYTES = 4 << 20
MAX_LINE = 1024
"""Bytes of an answer of one line."""
MAX_LINES = 8
LONGEST_LINE = 300
"""Characters of a line of the report."""
PARSE_S = 1.0
"""Minimum seconds for the parser, also of an answer that came late."""

_CRASHES = "nccl-ras-crash"
"""The known issue that says in which versions a query can crash a job."""
_JSON = Range("nccl", "2.28.7")

_LISTEN = "0A"
"""State of a listening socket (Linux, include/net/tcp_states.h)."""


class NotAnswered(Exception):
    """RAS did not answer; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Question:
    """What RAS answered, and the report's lines about it; no lines if no rank's RAS service listens."""

    lines: tuple[str, ...] = ()
    answer: Answer | None = None
    seconds: float = 0.0


def query(ranks: Iterable[Process], *, ask: bool) -> Question:
    """Ask RAS for the state of its communicators, if that is safe or ``ask`` is true."""
    loads = [rank for rank in ranks if _has_nccl(rank)]
    if not loads or not _listens(loads[0].pid):
        return Question()
    from gpuipc_doctor import knownissues  # most jobs have no RAS
    from gpuipc_doctor.knownissues import affected

    version = versions(loads[0]).get("nccl") or "of unknown version"
    known = next(issue for issue in knownissues.load() if issue.id == _CRASHES)
    if not ask and affected.judge(known, [Fact("nccl", version, "loaded")])[0] is not Verdict.FINE:
        because = f"a query can crash a job; affected: NCCL {known.bad_versions} ({known.id})"
        return Question(
            (f"RAS of NCCL {version} listens on port {PORT} but was not queried: {because}; use --ras",)
        )
    began = time.monotonic()
    try:
        try:
            lines, answer = _asked(PORT, as_json=_JSON.judge(version) is Verdict.BAD)
        except NotAnswered:
            if _JSON.judge(version) is not Verdict.BAD or time.monotonic() - began > SHORT_S:
                raise
            lines, answer = _asked(PORT, as_json=False)
        return Question((f"RAS of NCCL {version} says:", *lines), answer, time.monotonic() - began)
    except NotAnswered as reason:
        return Question((f"RAS of NCCL {version} did not answer: {reason}",), None, time.monotonic() - began)


def _has_nccl(rank: Process) -> bool:
    return any("/libnccl." in path for path in rank.libraries) or "nccl" in versions(rank)


def _asked(port: int, *, as_json: bool) -> tuple[tuple[str, ...], Answer]:
    """The report's lines and the answer. Raises `NotAnswered`."""
    until = time.monotonic() + LIMIT_S
    text = answered(port, as_json=as_json)
    limit_s = max(PARSE_S, until - time.monotonic())
    try:
        return foreign.parsed(lambda text: (_lines(text), parsed(text)), text, limit_s=limit_s)
    except foreign.Refused as reason:
        raise NotAnswered(f"its answer was not parsed: {reason}") from None


def parsed(text: str) -> Answer:
    """The answer in either format. Raises `NotAnswered`."""
    if not text.lstrip().startswith("{"):
        return ras_counts.of_text(text)
    try:
        return ras_counts.of_json(text)
    except ValueError as error:
        raise NotAnswered(str(error)) from None


def _listens(pid: int) -> bool:
    """Whether a socket listens on RAS's port in the process's network namespace."""
    reader = Reader(pid)
    try:
        text = reader.text("net/tcp") + reader.text("net/tcp6")
    except Gone:
        return False
    return re.search(rf":{PORT:04X} [0-9A-F]+:0000 {_LISTEN} ", text) is not None


def _lines(text: str) -> tuple[str, ...]:
    """Lines of the answer that report problems, or one line that reports none. Raises `NotAnswered`."""
    read = _of_json(text) if text.lstrip().startswith("{") else _of_text(text)
    found = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in read]
    if left := len(found) - MAX_LINES:
        found[MAX_LINES:] = [f"{left} more lines"] if left > 0 else []
    return tuple(found) or ("no communicator reports an error",)


def answered(port: int, *, as_json: bool) -> str:
    """RAS's answer. Raises `NotAnswered`."""
    try:
        until = time.monotonic() + LIMIT_S
        with socket.create_connection(("localhost", port), LIMIT_S / 3) as connection:  # for each address
            service = _Service(connection, until)
            service.say("CLIENT PROTOCOL 2", "SERVER PROTOCOL ")
            if as_json:
                service.say("SET FORMAT json", "OK")
            return service.status("STATUS" if as_json else "VERBOSE STATUS")
    except OSError as error:
        raise NotAnswered(error.strerror or "no answer within 12 s") from None


class _Service:
    """RAS at the other end of a connection, with a limit for all its answers together, however they drip."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        """``until``: the time when the limit is over (monotonic clock)."""
        self._connection = connection
        self._until = until
        self._data = b""

    def say(self, request: str, expected: str) -> None:
        """Send a request; raise `NotAnswered` unless the answer's line begins as expected."""
        self._connection.sendall(f"{request}\n".encode())
        while b"\n" not in self._data and len(self._data) < MAX_LINE and self._receive():
            pass
        line, _, self._data = self._data.partition(b"\n")
        answer = line[:MAX_LINE].decode(errors="replace").strip()
        if not answer.startswith(expected):
            raise NotAnswered(f"{request}: {answer[:100] or 'nothing'}")

    def status(self, request: str) -> str:
        """All that follows the request for the status. Raises `NotAnswered`."""
        self._connection.sendall(f"{request}\n".encode())
        while len(self._data) < MAX_BYTES and self._receive():
            pass
        if not self._data:
            raise NotAnswered("the connection was closed")
        return self._data[:MAX_BYTES].decode(errors="replace")

    def _receive(self) -> bool:
        """Whether more data came. Raises `TimeoutError`."""
        if (left_s := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        more = self._connection.recv(1 << 16)
        self._data += more
        return bool(more)


def _of_text(text: str) -> Iterator[str]:
    """Lines below the headings Errors and Warnings, without those on invalid ranks."""
    section = ""
    previous = ""
    for line in (line for line in text.splitlines() if "[process information not found]" not in line):
        if previous and set(line) == {"="}:
            section = previous
        elif section in ("Errors", "Warnings") and previous and set(previous) != {"="}:
            yield previous
        previous = line.strip() if set(line) != {"="} else line
    if section in ("Errors", "Warnings") and previous and set(previous) != {"="}:
        yield previous


def _of_json(text: str) -> Iterator[str]:
    """Communicators whose ranks have started different numbers of collectives, and missing ranks."""
    try:
        document = json.loads(text)
        for number, communicator in enumerate(document["communicators"]):
            name = f"communicator {number} of {len(communicator['ranks'])} ranks"
            yield from (f"{name}: {line}" for line in _of_communicator(communicator))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NotAnswered(f"cannot parse RAS's JSON: {error!r}"[:200]) from None


def _of_communicator(communicator: Mapping[str, Any]) -> Iterator[str]:
    counts: dict[str, dict[int, list[int]]] = {}
    for rank in communicator["ranks"]:
        for operation, count in rank["collective_counts"].items():
            counts.setdefault(operation, {}).setdefault(int(count), []).append(int(rank["rank"]))
        if rank["status"].get("async_error"):
            yield f"rank {int(rank['rank'])} has asynchronous error {int(rank['status']['async_error'])}"
    for operation, by_count in counts.items():
        if len(by_count) > 1:
            parts = (f"{count} on ranks {ranges(ranks)}" for count, ranks in sorted(by_count.items()))
            yield f"{operation} started: {'; '.join(parts)}"
    for rank in communicator.get("missing_ranks", ()):
        how = "is considered dead" if rank["status"]["considered_dead"] else "does not respond"
        yield f"rank {int(rank['rank'])} on {rank['host']}, pid {int(rank['pid'])} {how}"
