"""The collectives in logs: passes lines that name one to `collective.logs`, whatever logs they are in."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuipc_doctor.collective.logs import LAUNCH, TOKENS, Finding, Lines
from gpuipc_doctor.diagnose.diagnosis import Difference
from gpuipc_doctor.diagnose.rank_files import rank_in

LONGEST = 4096
"""Maximum bytes of a line that are read."""


@dataclass(slots=True)
class _Job:
    """Logs of one job: one with all ranks, or those whose names differ only in numbers."""

    lines: Lines = field(default_factory=Lines)
    ranks: set[int] = field(default_factory=set)
    """Ranks of which there is a log."""


@dataclass(slots=True)
class Collectives:
    """The collectives of all logs of an examination."""

    _jobs: dict[str, _Job] = field(default_factory=dict)

    def log(self, name: str) -> CollectivesOfLog:
        family = re.sub(r"(attempt_\d+)|\d+", lambda found: found[1] or "0", name)
        job = self._jobs.setdefault(family, _Job())
        rank = rank_in(name)
        if rank:
            job.ranks.add(int(rank))
        return CollectivesOfLog(job.lines, name, rank)

    def findings(self) -> Iterator[Finding]:
        """Conclusions on each job; equal ones once, such as of a joined log beside those of the ranks."""
        told = set()
        for family in sorted(self._jobs, key=_attempt):
            job = self._jobs[family]
            for finding in job.lines.findings(job.ranks):
                if finding.says not in told:
                    told.add(finding.says)
                    yield finding


def _attempt(family: str) -> int:
    """The number of the attempt in the names of torchrun's logs."""
    found = re.search(r"attempt_(\d{1,9})", family)
    return int(found[1]) if found else 0


def ranks_at_fault(found: Collectives) -> Iterator[Difference]:
    """The ranks that the lines of all logs name."""
    for finding in found.findings():
        ranks = tuple(map(str, finding.ranks))
        quote = f"{finding.log}:{finding.line}: {finding.text}"
        yield Difference(finding.says, ranks, finding.log, quote, finding.do, finding.blames)


@dataclass(slots=True)
class CollectivesOfLog:
    """Reads one log in blocks, which may end within a line."""

    lines: Lines
    name: str
    rank: str
    _begun: bytes = b""
    _number: int = 1

    def feed(self, block: bytes) -> None:
        whole, newline, rest = (self._begun + block).rpartition(b"\n")
        if newline:
            self._read(whole)
        self._number += whole.count(b"\n") + len(newline)
        self._begun = rest[-LONGEST:] if len(rest) > LONGEST else rest

    def _read(self, text: bytes) -> None:
        calls: list[tuple[int, bytes]] = []
        numbers: list[int] = []
        if LAUNCH in text:
            lines = list(enumerate(text.split(b"\n"), self._number))
            calls = [numbered for numbered in lines if LAUNCH in numbered[1]]
            others = [numbered for numbered in lines if LAUNCH not in numbered[1]]
            numbers, text = [number for number, _ in others], b"\n".join([line for _, line in others])
        read = 0
        for place, line in _lines_with(TOKENS, text):
            number = numbers[place] if numbers else self._number + place
            until = bisect(calls, (number, b""))  # in their order: this line may begin another attempt
            self.lines.launches(self.name, calls[read:until])
            read = until
            self.lines.add(self.name, number, line[:LONGEST].decode("utf-8", "replace"), self.rank)
        self.lines.launches(self.name, calls[read:])

    def end(self) -> None:
        """Read the last line, which may lack its end."""
        if self._begun:
            self.feed(b"\n")


def _lines_with(tokens: Iterable[bytes], text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that have one of the tokens, with their numbers from 0."""
    begins = set()
    for token in tokens:
        at = text.find(token)
        while at >= 0:
            begins.add(text.rfind(b"\n", 0, at) + 1)
            at = text.find(token, _end(text, at))
    number, before = 0, 0
    for begin in sorted(begins):
        number, before = number + text.count(b"\n", before, begin), begin
        yield number, text[begin : _end(text, begin)]


def _end(text: bytes, at: int) -> int:
    end = text.find(b"\n", at)
    return end if end >= 0 else len(text)
