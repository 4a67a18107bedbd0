"""The directory of a fleet's reports: for each node a summary and a full one, each whole or not there.

Full reports that lie there alone count as well.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.fleet.nodeset import NAME
from gpuipc_doctor.fleet.summary import BadSummary, NodeReport, dumps, loads, of
from gpuipc_doctor.report import exits, report_json
from gpuipc_doctor.report.documents import BadDocument
from gpuipc_doctor.site import bounded
from gpuipc_doctor.site.bounded import Unreadable

SUMMARY, FULL, LOCK = ".summary.json", ".json", ".lock"

MAX_SUMMARY = 1 << 20
"""Bytes; one is a few thousand."""

MAX_FULL = 64 << 20
"""Bytes; a thousand repetitions on eight GPUs are less."""


class InUse(Exception):
    """Another run writes there."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file that is no node report, and why."""

    path: Path
    reason: str


def save(directory: Path, summary: NodeReport, full: bytes = b"") -> None:
    """The full report first: whoever sees a summary finds what it is of."""
    if full:
        _put(directory / f"{summary.node}{FULL}", full)
    _put(directory / f"{summary.node}{SUMMARY}", dumps(summary))


def _put(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def forget_silent(directory: Path, reports: Iterable[NodeReport]) -> None:
    """Remove what says of nodes no more than that they did not answer."""
    for one in reports:
        if not (directory / f"{one.node}{FULL}").exists():
            (directory / f"{one.node}{SUMMARY}").unlink()


def read(directory: Path) -> tuple[list[NodeReport], list[Foreign]]:
    """The node reports, by their summaries, else by the full ones; and what only looks like one: torn, of
    another version, of a node told elsewhere."""
    reports: dict[str, NodeReport] = {}
    foreign = []
    with os.scandir(directory) as entries:
        names = sorted(one.name for one in entries if one.name.endswith(FULL) and one.name[0] != ".")
    for name in (name for name in names if name.endswith(SUMMARY)):
        path, node = f"{directory}/{name}", name.removesuffix(SUMMARY)
        try:
            one = loads(_bytes(path))
        except (BadSummary, OSError) as error:
            foreign.append(Foreign(Path(path), str(error)))
            continue
        if one.node != node:
            foreign.append(Foreign(Path(path), f"is the report of {one.node[:80]}"))
        else:
            reports[node] = one
    for name in names:
        node = name.removesuffix(FULL)
        if not name.endswith(SUMMARY) and node not in reports:
            try:
                reports[node] = _summed_up(directory / name, node)
            except (BadSummary, Unreadable, BadDocument) as error:
                foreign.append(Foreign(directory / name, str(error)))
    return list(reports.values()), foreign


def _summed_up(path: Path, node: str) -> NodeReport:
    """The summary of a full report, such as `check --output` writes. Raises what speaks against it."""
    if not NAME.fullmatch(node):
        raise BadSummary("its name is no node's")
    report = report_json.loads(bounded.read(path, MAX_FULL).decode(errors="replace"))
    return of(report, node, exits.code(report))


def _bytes(path: str) -> bytes:
    """A regular file of a sensible size."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(fd, MAX_SUMMARY + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_SUMMARY:
        raise BadSummary(f"is longer than {MAX_SUMMARY >> 10} KiB")
    return data


@contextmanager
def ours(directory: Path) -> Iterator[None]:
    """Have the directory to ourselves, which a process that has died no longer has. Raises `InUse`,
    `OSError`."""
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 40).decode(errors="replace").strip()
            raise InUse(f"{directory}: process {holder or '?'} writes there") from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(fd)
