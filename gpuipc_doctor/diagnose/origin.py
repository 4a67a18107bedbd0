"""Host, rank and time of a line in a log, if the line contains them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import date, datetime, timezone

_HEAD = 300
"""Characters at the start of a line that are searched."""

_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_NAME = r"[A-Za-z](?:[\w.-]*\w)?"

_TIMES = (
    r"^(?:.{0,40}?\s)?libfabric:\d+:(\d{9,11}):",  # seconds since 1970, since libfabric 1.13
    r"\[(\d{9,11}\.\d+)\] \[",  # UCX
    rf"(?<!\d)({_DATE}[T ]{_CLOCK}(?:Z| ?[+-]\d\d:?\d\d)?)",  # Slurm's daemons, journalctl -o short-iso, NCCL
    rf"(?<!\d)(\d{{4}}/\d\d/\d\d {_CLOCK})",
    rf"((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} +\d+ {_CLOCK}(?: [A-Z]{{3,4}})? \d{{4}})",  # date, dmesg -T
    rf"^({_MONTH} +\d{{1,2}} {_CLOCK}) ",  # syslog
    r"^(?:<\d+>)?\[ *(\d+\.\d{6})\]",  # dmesg: seconds since boot
)
_HOSTS = (
    rf"\[({_NAME}):\d+(?::\d+)?\]",  # Open MPI, UCX
    rf"({_NAME}):\d+:\d+ \[\d+\] (?:\S+:\d+ )?(?:NCCL|RCCL)",
    rf"libfabric:[^<\n]{{0,120}}<\w+> ({_NAME}): ",  # the cxi provider
    rf"(?:srun|slurmstepd): error: ({_NAME}): task",
    rf"slurmstepd-({_NAME}):",
    rf"\bON ({_NAME}) CANCELLED",
    rf"\[Rank \d+\] \[job id [^\]]*\] \[[^\]]*\] \[({_NAME})\]",  # Cray MPICH
    rf"\[({_NAME}):mpi_rank_\d+\]",  # MVAPICH2
    rf"^{_MONTH} +\d{{1,2}} {_CLOCK} ({_NAME}) ",
    rf"^{_DATE}T{_CLOCK}\S* ({_NAME}) \S+:",
)
_RANKS = (
    r"\[\d+,(\d+)\]<std",  # Open MPI's mpiexec --tag-output
    r"\[rank ?(\d+)\]",  # Cray MPICH, PyTorch
    r"mpi_rank_(\d+)",
    r"\b(?:error: [\w.-]+: task|rank|PE)[ =:#]{1,3}(\d+)\b",
    r"^\[(\d+)\] ",  # Hydra's mpiexec -l
    r"^ *(\d+): ",  # srun -l
)


def _compiled(patterns: Sequence[str], flags: int = 0) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, flags) for pattern in patterns)


def _once_a_line(patterns: Sequence[str], flags: int = 0) -> tuple[re.Pattern[str], ...]:
    return _compiled([f"(?:{pattern}).*" for pattern in patterns], flags | re.MULTILINE)


_TIME = _compiled(_TIMES)
_HOST = _once_a_line(_HOSTS)
_RANK = _once_a_line(_RANKS, re.IGNORECASE)

_MOST_KINDS = 4096
"""Maximum kinds of lines whose format is kept."""


def time(line: str) -> str:
    """A line's time as written; ISO 8601 in UTC for seconds since 1970; empty if the line has no time."""
    told = _first(_TIME, line[:_HEAD])
    seconds = re.fullmatch(r"(\d+)(?:\.\d+)?", told)
    if not seconds:
        return told
    if len(seconds[1]) < 9:
        return f"{told} s after boot"
    try:
        return datetime.fromtimestamp(int(seconds[1]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # a number that is not a time, or a year out of range
        return told


_DAYS = (
    (re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)"), "%Y %m %d"),
    (re.compile(rf"({_MONTH}) +(\d+) \d\d:\d\d:\d\d.* (\d{{4}})"), "%b %d %Y"),
)


def day(time: str) -> date | None:
    """The date in a result of `time`, if it has one."""
    for form, layout in _DAYS:
        if found := form.search(time):
            with contextlib.suppress(ValueError):
                return datetime.strptime(" ".join(found.groups()), layout).date()
    return None


class Writers:
    """Finds a line's host and rank; remembers the format for each kind of line."""

    def __init__(self) -> None:
        self._forms: dict[bytes, tuple[re.Pattern[str] | None, re.Pattern[str] | None]] = {}

    def writer(self, line: str, kind: bytes) -> tuple[str, str]:
        """(host, rank), each empty if unknown. ``kind``: the bare line."""
        head = line[:_HEAD]
        host, rank = (form.search(head) if form else None for form in self._of(kind, head))
        return host[1] if host else "", rank[1] if rank else ""

    def writers(self, lines: Sequence[bytes], kind: bytes) -> tuple[set[str], set[str]]:
        """Hosts and ranks of lines of one kind."""
        heads = b"\n".join([line[:_HEAD] for line in lines]).decode("utf-8", "replace")
        hosts, ranks = (set(form.findall(heads)) if form else set() for form in self._of(kind, heads))
        return hosts, ranks

    def _of(self, kind: bytes, text: str) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        forms = self._forms.get(kind)
        if forms is None:
            forms = _form(_HOST, text), _form(_RANK, text)
            if len(self._forms) < _MOST_KINDS:
                self._forms[kind] = forms
        return forms


def _form(patterns: Sequence[re.Pattern[str]], text: str) -> re.Pattern[str] | None:
    return next((pattern for pattern in patterns if pattern.search(text)), None)


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> str:
    return next((match[1] for pattern in patterns if (match := pattern.search(text))), "")
