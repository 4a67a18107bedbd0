"""Collectives in logs: PyTorch's watchdog, NCCL_DEBUG and its RAS, gloo, MPI, stacks, tables of failures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpuipc_doctor.collective import ras_counts
from gpuipc_doctor.collective.call import Call, State
from gpuipc_doctor.collective.judge import ADVICE, Judgement, Problem, in_words, judge

TOKENS = (
    b"WorkNCCL(",
    b"ast enqueued ",
    b"monitoredBarrier",
    b"CollectiveFingerPrint(",
    b" opCount ",
    b" commId ",
    b"observed failure",
    b"rank      : ",
    b"exitcode  : ",
    b"Fatal error in ",
    b"error: ",
    b" PMPI_",
    b" in MPI_",
    *ras_counts.TOKENS,
)
"""Texts of which each line that is read has one, so that other lines cost nothing."""

MOST_RANKS = 1 << 16

WINDOW = 64
"""Calls before the last one of a communicator that are kept to compare the ranks' operations. Ranks enqueue
some calls beyond one that hangs."""

MOST_COMMUNICATORS = 1 << 12
"""Maximum communicators of one job's logs; of more, the latest ones are kept."""

MOST_RAS_LINES = 1 << 12

_AGAIN = "ask RAS again: in a job that runs, counts also differ; ranks whose counts stay are late"

_STACKS_AGAIN = (
    "take the stacks again: ranks of a job that runs also differ for a moment; "
    "if they stay, find the condition by which this rank makes another call"
)

_RANK = re.compile(r"\[rank(\d+)\]:?")
"""PyTorch's prefix with the job's rank number, which a rank within a process group may differ from."""
_PREFIX = re.compile(r"(?<!^)(?=\[rank\d+\]:)")
"""Where the line of another rank begins, which was written between a line and its end."""
_PG = re.compile(r"\[PG (?:ID )?(\d+)(?: PG GUID [^ (]*(?:\(([^)]*)\))?)?(?: \S*)? Rank (\d+)\]")
_OWN_RANK = re.compile(r"\[Rank (\d+)\]")
_TIMEOUT = re.compile(
    r"(?:atchdog caught collective operation timeout: |Timeout at )?WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, (?:NumelIn=(\d+), NumelOut=(\d+)|TensorShape=(\[[^\]]*\])))?[^)]*(?:\(ms\)=\d+)?\)"
    r"(?: ran for (\d+) milliseconds)?"
)
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)")
_AT = re.compile(r"watchdog at work sequence id: (\d+)")
_MONITORED = re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier")
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), ?OpType=(\w+)"
    r"(?:, TensorShape=(\[[^\]]*\]))?(?:, TensorDtypes=(\w+))?"
)
_INIT = re.compile(
    r"^.*?([\w.-]+:\d+):\d+ \[\d+\] NCCL INFO .*comm (0x\w+) rank (\d+) n[rR]anks (\d+) .*commId (0x\w+)"
)
_LAUNCH = re.compile(
    r"^.*?([\w.-]+:\d+):\d+ \[\d+\] NCCL INFO (\w+): opCount (\w+) .*?count (\d+) .*?comm (0x\w+)"
)
_FIRST_FAILURE = re.compile(r"observed failure")
_FAILED_RANK = re.compile(r"rank      : (\d+)")
_EXIT_CODE = re.compile(r"exitcode  : (-?\d+)")
_MPI_ABORT = re.compile(r"Abort\(\d+\) on node (\d+).*?Fatal error in (?:internal_|P?)?(\w+)")
_IN_STACK = re.compile(
    r"#\d+ .*\bP?(MPI_(?:Barrier|Bcast|Reduce(?:_\w+)?|Allreduce|(?:Ex)?[Ss]can|(?:All)?[Gg]atherv?"
    r"|Scatterv?|Alltoall[vw]?))\b"
)
_STACKS = "by their stacks"
_SRUN = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (.+)$")


@dataclass(frozen=True, slots=True)
class Finding:
    """A conclusion from the lines of logs. The ranks are the culprits."""

    says: str
    ranks: tuple[int, ...]
    log: str
    line: int
    text: str
    """The line of the first culprit, or of a rank that waits if the culprit wrote none."""
    do: str = ""


@dataclass(slots=True)
class _Seen:
    call: Call
    log: str
    line: int
    text: str


@dataclass(slots=True)
class _Calls:
    """The last call of each rank of a communicator, and all calls of the last `WINDOW` numbers."""

    last: dict[int, _Seen] = field(default_factory=dict)
    window: dict[int, dict[int, _Seen]] = field(default_factory=dict)

    def add(self, seen: _Seen) -> None:
        rank, number = seen.call.rank, seen.call.number or 0
        newest = max(self.window, default=0)
        if number > newest:
            for old in [each for each in self.window if each <= number - WINDOW]:
                del self.window[old]
        if number > newest - WINDOW:
            self.window.setdefault(number, {})[rank] = seen
        if rank not in self.last or number >= (self.last[rank].call.number or 0):
            self.last[rank] = seen

    def all(self) -> Iterator[_Seen]:
        old = [seen for seen in self.last.values() if (seen.call.number or 0) not in self.window]
        yield from old
        for number in sorted(self.window):
            yield from self.window[number].values()


@dataclass(slots=True)
class Lines:
    """What the lines of all logs say about collectives."""

    _timeouts: dict[int, list[_Seen]] = field(default_factory=dict)
    _enqueued: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    _others: dict[str, _Calls] = field(default_factory=dict)
    """Calls that other lines report, by communicator."""
    _communicators: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """NCCL's (process, address of the communicator) → (its id, rank)."""
    _members: dict[str, set[int]] = field(default_factory=dict)
    _first_failure: Finding | None = None
    """What the first rank that ended left in the log."""
    _failed: set[int] = field(default_factory=set)
    _root: Finding | None = None
    """The first failure by torchrun's table."""
    _table: list[tuple[str, int, str]] = field(default_factory=list)
    """The line of a table that announces the first failure, and its rank when found."""
    _stacks: dict[int, dict[str, _Seen]] = field(default_factory=dict)
    """Rank → MPI's collectives in the stacks of its own log."""
    _ras: dict[str, list[list[tuple[int, str]]]] = field(default_factory=dict)
    """Log → lines of the last two answers of NCCL's RAS."""

    def add(self, log: str, line: int, text: str, rank_of_log: str = "") -> None:
        """Read a line. ``rank_of_log``: the rank whose log it is, if the log's name says so."""
        for part in _PREFIX.split(text) if text.count("[rank") > 1 else (text,):
            for read in (
                self._timeout, self._group, self._gloo, self._nccl, self._failure, self._stack, self._answer
            ):  # fmt: skip
                read(log, line, part, rank_of_log)

    def _timeout(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        found = _TIMEOUT.search(text)
        rank = _rank(text, rank_of_log)
        if found is None or rank is None:
            return
        sizes = f"{found[3]} to {found[4]} elements" if found[3] else found[5] or ""
        seconds = int(found[6]) / 1000 if found[6] else None
        group = _group_of(text)
        call = Call(
            rank=rank, operation=found[2], group=group, number=int(found[1]), sizes=sizes, seconds=seconds
        )
        own = self._timeouts.setdefault(rank, [])
        if not any(seen.call.number == call.number and seen.call.operation == call.operation for seen in own):
            own.append(_Seen(call, log, line, text))
            del own[:-WINDOW]

    def _add(self, call: Call, log: str, line: int, text: str) -> None:
        calls = self._others.setdefault(call.group, _Calls())
        calls.add(_Seen(call, log, line, text))
        if len(self._others) > MOST_COMMUNICATORS:
            del self._others[next(iter(self._others))]

    def _fail(self, finding: Finding) -> None:
        self._first_failure = self._first_failure or finding
        self._failed.update(finding.ranks)

    def _group(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        """Lines with a process group: they also tell the group of the rank's timeout of that number."""
        found, rank = _ENQUEUED.search(text), _rank(text, rank_of_log)
        if found is None or rank is None:
            return
        group, enqueued, done = _group_of(text), int(found[1]), int(found[2])
        at = _AT.search(text)
        for seen in self._timeouts.get(rank, ()):
            if at and not seen.call.group and seen.call.number == int(at[1]):
                seen.call = replace(seen.call, group=group)
        state = State.QUEUED if enqueued > done else State.DONE
        call = Call(rank=rank, group=group, number=min(enqueued, done + 1), state=state)
        self._enqueued.setdefault((group, rank), _Seen(call, log, line, text))

    def _gloo(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if found := _MONITORED.search(text):
            missing = {int(rank) for rank in re.findall(r"\d+", found[1])}
            self._members.setdefault("monitored_barrier", set()).update(missing)
            waits = _rank(text, rank_of_log)
            if waits is not None and waits not in missing:
                call = Call(rank=waits, operation="monitored_barrier", group="monitored_barrier")
                self._add(call, log, line, text)
        for found in _FINGERPRINT.finditer(text):
            call = Call(
                rank=int(found[1]),
                operation=found[3],
                group="gloo",
                number=int(found[2]),
                sizes=" ".join(filter(None, (found[4], found[5]))),
            )
            self._add(call, log, line, text)

    def _nccl(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if found := _INIT.search(text):
            self._communicators[found[1], found[2]] = (found[5], int(found[3]))
            if len(self._communicators) > MOST_RANKS:
                del self._communicators[next(iter(self._communicators))]
            self._members.setdefault(_short(found[5]), set()).update(range(min(int(found[4]), MOST_RANKS)))
        elif found := _LAUNCH.search(text):
            communicator = self._communicators.get((found[1], found[5]))
            if communicator:
                call = Call(
                    rank=communicator[1],
                    operation=found[2],
                    group=_short(communicator[0]),
                    number=int(found[3], 16),
                    sizes=f"{found[4]} elements",
                )
                self._add(call, log, line, text)

    def _failure(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if _FIRST_FAILURE.search(text):
            self._table = [(log, line, "")]
        elif self._table and (found := _FAILED_RANK.search(text)) and not self._table[0][2]:
            self._table = [(*self._table[0][:2], found[1])]
        elif self._table and self._table[0][2] and (found := _EXIT_CODE.search(text)):
            (where, at, rank), self._table = self._table[0], []
            says = f"rank {rank} failed first, with exit code {found[1]}{_signal(int(found[1]))} (torchrun)"
            do = f"read the last lines of rank {rank}'s log; the other ranks' errors follow from its end"
            self._root = Finding(says, (int(rank),), where, at, text.strip(), do)
        elif found := _MPI_ABORT.search(text):
            says = f"rank {found[1]} aborted first, in {found[2]}"
            do = f"read the error stack of rank {found[1]}; later aborts of other ranks follow from it"
            self._fail(Finding(says, (int(found[1]),), log, line, text.strip(), do))
        elif found := _SRUN.search(text):
            ranks = tuple(_numbers(found[2]))
            says = f"{in_words(ranks)} failed first: {found[3].strip()} on {found[1]} (Slurm)"
            do = "read the last lines of this rank's log; the other ranks' errors follow from its end"
            self._fail(Finding(says, ranks, log, line, text.strip(), do))

    def _stack(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if rank_of_log and (found := _IN_STACK.search(text)):
            call = Call(rank=int(rank_of_log), operation=found[1], group=_STACKS)
            self._stacks.setdefault(call.rank, {}).setdefault(found[1], _Seen(call, log, line, text))

    def _answer(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if any(token.decode() in text for token in ras_counts.TOKENS):
            own = self._ras.setdefault(log, [[]])
            key = ras_counts.key(text)
            if key and any(key == ras_counts.key(earlier) for _, earlier in own[-1]):
                own.append([])
                del own[:-2]
            own[-1].append((line, text))
            del own[-1][:-MOST_RAS_LINES]

    def _of_ras(self) -> Iterator[Finding]:
        """The ranks behind by RAS's last answer; if it was asked twice, those whose counts did not change."""
        for log, answers in self._ras.items():
            *before, now = (
                ras_counts.of_text("".join(f"{text}\n" for _, text in lines)) for lines in answers
            )
            for earlier in before:
                now, _ = ras_counts.unchanged(earlier, now)
            lines = answers[-1]
            shown = next(((line, text) for line, text in lines if ras_counts.is_mismatch(text)), lines[0])
            for communicator in now.communicators:
                found = [(one.sentence, one.culprits) for one in judge(communicator.calls()) if one.culprits]
                for says, ranks in found or [(each, ()) for each in communicator.in_words()]:
                    asked, do = ("twice", ADVICE[Problem.BEHIND]) if before else ("once", _AGAIN)
                    says = f"NCCL's RAS, asked {asked}: {says}"
                    yield Finding(says, ranks, log, shown[0], shown[1].strip(), do)

    def findings(self, ranks: Iterable[int] = ()) -> Iterator[Finding]:
        """Conclusions that name ranks, the cause first. ``ranks``: ranks of which there is a log."""
        seen = [*self._all()]
        groups = {one.call.group for one in seen}
        members = {
            group: self._members.get(group, set()) | self._known(group, seen, ranks) for group in groups
        }
        for judgement in judge((one.call for one in seen), members):
            if judgement.problem is not Problem.SAME or judgement.culprits:
                yield _finding(judgement, seen)
        yield from self._of_ras()
        if self._root:
            yield self._root
        elif self._first_failure and len(self._failed) > 1:
            yield self._first_failure

    @staticmethod
    def is_read(text: str) -> bool:
        """Whether the conclusions are drawn from lines such as this one."""
        return _TIMEOUT.search(text) is not None or _ENQUEUED.search(text) is not None

    def _all(self) -> Iterator[_Seen]:
        """Each rank's calls; a timed-out call stands for the line on what is enqueued."""
        groups = {group for group, _ in self._enqueued}
        only = groups.pop() if len(groups) == 1 else ""
        told = set()
        for own in self._timeouts.values():
            for seen in own:
                call = replace(seen.call, group=seen.call.group or only)
                told.add((call.group, call.rank))
                yield replace(seen, call=call)
        yield from (seen for key, seen in self._enqueued.items() if key not in told)
        for calls in self._others.values():
            yield from calls.all()
        # a log with several collectives has several stacks: which one counts is not known
        yield from (next(iter(own.values())) for own in self._stacks.values() if len(own) == 1)

    def _known(self, group: str, seen: Iterable[_Seen], ranks: Iterable[int]) -> set[int]:
        """Ranks that must be in the default group, by the ranks that wrote and the logs that there are.

        A log of few ranks says nothing about the others.
        """
        if group not in ("", "default_pg", "PG 0"):
            return set()
        wrote = {one.call.rank for one in seen if one.call.group == group}
        every = set(range(max(wrote, default=-1) + 1))
        return {*ranks} | (every if len(wrote) > len(every) / 2 else wrote)


def _finding(judgement: Judgement, seen: Iterable[_Seen]) -> Finding:
    of_group = [one for one in seen if one.call.group == judgement.group]
    own = [one for one in of_group if one.call.rank in judgement.culprits]
    if judgement.number is not None and judgement.problem in (Problem.OPERATION, Problem.SIZES):
        own = [one for one in own if one.call.number == judgement.number] or own
    waits = [one for one in of_group if one.call.rank in judgement.waiting]
    shown = (own or waits)[0]
    silent = "" if own else f"; there is no such line of {in_words(judgement.culprits)}"
    sentence = judgement.sentence.replace(f" of {_STACKS}", f" ({_STACKS})")
    return Finding(
        f"{sentence}{silent}",
        judgement.culprits,
        shown.log,
        shown.line,
        shown.text.strip(),
        _STACKS_AGAIN if judgement.group == _STACKS else ADVICE[judgement.problem],
    )


def _rank(text: str, rank_of_log: str) -> int | None:
    """The rank that wrote a line, by the job's numbers."""
    for pattern, place in ((_RANK, 1), (_PG, 3), (_OWN_RANK, 1)):
        if found := pattern.search(text):
            return int(found[place])
    return int(rank_of_log) if rank_of_log else None


def _group_of(text: str) -> str:
    found = _PG.search(text)
    return (found[2] or f"PG {found[1]}") if found else ""


def _short(commid: str) -> str:
    return f"communicator {commid[-6:]}"


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(",")[:1024]:
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first), int(first) + 1024) + 1)


def _signal(code: int) -> str:
    names = {-9: " (SIGKILL: perhaps out of memory)", -11: " (SIGSEGV)", -6: " (SIGABRT)", -15: " (SIGTERM)"}
    return names.get(code, "")
