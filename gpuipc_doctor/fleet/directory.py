"""The directory of a fleet's reports: for each node a summary and a full one, each whole or not there.

Full reports that lie there alone count as well.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuipc_doctor.fleet.nodeset import NAME
from gpuipc_doctor.fleet.summary import BadSummary, NodeReport, State, dumps, loads, of, silent
from gpuipc_doctor.report import exits, report_json
from gpuipc_doctor.report.documents import BadDocument, ForeignDocument
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
    """The full report first: whoever sees a summary finds what it is of. Raises `OSError`."""
    if full:
        _put(directory / f"{summary.node}{FULL}", full)
    _put(directory / f"{summary.node}{SUMMARY}", dumps(summary))


def _put(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def forget_silent(directory: Path, reports: Iterable[NodeReport]) -> None:
    """Remove what says of nodes no more than that they did not answer."""
    for one in reports:
        if not (directory / f"{one.node}{FULL}").exists():
            (directory / f"{one.node}{SUMMARY}").unlink()


def read(directory: Path) -> tuple[list[NodeReport], list[Foreign]]:
    """The node reports, by their summaries, else by the full ones; and the files that are not reports.

    A node of which only a damaged file is there has a report that says so. A node with reports under its
    short and its full name has the newer one.
    """
    reports: dict[str, NodeReport] = {}
    damaged: dict[str, str] = {}
    foreign = []
    with os.scandir(directory) as entries:
        names = sorted(one.name for one in entries if one.name.endswith(FULL) and one.name[0] != ".")
    for name in sorted(names, key=lambda name: not name.endswith(SUMMARY)):
        is_summary = name.endswith(SUMMARY)
        node = name.removesuffix(SUMMARY if is_summary else FULL)
        if node in reports:
            continue
        if not NAME.fullmatch(node):
            foreign.append(Foreign(directory / name, "its name is not that of a node"))
            continue
        try:
            reports[node] = (
                _summary(f"{directory}/{name}", node) if is_summary else _full(directory / name, node)
            )
        except ForeignDocument as error:
            foreign.append(Foreign(directory / name, str(error)))
        except (BadSummary, Unreadable, BadDocument, OSError) as error:
            damaged[node] = f"{name}: {error}"
    for node, reason in damaged.items():
        reports.setdefault(node, silent(node, State.UNREADABLE, reason))
    for older, newer in list(_same_nodes(reports)):
        del reports[older]
        foreign.append(
            Foreign(directory / f"{older}{FULL}", f"is older than the report of {newer}, which counts")
        )
    return list(reports.values()), foreign


def _same_nodes(reports: Mapping[str, NodeReport]) -> Iterator[tuple[str, str]]:
    """Of each node that has answered under its short and its full name, the older name and the newer."""
    for name in reports:
        short, dot, _ = name.partition(".")
        both = [reports[name], reports[short]] if dot and short in reports else []
        with suppress(ValueError):
            times = {datetime.fromisoformat(one.started).astimezone(): one.node for one in both}
            if len(times) == 2:
                yield times[min(times)], times[max(times)]


def _summary(path: str, node: str) -> NodeReport:
    """Raises `BadSummary`, `OSError`."""
    found = loads(_bytes(path))
    if found.node != node:
        raise BadSummary(f"is the report of {found.node[:80]}")
    return found


def _full(path: Path, node: str) -> NodeReport:
    """The summary of a full report, such as `check --output` writes. Raises `Unreadable`, `BadDocument`."""
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
