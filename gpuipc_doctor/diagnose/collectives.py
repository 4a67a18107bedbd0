"""The collectives in logs: passes lines that name one to `collective.logs`, whatever logs they are in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuipc_doctor.collective.logs import TOKENS, Finding, Lines
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
        job = self._jobs.setdefault(re.sub(r"\d+", "0", name), _Job())
        rank = rank_in(name)
        if rank:
            job.ranks.add(int(rank))
        return CollectivesOfLog(job.lines, name, rank)

    def findings(self) -> Iterator[Finding]:
        """Conclusions on each job; equal ones once, such as of a joined log beside those of the ranks."""
        told = set()
        for job in self._jobs.values():
            for finding in job.lines.findings(job.ranks):
                if finding.says not in told:
                    told.add(finding.says)
                    yield finding


def ranks_at_fault(found: Collectives) -> Iterator[Difference]:
    """The ranks that the lines of all logs name."""
    for finding in found.findings():
        ranks = tuple(map(str, finding.ranks))
        quote = f"{finding.log}:{finding.line}: {finding.text}"
        yield Difference(finding.says, ranks, finding.log, quote, finding.do)


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
        if newline and any(token in whole for token in TOKENS):
            for offset, line in enumerate(whole.split(b"\n")):
                if any(token in line for token in TOKENS):
                    text = line[:LONGEST].decode("utf-8", "replace")
                    self.lines.add(self.name, self._number + offset, text, self.rank)
        self._number += whole.count(b"\n") + len(newline)
        self._begun = rest[-LONGEST:] if len(rest) > LONGEST else rest

    def end(self) -> None:
        """Read the last line, which may lack its end."""
        if self._begun:
            self.feed(b"\n")
