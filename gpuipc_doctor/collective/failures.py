"""Who failed first, by logs: the first cause by time, not what follows from it on other ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuipc_doctor.collective.judge import in_words

MOST_RANKS = 1 << 16
_LONGEST = 160
"""Maximum characters of an error's text in a sentence."""

TOKENS = (
    *(
        "Error: ",
        "Exception: ",
        "CUDA error: ",
        "HIP error: ",
        "Fatal Python error: ",
        "Signal: ",
        "Caught signal ",
        "watchdog got stuck",
    ),
    *("Fatal error in ", "srun: error: ", " exited on signal ", " RUNNING AT ", "Worker exit type: "),
    *("\tpid: ", "\tip: ", "  pid: ", "  ip: ", "memory pressure", "observed failure", "CANCELLED AT "),
    *("failed (exitcode: ", "time      : ", "rank      : ", "exitcode  : "),
)
"""Texts of which each line that is read has one, beside those of the watchdog."""

_FOLLOWS = re.compile(
    r"atchdog caught|Timeout at WorkNCCL|ast enqueued|debug info, due to|Dist(?:Backend|Network|Store)Error"
    r"|Connection (?:closed|reset) by|[Bb]roken pipe|remote process exited|communicator was aborted"
    r"|RemoteError|failed to pass monitoredBarrier|reached monitoredBarrier, but|Detected mismatch between"
    r"|ChildFailedError|SignalException|SIGTERM|[Tt]imed out|RayActorError|ActorDiedError|RayTaskError"
)
"""What a rank writes because of another rank, or of somebody who ends the job."""
_OWN = re.compile(
    r"^(?P<says>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .*)"
    r"|(?P<crash>(?:CUDA|HIP) error: .+|Fatal Python error: .+|Signal: [\w ]+\(\d+\)"
    r"|Caught signal \d+ \([^)]*\))"
    r"|watchdog got stuck for (?P<stuck>\d+) seconds"
)
_LAUNCHER = re.compile(
    r"Abort\(\d+\) on node (?P<aborted>\d+).*?Fatal error in (?:internal_|P?)?(?P<call>\w+)"
    r"|srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<reason>.+)$"
    r"|process rank (?P<killed>\d+) with PID \d+ on node (?P<on>\S+) exited on (?P<signal>signal \d+ \(.+\))"
    r"|RANK (?P<bad>\d+) PID \d+ RUNNING AT (?P<at>\S+)"
)
_RAY = re.compile(
    r"Worker IP address: (?P<ip>[\w.:]+?),? .*?Worker PID: (?P<pid>\d+).*?Worker exit type: (?P<how>\w+)"
    r"|Workers \(tasks / actors\) killed due to memory pressure.*?IP: (?P<full>[\w.:]+)\)"
)
_FIELD = re.compile(r"(?:^|\))\s+(pid|ip): (\S+)$|(time|rank|exitcode)  +: (-?[\w:.-]+)")
"""A field of Ray's actor, or of a row of torchrun's table."""
_ENDED = re.compile(r"CANCELLED AT \S+ DUE TO ")
_TIMES = (
    re.compile(r"\[[EWIF](\d\d?)(\d\d) (\d\d:\d\d:\d\d)"),
    re.compile(r"\d{4}-(\d\d)-(\d\d)[T _](\d\d:\d\d:\d\d)"),
)
_SIGNALS = {-9: " (SIGKILL: perhaps out of memory)", -11: " (SIGSEGV)", -6: " (SIGABRT)", -15: " (SIGTERM)"}
_DO_RAY = "read this worker's log, and the raylet's log and dmesg on its node"


class Failure(NamedTuple):
    """What a log says of ranks that failed, or of a process of Ray, which has no rank."""

    ranks: tuple[int, ...]
    says: str
    log: str
    line: int
    text: str
    do: str = ""
    time: str = ""
    is_cause: bool = True
    is_sure: bool = False
    """Whether this is no consequence even if nothing else is known to have failed."""


@dataclass(slots=True)
class Failures:
    """The first that each rank of one attempt of a job wrote of a failure, and what launchers wrote."""

    _own: dict[int, Failure] = field(default_factory=dict)
    _launcher: dict[tuple[int, ...], Failure] = field(default_factory=dict)
    _table: dict[int, Failure] = field(default_factory=dict)
    _row: dict[str, str] = field(default_factory=dict)
    _root: bool = False
    _is_ended: bool = False
    """Whether somebody has ended the job: what follows is no cause."""
    _is_cancelled: bool = False
    """Whether Slurm ends the step, by its user's wish or after a failure: it kills the tasks."""
    is_over: bool = False
    """Whether a launcher says that the attempt has failed."""

    def add(self, log: str, line: int, text: str, rank: int | None, own: str) -> None:
        """Read a line. ``own``: without what launchers and loggers wrote before it, such as the time."""
        if "CANCELLED AT " in text:
            self._is_cancelled, self._is_ended = True, self._is_ended or _ENDED.search(text) is not None
        if self._is_ended or len(self._own) + len(self._launcher) + len(self._table) > MOST_RANKS:
            return
        if "failed (exitcode: " in text:
            self.is_over = True
        elif rank is not None:
            self._add_own(log, line, text, rank, own)
        if failure := self._of_launcher(log, line, text):
            self._launcher.setdefault(failure.ranks, failure)
        self._add_field(log, line, text)

    def _add_own(self, log: str, line: int, text: str, rank: int, own: str) -> None:
        before = self._own.get(rank)
        if before is not None and "atchdog caught" not in text:
            return
        time = _time(text)
        if _FOLLOWS.search(text):
            if before is None or (before.log == log and not before.is_sure):  # it has survived its own error
                self._own[rank] = Failure((rank,), "", log, line, text, time=time, is_cause=False)
        elif found := _OWN.search(own):
            error = (found["says"] or found["crash"] or "")[:_LONGEST]
            says, do = f"rank {rank} failed first: {error}", _do((rank,))
            if stuck := found["stuck"]:
                says = f"rank {rank} is stuck in a call of CUDA or NCCL: its watchdog got stuck for {stuck} s"
                do = f"read the stacks of rank {rank}: py-spy dump --native"
            self._own[rank] = Failure((rank,), says, log, line, text, do, time, is_sure=bool(stuck))

    def _of_launcher(self, log: str, line: int, text: str) -> Failure | None:
        if found := _RAY.search(text):
            says = f"Ray killed a worker on {found['full']}: its node was out of memory"
            if found["pid"]:
                says = f"Ray's worker with pid {found['pid']} on {found['ip']} died first ({found['how']})"
            return Failure((), says, log, line, text, _DO_RAY, _time(text), is_sure=True)
        found = _LAUNCHER.search(text)
        if found is None:
            return None
        ranks = tuple(_numbers(found["tasks"] or found["aborted"] or found["killed"] or found["bad"]))
        who = in_words(ranks)
        says = f"{who} failed first, on {found['on'] or found['at']}"
        if found["aborted"]:
            says = f"{who} aborted first, in {found['call']}"
        elif found["signal"]:
            says += f", by {found['signal']}"
        elif reason := found["reason"]:
            says = f"{who} failed first: {reason.strip()} on {found['host']} (Slurm)"
        follows = ("Terminated", "Killed") if self._is_cancelled else ("Terminated",)
        is_cause = not (found["reason"] or "").startswith(follows)
        sure = bool(found["killed"])
        return Failure(ranks, says, log, line, text, _do(ranks), _time(text), is_cause, sure)

    def _add_field(self, log: str, line: int, text: str) -> None:
        if "observed failure" in text:
            self._root = True
        found = _FIELD.search(text)
        if found is None:
            return
        name, value = found[1] or found[3], found[2] or found[4]
        self._row = {**({} if name == "time" else self._row), name: value}
        row = self._row
        if {"pid", "ip"} <= row.keys():
            says = f"Ray's actor with pid {row['pid']} on {row['ip']} died first"
            self._launcher.setdefault((), Failure((), says, log, line, text, _DO_RAY, is_sure=True))
        elif (
            name == "exitcode"
            and "time" in row
            and row.get("rank", "").isdecimal()
            and re.fullmatch(r"-?\d{1,4}", value)
        ):
            rank, code = int(row["rank"]), int(value)
            says = f"rank {rank} failed first, with exit code {code}{_SIGNALS.get(code, '')} (torchrun)"
            time = _time(row.get("time", "")) + "~" * (not self._root)  # within one second, torchrun's choice
            failure = Failure((rank,), says, log, line, text, _do((rank,)), time, code != -15, is_sure=True)
            self._table.setdefault(rank, failure)
        else:
            return
        self._row = {}

    @property
    def is_known(self) -> bool:
        """Whether a rank has failed, or the job was ended."""
        return self._is_ended or bool(self._own or self._launcher or self._table)

    def first(self) -> Failure | None:
        """The first cause; None if none is known, or if most ranks failed by themselves in the same way."""
        seen = {rank for ranks in self._launcher for rank in ranks} | self._own.keys() | self._table.keys()
        own = [each for each in self._own.values() if each.is_cause]
        alike = Counter(re.sub(r"\d+", "", each.says) for each in own)
        if len(seen) > 1 and max(alike.values(), default=0) > len(seen) / 2:
            return None
        known = self._own.keys()
        rows = [each for each in self._table.values() if each.is_cause and not known & {*each.ranks}]
        causes = [
            *own,
            *(each for each in self._launcher.values() if each.is_cause and not known & {*each.ranks}),
            *([min(rows, key=lambda row: row.time)] if rows else ()),
        ]
        first = _earliest(causes) if causes else None
        if first is None or not (first.is_sure or self.is_over or len(seen) > len(first.ranks)):
            return None
        return first


def _earliest(causes: Sequence[Failure]) -> Failure:
    """By line within a log, by time between logs; what has no time is taken to be earlier."""
    if len({each.log for each in causes}) == 1:
        return min(causes, key=lambda each: each.line)
    return min(causes, key=lambda each: each.time)


def _time(text: str) -> str:
    """A line's month, day and time, to compare; empty if it has none."""
    found = next(filter(None, (form.search(text) for form in _TIMES)), None)
    return " ".join([found[1].zfill(2), found[2], found[3]]) if found else ""


def _do(ranks: Sequence[int]) -> str:
    return f"read the last lines of {in_words(ranks)}'s log; the other ranks' errors follow from its end"


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(",")[:1024]:
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), min(int(last or first), int(first) + 1024) + 1)
