"""The directory of a fleet's reports: a summary and a full report per node, written atomically.

Full reports without a summary also count.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec  # noqa: TID253 - who imports this module reads node reports

from gpuipc_doctor.files import reading, writing
from gpuipc_doctor.files.reading import Unreadable
from gpuipc_doctor.fleet.nodeset import NAME
from gpuipc_doctor.fleet.summary import BadSummary, NodeReport, State, dumps, loads, of, silent
from gpuipc_doctor.report import exits, report_json
from gpuipc_doctor.report.json_documents import BadDocument, ForeignDocument

SUMMARY, FULL, LOCK = ".summary.json.gz", ".json", ".lock"
"""Suffixes of a node's summary and full report, and the lock's name. A compressed summary takes one block of
a file system: 10 kB of facts become 4 KiB."""

GZIP = 16 + zlib.MAX_WBITS
"""zlib's number for the gzip format."""

MAX_SUMMARY = 1 << 20
"""Maximum bytes of a decompressed summary; most have a few thousand."""

MAX_FULL = 64 << 20
"""Maximum bytes of a report; one with a thousand repetitions on eight GPUs has fewer."""


class InUse(Exception):
    """Another run writes to the directory."""


def save(directory: Path, summary: NodeReport, full: bytes = b"") -> None:
    """Write the full report, if there is room, and then the summary. Raises `OSError`."""
    packed = gzip.compress(dumps(summary), compresslevel=6, mtime=0)
    try:
        if full:
            writing.write(directory / f"{summary.node}{FULL}", full)
    except OSError:
        writing.write(directory / f"{summary.node}{SUMMARY}", packed)
        raise
    writing.write(directory / f"{summary.node}{SUMMARY}", packed)


def forget_silent(directory: Path, reports: Iterable[NodeReport]) -> None:
    """Remove files that only record that nodes did not answer."""
    for report in reports:
        if not (directory / f"{report.node}{FULL}").exists():
            (directory / f"{report.node}{SUMMARY}").unlink(missing_ok=True)


def read(directory: Path) -> tuple[list[NodeReport], list[tuple[str, str]]]:
    """The node reports (from full reports where summaries are missing), and the names of files that are not
    reports, with the reasons.

    A node with only a damaged file has a report that says so. Of reports under a node's short and full name,
    the newer counts.
    """
    reports: dict[str, NodeReport] = {}
    files: dict[str, str] = {}
    seen: dict[object, Any] = {}
    damaged: dict[str, str] = {}
    foreign = []
    endings = (SUMMARY, FULL)  # the first of them that a node has counts
    with os.scandir(directory) as entries:
        names = sorted(
            entry.name for entry in entries if entry.name.endswith(endings) and entry.name[0] != "."
        )
    ending_of = {name: next(filter(name.endswith, endings)) for name in names}
    for name in sorted(names, key=lambda name: endings.index(ending_of[name])):
        node = name.removesuffix(ending_of[name])
        if node in reports:
            continue
        if not NAME.fullmatch(node):
            foreign.append((name, "the file name is not a node name"))
            continue
        try:
            reports[node] = (
                _full(directory / name, node)
                if ending_of[name] == FULL
                else _summary(f"{directory}/{name}", node)
            )
            reports[node] = _sharing(reports[node], seen)
            files[node] = name
        except ForeignDocument as error:
            foreign.append((name, str(error)))
        except (BadSummary, Unreadable, BadDocument, OSError) as error:
            damaged[node] = f"{name}: {error}"
    for node, reason in damaged.items():
        reports.setdefault(node, silent(node, State.UNREADABLE, reason))
    for older, newer in list(_same_nodes(reports)):
        reports.pop(older, None)
        foreign.append((files[older], f"not used: {newer} is a newer report of the same node"))
    return list(reports.values()), foreign


def _sharing(report: NodeReport, seen: dict[object, Any]) -> NodeReport:
    """The report, sharing equal objects with earlier reports, since most nodes of a fleet report the same."""
    facts = {seen.setdefault(name, name): seen.setdefault(held, held) for name, held in report.facts.items()}
    findings = tuple(seen.setdefault(finding, finding) for finding in report.findings)
    return msgspec.structs.replace(report, facts=facts, findings=findings)


def lacking(wanted: Iterable[str], there: Collection[str]) -> list[str]:
    """The nodes of ``wanted`` without a report in ``there``. A short name and its full name are the same
    node."""
    short = {name.partition(".")[0] for name in there}
    return [
        node
        for node in wanted
        if node not in there and node not in short and node.partition(".")[0] not in there
    ]


def _same_nodes(reports: Mapping[str, NodeReport]) -> Iterator[tuple[str, str]]:
    """For each node that answered under its short and its full name: (older name, newer name)."""
    full_names = Counter(name.partition(".")[0] for name in reports if "." in name)
    for name in reports:
        short, dot, _ = name.partition(".")
        if dot and short in reports:
            with suppress(ValueError):
                times = [datetime.fromisoformat(reports[node].started).astimezone() for node in (name, short)]
                if times[0] > times[1]:
                    yield short, name
                elif times[0] < times[1] or full_names[short] == 1:
                    yield name, short


def _summary(path: str, node: str) -> NodeReport:
    """Parse a summary file of a plausible size. Raises `BadSummary`, `OSError`."""
    unpacking = zlib.decompressobj(GZIP)
    try:
        data = unpacking.decompress(reading.sample(path, MAX_SUMMARY + 1), MAX_SUMMARY + 1)
    except zlib.error as error:
        raise BadSummary(f"cannot be decompressed: {error}") from None
    if len(data) > MAX_SUMMARY:
        raise BadSummary(f"is longer than {MAX_SUMMARY >> 10} KiB")
    if not unpacking.eof:
        raise BadSummary(f"was cut after {len(data)} bytes")
    found = loads(data)
    if found.node != node:
        raise BadSummary(f"is the report of another node, {found.node[:80]}")
    return found


def _full(path: Path, node: str) -> NodeReport:
    """The summary of a full report, as written by `check --output`. Raises `Unreadable`, `BadDocument`."""
    report = report_json.loads(reading.read(path, MAX_FULL).decode(errors="replace"))
    return of(report, node, exits.code(report))


@contextmanager
def ours(directory: Path) -> Iterator[None]:
    """Lock the directory for this process; the lock ends with the process. Raises `InUse`, `OSError`."""
    writing.make_directory(directory)
    fd = writing.open_lock(directory / LOCK)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 40).decode(errors="replace").strip()
            raise InUse(f"{directory}: process {holder or '?'} is writing to it") from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(fd)
