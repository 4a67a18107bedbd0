"""Collectives in logs: PyTorch's watchdog, NCCL_DEBUG and its RAS, gloo, stacks; and who failed first."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpuipc_doctor.collective import failures, ras_counts
from gpuipc_doctor.collective.call import Call, State, plain
from gpuipc_doctor.collective.failures import Failures
from gpuipc_doctor.collective.judge import ADVICE, Judgement, Problem, in_words, judge
from gpuipc_doctor.present.text import ranges

LAUNCH = b" opCount "
"""Text of NCCL_DEBUG's lines on calls, which may be all lines of a log."""

_RESTARTS = "will restart worker"
_RAS = tuple(map(bytes.decode, ras_counts.TOKENS))
TOKENS = tuple(
    text.encode()
    for text in (
        *("WorkNCCL(", "ast enqueued ", "monitoredBarrier", "CollectiveFingerPrint(", " PMPI_", " in MPI_"),
        *(" commId ", _RESTARTS, *_RAS, *failures.TOKENS),
    )
)
"""Texts of which each other line that is read has one, so that other lines cost nothing."""

MOST_RANKS = 1 << 16

MOST_ATTEMPTS = 16
"""Maximum attempts of a job that are told apart; of more, the first and the latest ones."""

WINDOW = 64
"""Calls of each rank and communicator that are kept to compare the ranks' operations: the last ones. Ranks
enqueue some calls beyond one that hangs."""

LAST_CALLS = 4
"""Calls that are kept if there are more than `WIDE` ranks and communicators, which bounds the memory."""
WIDE = 1 << 11

MOST_RAS_LINES = 1 << 12

_AGAIN = "ask RAS again: in a job that runs, counts also differ; ranks whose counts stay are late"

_COPIED = "copy the log again: if the job ran, the counts have changed; ranks whose count stays are late"

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
_MONITORED = "monitored_barrier"
_NOT_PASSED = re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier")
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), ?OpType=(\w+)"
    r"(?:, TensorShape=(\[[^\]]*\]))?(?:, TensorDtypes=(\w+))?"
)
_INIT = re.compile(
    r"([\w.-]+:\d+):\d+ \[\d+\] NCCL INFO .*comm (0x\w+) rank (\d+) n[rR]anks (\d+) .*commId (0x\w+)"
)
_LAUNCH = re.compile(
    rb".*?([\w.-]+:\d+):\d+ \[\d+\] NCCL INFO (\w+): opCount (\w+) .*? count (\d+) .*?comm (0x\w+)"
)
_IN_STACK = re.compile(
    r"#\d+ .*\bP?(MPI_(?:Barrier|Bcast|Reduce(?:_\w+)?|Allreduce|(?:Ex)?[Ss]can|(?:All)?[Gg]atherv?"
    r"|Scatterv?|Alltoall[vw]?))\b"
)
_STACKS = "by their stacks"
_LAUNCHER = re.compile(r"^(?:\[\d+,(\d+)\]<std\w+>: ?|\[(\d+)\] (?=\S)| *(\d+): )")
"""Rank before each line: Open MPI's --tag-output, Hydra's -l, srun -l."""
_ONE_SIDED = frozenset({"send", "recv", "coalesced"})
"""Operations of PyTorch's watchdog in which two ranks of a group are, or several in other directions."""


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
    blames: bool = True
    """False if the job may only have been between two calls when this was written."""


@dataclass(slots=True)
class _Seen:
    call: Call
    log: str
    line: int
    text: str


Launch = tuple[str, int, bytes, tuple[bytes, ...]]
"""Log, number of the line, the line, and what `_LAUNCH` finds in it."""


@dataclass(slots=True)
class _Attempt:
    """What the lines of all logs say about the collectives of one attempt of a job."""

    failures: Failures = field(default_factory=Failures)
    _timeouts: dict[int, deque[_Seen]] = field(default_factory=lambda: defaultdict(_last))
    _enqueued: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    _others: dict[tuple[str, int], deque[_Seen]] = field(default_factory=lambda: defaultdict(_last))
    """Calls that gloo's lines report, by communicator and rank."""
    launches: dict[tuple[bytes, bytes], deque[Launch]] = field(default_factory=dict)
    """NCCL's (process, address of the communicator) → its calls."""
    _communicators: dict[tuple[bytes, bytes], tuple[str, int]] = field(default_factory=dict)
    """NCCL's (process, address of the communicator) → (its name, rank)."""
    _members: dict[str, set[int]] = field(default_factory=dict)
    _stacks: dict[int, dict[str, _Seen]] = field(default_factory=dict)
    """Rank → MPI's collectives in the stacks of its own log."""
    _ras: dict[str, list[list[tuple[int, str]]]] = field(default_factory=dict)
    """Log → lines of the last two answers of NCCL's RAS."""

    def add(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        rank, own = _writer(text, rank_of_log)
        if rank is not None and ("WorkNCCL(" in text or "ast enqueued " in text):
            self._timeout(log, line, text, rank)
            self._group(log, line, text, rank)
        if "monitoredBarrier" in text or "CollectiveFingerPrint(" in text:
            self._gloo(log, line, text, rank)
        if " commId " in text:
            self._join(text)
        if "MPI_" in text:
            self._stack(log, line, text, rank_of_log)
        if any(token in text for token in _RAS):
            self._answer(log, line, text)
        self.failures.add(log, line, text, rank, own)

    def is_over_for(self, text: str) -> bool:
        """Whether a rank that timed out was started anew: it joins a communicator, or times out in another
        call after torchrun's agent has reported the end."""
        if " commId " in text and (found := _INIT.search(text)):
            return int(found[3]) in self._timeouts
        if not self.failures.is_over or not (found := _TIMEOUT.search(text)):
            return False
        calls = [seen.call.number for seen in self._timeouts.get(_writer(text, "")[0] or 0, ())]
        return bool(calls) and int(found[1]) not in calls

    def _timeout(self, log: str, line: int, text: str, rank: int) -> None:
        found = _TIMEOUT.search(text)
        if found is None or plain(found[2]) in _ONE_SIDED:
            return
        sizes = f"{found[3]} to {found[4]} elements" if found[3] else found[5] or ""
        seconds = int(found[6]) / 1000 if found[6] else None
        group = _group_of(text)
        call = Call(
            rank=rank, operation=found[2], group=group, number=int(found[1]), sizes=sizes, seconds=seconds
        )
        own = self._timeouts[rank]
        if not any(seen.call.number == call.number and seen.call.operation == call.operation for seen in own):
            own.append(_Seen(call, log, line, text))

    def _group(self, log: str, line: int, text: str, rank: int) -> None:
        """Lines with a process group: they also tell the group of the rank's timeout of that number."""
        found = _ENQUEUED.search(text)
        if found is None:
            return
        group, enqueued, done = _group_of(text), int(found[1]), int(found[2])
        at = _AT.search(text)
        for seen in self._timeouts.get(rank, ()):
            if at and not seen.call.group and seen.call.number == int(at[1]):
                seen.call = replace(seen.call, group=group)
        state = State.QUEUED if enqueued > done else State.DONE
        call = Call(rank=rank, group=group, number=min(enqueued, done + 1), state=state)
        self._enqueued.setdefault((group, rank), _Seen(call, log, line, text))

    def _gloo(self, log: str, line: int, text: str, rank: int | None) -> None:
        if found := _NOT_PASSED.search(text):
            missing = {int(number) for number in re.findall(r"\d+", found[1])}
            group = _MONITORED
            self._members.setdefault(group, set()).update(missing)
            if rank is not None and rank not in missing:
                self._others[group, rank].append(
                    _Seen(Call(rank=rank, operation=group, group=group), log, line, text)
                )
        for found in _FINGERPRINT.finditer(text):
            call = Call(
                rank=int(found[1]),
                operation=found[3],
                group="gloo",
                number=int(found[2]),
                sizes=" ".join(filter(None, (found[4], found[5]))),
            )
            self._others["gloo", call.rank].append(_Seen(call, log, line, text))

    def _join(self, text: str) -> None:
        if found := _INIT.search(text):
            name, key = f"communicator {found[5][-6:]}", (found[1].encode(), found[2].encode())
            self.launches.pop(key, None)  # an address is used again
            if len(self._communicators) < MOST_RANKS:
                self._communicators[key] = name, int(found[3])
                self._members.setdefault(name, set()).update(range(min(int(found[4]), MOST_RANKS)))

    def _launched(self) -> Iterator[_Seen]:
        for key, calls in self.launches.items():
            if key in self._communicators:
                group, rank = self._communicators[key]
                for log, line, text, found in calls:
                    name, number, count = (found[place].decode() for place in (1, 2, 3))
                    sizes = f"{count} elements"
                    call = Call(rank=rank, operation=name, group=group, number=int(number, 16), sizes=sizes)
                    yield _Seen(call, log, line, text.decode("utf-8", "replace"))

    def _stack(self, log: str, line: int, text: str, rank_of_log: str) -> None:
        if rank_of_log and (found := _IN_STACK.search(text)):
            call = Call(rank=int(rank_of_log), operation=found[1], group=_STACKS)
            self._stacks.setdefault(call.rank, {}).setdefault(found[1], _Seen(call, log, line, text))

    def _answer(self, log: str, line: int, text: str) -> None:
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
                    yield Finding(says, ranks, log, shown[0], shown[1].strip(), do, bool(before and ranks))

    def findings(self, ranks: Iterable[int]) -> Iterator[Finding]:
        """Conclusions that name ranks, the cause first. ``ranks``: ranks of which there is a log."""
        first = self.failures.first()
        failed = first and Finding(
            first.says, first.ranks, first.log, first.line, first.text.strip(), first.do
        )
        for finding in self._of_calls(ranks):
            if failed and not (failed.log == finding.log and failed.line > finding.line):
                yield failed
                failed = None
            if first is None or not finding.ranks or {*finding.ranks} - {*first.ranks}:  # not told twice
                yield finding
        if failed:
            yield failed

    def _of_calls(self, ranks: Iterable[int]) -> Iterator[Finding]:
        seen = [*self._all()]
        groups = {one.call.group for one in seen}
        members = {
            group: self._members.get(group, set()) | self._known(group, seen, ranks) for group in groups
        }
        ran = not self._timeouts and not self._enqueued and not self.failures.is_known
        for judgement in judge((one.call for one in seen), members):
            if judgement.problem is not Problem.SAME or judgement.culprits:
                finding = _finding(judgement, seen)
                late = judgement.problem in (Problem.BEHIND, Problem.MISSING)
                if ran and late and judgement.group.startswith("communicator "):
                    finding = replace(
                        finding, says=f"at the end of the log, {finding.says}", do=_COPIED, blames=False
                    )
                yield finding
        yield from self._of_ras()

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
            yield from calls
        yield from self._launched()
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
        of_job = every.union(*self._members.values())
        return {*ranks} | next((some for some in (of_job, every) if len(wrote) > len(some) / 2), wrote)


@dataclass(slots=True)
class Lines:
    """What the lines of all logs of a job say about collectives, in each of its attempts."""

    _attempts: list[_Attempt] = field(default_factory=lambda: [_Attempt()])
    _at: dict[str, int] = field(default_factory=dict)
    """Log → the attempt that its lines are of."""
    _unread: dict[str, Finding] = field(default_factory=dict)

    def add(self, log: str, line: int, text: str, rank_of_log: str = "") -> None:
        """Read a line. ``rank_of_log``: the rank whose log it is, if the log's name says so."""
        for part in _PREFIX.split(text) if text.count("[rank") > 1 else (text,):
            attempt = self._attempt(log)
            if _RESTARTS in part or attempt.is_over_for(part):
                attempt.failures.is_over = True
                self._at[log] = self._at.get(log, 0) + 1
                attempt = self._attempt(log)
            if LAUNCH.decode() in part:
                self.launches(log, [(line, part.encode())])
            attempt.add(log, line, part, rank_of_log)

    def _attempt(self, log: str) -> _Attempt:
        if (at := self._at.get(log, 0)) >= MOST_ATTEMPTS:
            at = MOST_ATTEMPTS - 1
            self._leave_out(
                f"more than {MOST_ATTEMPTS} attempts: the later ones were read as one", log, 1, ""
            )
        while len(self._attempts) <= at:
            self._attempts.append(_Attempt())
        return self._attempts[at]

    def launches(self, log: str, lines: Iterable[tuple[int, bytes]]) -> None:
        """Read numbered lines of NCCL_DEBUG on calls, of which there may be millions."""
        launches = self._attempt(log).launches
        for line, text in lines:
            if found := _LAUNCH.match(text):
                key = found[1], found[5]
                if key not in launches:
                    if len(launches) == MOST_RANKS:
                        says = f"calls of more than {MOST_RANKS} ranks and communicators were not read"
                        self._leave_out(says, log, line, text.decode("utf-8", "replace"))
                        continue
                    launches[key] = deque(maxlen=WINDOW if len(launches) < WIDE else LAST_CALLS)
                launches[key].append((log, line, text, found.groups()))

    def _leave_out(self, says: str, log: str, line: int, text: str) -> None:
        self._unread.setdefault(says, Finding(says, (), log, line, text, blames=False))

    def findings(self, ranks: Iterable[int] = ()) -> Iterator[Finding]:
        """Conclusions that name ranks, the cause first, of each attempt in turn; those of several once.
        ``ranks``: ranks of which there is a log."""
        last = len(self._attempts)
        of: dict[str, list[int]] = {}
        found = [
            (number, finding)
            for number, attempt in enumerate(self._attempts, 1)
            for finding in attempt.findings(ranks if number == last else ())
        ]
        for number, finding in found:
            of.setdefault(finding.says, []).append(number)
        for number, finding in found:
            if of[finding.says][0] == number:
                attempts = ranges(of[finding.says])
                yield (
                    finding
                    if last == 1
                    else replace(finding, says=f"{finding.says} [attempt {attempts} of {last}]")
                )
        yield from self._unread.values()


def is_read(text: str) -> bool:
    """Whether the conclusions are drawn from lines such as this one."""
    return _TIMEOUT.search(text) is not None or _ENQUEUED.search(text) is not None


def _finding(judgement: Judgement, seen: Iterable[_Seen]) -> Finding:
    of_group = [one for one in seen if one.call.group == judgement.group]
    own = [one for one in of_group if one.call.rank in judgement.culprits]
    if judgement.number is not None and judgement.problem in (Problem.OPERATION, Problem.SIZES):
        own = [one for one in own if one.call.number == judgement.number] or own
    waits = [one for one in of_group if one.call.rank in judgement.waiting]
    shown = max(own or waits, key=lambda one: one.call.number or 0)
    silent = "" if own else f"; there is no such line of {in_words(judgement.culprits)}"
    sentence = judgement.sentence.replace(f" of {_STACKS}", f" ({_STACKS})").replace(f" of {_MONITORED}", "")
    return Finding(
        f"{sentence}{silent}",
        judgement.culprits,
        shown.log,
        shown.line,
        shown.text.strip(),
        _STACKS_AGAIN if judgement.group == _STACKS else ADVICE[judgement.problem],
    )


def _writer(text: str, rank_of_log: str) -> tuple[int | None, str]:
    """The rank that wrote a line, by the job's numbers, and the line without what stands before it."""
    if found := _RANK.search(text):
        return int(found[1]), text[found.end() :].lstrip()
    before = _LAUNCHER.match(text)
    text = text[before.end() :] if before else text
    for pattern, place in ((_PG, 3), (_OWN_RANK, 1)):
        if found := pattern.search(text):
            return int(found[place]), text
    rank = rank_of_log or next(filter(None, before.groups()), "") if before else rank_of_log
    return (int(rank) if rank else None), text


def _last() -> deque[_Seen]:
    return deque(maxlen=WINDOW)


def _group_of(text: str) -> str:
    found = _PG.search(text)
    return (found[2] or f"PG {found[1]}") if found else ""
