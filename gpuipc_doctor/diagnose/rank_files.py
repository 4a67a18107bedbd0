"""Logs of one rank each: what most logs share, and which logs differ."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuipc_doctor.diagnose.diagnosis import Difference, RankFiles
from gpuipc_doctor.diagnose.occurrences import Place

FEWEST = 3
"""Logs with names that differ only in numbers are treated as a job's ranks if they are at least this many."""
MOST_KINDS = 64
"""Maximum kinds of lines kept per log."""
_QUOTED = 2
_NAMES = (
    r"rank[._=-]?(\d+)",  # Open MPI's --output-filename, PyTorch's dumps, and common user choices
    r"attempt_\d+/(\d+)/std(?:out|err)",  # torchrun --log-dir
)


def rank_in(name: str) -> str:
    """The rank in a file's name; empty if none."""
    found = [match[1] for pattern in _NAMES for match in re.finditer(pattern, name, re.IGNORECASE)]
    return str(int(found[-1])) if found else ""


@dataclass(slots=True)
class LogSummary:
    """Summary of one log, without its lines."""

    name: str
    issues: set[int] = field(default_factory=set)
    kinds: dict[bytes, Place] = field(default_factory=dict)
    """Kind of error line → its first occurrence."""
    hosts: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)

    def add(self, kind: bytes, line: Place) -> None:
        if len(self.kinds) < MOST_KINDS:
            self.kinds.setdefault(kind, line)

    def saw(self, hosts: Collection[str], ranks: Collection[str]) -> None:
        """Record hosts and ranks, until two of each are known: they show that the log has several writers."""
        for own, more in ((self.hosts, hosts), (self.ranks, ranks)):
            if len(own) < 2:
                own.update(more)

    @property
    def label(self) -> str:
        """Rank and host, such as ``rank 17 (nid000004)``; the log's name if the rank is unknown."""
        rank = rank_in(self.name) or (next(iter(self.ranks)) if len(self.ranks) == 1 else "")
        host = next(iter(self.hosts)) if len(self.hosts) == 1 else ""
        return f"{f'rank {rank}' if rank else self.name}{f' ({host})' if host else ''}"


def compare(
    summaries: Iterable[LogSummary], ids: Mapping[int, str], unknown: Collection[bytes]
) -> Iterator[RankFiles]:
    """Compare each family of logs by their issues (``ids``) and ``unknown`` kinds of lines."""
    families: defaultdict[str, dict[str, LogSummary]] = defaultdict(dict)
    for log in summaries:
        families[re.sub(r"\d+", "0", log.name)][log.name] = log
    for logs in families.values():
        if len(logs) >= FEWEST and (found := _of_family(list(logs.values()), ids, frozenset(unknown))):
            yield found


State = tuple[frozenset[str], frozenset[bytes]]


def _of_family(logs: list[LogSummary], ids: Mapping[int, str], unknown: frozenset[bytes]) -> RankFiles | None:
    groups: defaultdict[State, list[LogSummary]] = defaultdict(list)
    lines: dict[bytes, Place] = {}
    for log in logs:
        named = frozenset(ids[number] for number in log.issues if number in ids)
        groups[named, unknown.intersection(log.kinds)].append(log)
        lines |= log.kinds
    usual, alike = max(groups.items(), key=lambda group: len(group[1]))
    others = [(state, some) for state, some in groups.items() if state != usual]
    if 2 * len(alike) < len(logs) or not (others or any(usual)):
        return None  # all contents differ: nothing is usual
    differences = tuple(
        Difference(_beside(state, usual, lines), tuple(log.label for log in some), some[0].name)
        for state, some in sorted(others, key=lambda group: len(group[1]))
    )
    return RankFiles(len(alike), tuple(sorted(usual[0])), differences)


def _beside(state: State, usual: State, lines: Mapping[bytes, Place]) -> str:
    parts = []
    for word, own, others in (("has", state, usual), ("lacks", usual, state)):
        kinds = sorted(lines[kind].excerpt.strip() for kind in own[1] - others[1])
        more = len(kinds) - _QUOTED
        some = [*sorted(own[0] - others[0]), *(f"“{line}”" for line in kinds[:_QUOTED])]
        if some:
            parts.append(f"{word} {', '.join(some)}" + (f" and {more} more" if more > 0 else ""))
    return "; ".join(parts)
