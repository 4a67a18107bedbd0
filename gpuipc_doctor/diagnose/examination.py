"""Count matches in logs, and conclude which known issues they show, given the versions that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from math import inf
from operator import attrgetter, itemgetter

from gpuipc_doctor.diagnose.collectives import Collectives, ranks_at_fault
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead, Recognised
from gpuipc_doctor.diagnose.error_lines import ErrorLines
from gpuipc_doctor.diagnose.flight_recorder import Dump, differences
from gpuipc_doctor.diagnose.index import Index, Part
from gpuipc_doctor.diagnose.literals import bare
from gpuipc_doctor.diagnose.log_facts import Facts
from gpuipc_doctor.diagnose.occurrences import Place, Sighting, Tally
from gpuipc_doctor.diagnose.origin import Writers, day
from gpuipc_doctor.diagnose.rank_files import LogSummary, compare
from gpuipc_doctor.diagnose.scanner import Hit, Scanner, spanned
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, may_concern
from gpuipc_doctor.knownissues.conditions import NamedFacts
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.knownissues.stacks import Stack, Stacks
from gpuipc_doctor.model import Fact, Relation
from gpuipc_doctor.versions import Verdict

MANY = 1000
"""After this many lines with one part of a signature, the search for the part pauses until the other parts
are found. For example, libfabric's function names are in stacks and in every line of its debug log."""

ENOUGH = 100
"""After this many lines outside stacks, the search for a stack's function pauses."""
MOST_LOGS = 1 << 14
"""Maximum logs compared with each other."""

StackLine = tuple[int, str, tuple[int, ...]]
"""A line that is a frame: (line number, text, parts of signatures in it)."""

_RELATIONS = {
    Verdict.BAD: Relation.CONFIRMED,
    Verdict.FINE: Relation.NEW,
    Verdict.UNKNOWN: Relation.UNKNOWN,
}


class Examination:
    """Searches any number of logs for known issues; its memory does not grow with their length."""

    def __init__(self, issues: Iterable[KnownIssue]) -> None:
        self.index = Index(issues)
        self.complete: set[tuple[int, int]] = set()
        """(issue, signature) pairs with all parts found in one log."""
        self._of_part: dict[int, Tally] = {}
        self._of_issue: dict[int, Tally] = {}
        self._facts = Facts()
        self._groups = ErrorLines()
        self._writers = Writers()
        self._logs: list[LogSummary] = []
        self.collectives = Collectives()

    def log(self, name: str) -> LogExamination:
        summary = LogSummary(name)
        if len(self._logs) < MOST_LOGS:
            self._logs.append(summary)
        return LogExamination(summary, self)

    def count(self, seen: Sighting, parts: Sequence[int], told: int | None) -> None:
        """Count lines with these ``parts`` of signatures. ``told`` is the number of the lines' error pattern,
        or None."""
        of_issue: dict[int, Sighting] = {}
        for number in parts:
            part = self.index.parts[number]
            counted = seen if part.counts else seen.once
            self._of_part.setdefault(number, Tally(seen.first)).add(counted)
            of_issue[part.issue] = max(counted, of_issue.get(part.issue, counted), key=attrgetter("lines"))
        for issue, counted in of_issue.items():
            self._of_issue.setdefault(issue, Tally(seen.first)).add(counted)
        if told is not None:
            self._groups.add(seen, told, parts)

    def is_flood(self, pattern: int) -> bool:
        """Whether this pattern has so many kinds of lines that no more are kept."""
        return self._groups.is_full(pattern)

    def lose_count(self, part: int) -> None:
        """Record that further lines with this part are not counted."""
        self._of_part[part].lose_count()
        self._of_issue[self.index.parts[part].issue].lose_count()

    def learn(self, fact: str, value: str, place: Place) -> None:
        self._facts.add(fact, value, place.where)

    def sighting(self, log: str, hit: Hit) -> Sighting:
        match = hit.matches[0][1]
        if match.string is hit.text:
            text, start, end, kind = hit.text, match.start(), match.end(), hit.kind
        else:
            text, start, end = spanned(match)
            kind = bare(text.encode())
        first = last = Place(log, hit.number, text, start, end, *self._writers.writer(text, kind))
        hosts, ranks = {first.host} - {""}, {first.rank} - {""}
        if hit.again:
            text = hit.again[-1].decode("utf-8", "replace")
            last = Place(log, hit.numbers[-1], text, start, end, *self._writers.writer(text, kind))
            more = self._writers.writers(hit.again, kind)
            hosts, ranks = hosts | more[0], ranks | more[1]
        return Sighting(kind, 1 + len(hit.again), first, last, hosts, ranks)

    def line(self, log: str, number: int, text: str) -> Sighting:
        """Examine a single line."""
        kind = bare(text.encode())
        place = Place(log, number, text, 0, len(text), *self._writers.writer(text, kind))
        return Sighting(kind, 1, place, place, (), ()).once

    def conclude(
        self,
        logs: Sequence[LogRead],
        known: Sequence[Fact] = (),
        interrupted: bool = False,
        dumps: Iterable[Dump] = (),
    ) -> Diagnosis:
        """The diagnosis. ``known`` has facts of the node from other sources, which override facts in the
        logs."""
        names = {fact.name for fact in known}
        facts = NamedFacts((*known, *(fact for fact in self._facts.all() if fact.name not in names)))
        order = {log.name: number for number, log in enumerate(logs)}
        last_day = self._last_day()
        recognised: list[Recognised] = []
        explained: set[int] = set()
        for number, issue in enumerate(self.index.issues):
            signatures = {
                issue.signatures[signature]: numbers
                for signature, numbers in self.index.signatures.get(number, {}).items()
                if (number, signature) in self.complete
            }
            if may_concern(issue, facts) and (one := self._recognise(number, signatures, facts, last_day)):
                recognised.append(one)
                if not issue.fallback:
                    explained.update(part for numbers in signatures.values() for part in numbers)
        recognised = list(_without_needless_fallbacks(recognised))
        recognised.sort(key=lambda one: one.rank(order.get(one.lines.first.log, 0)))
        recognised = [
            replace(known_issue, lookalikes=tuple(_lookalikes(known_issue, recognised)))
            for known_issue in recognised
        ]
        unknown = dict(self._groups.unexplained(explained))
        ids = {number: issue.id for number, issue in enumerate(self.index.issues)}
        there = {known_issue.issue.id for known_issue in recognised}
        return Diagnosis(
            tuple(logs),
            facts,
            tuple(recognised),
            tuple(unknown.values()),
            self._groups.beyond,
            interrupted,
            tuple(compare(self._logs, {n: id_ for n, id_ in ids.items() if id_ in there}, unknown.keys())),
            (*ranks_at_fault(self.collectives), *differences(dumps)),
        )

    def _last_day(self) -> date | None:
        """The last date of a counted line."""
        last = (day(tally.last.time) for tally in self._of_issue.values())
        return max(filter(None, last), default=None)

    def _recognise(
        self,
        number: int,
        signatures: dict[Signature, tuple[int, ...]],
        facts: Sequence[Fact],
        last_day: date | None,
    ) -> Recognised | None:
        issue = self.index.issues[number]
        verdict, reason = issue.judge(facts)
        told = any(fact.name == issue.component and fact.value for fact in facts)
        today = None if told else last_day
        outdated = issue.cured_before(today) if today else ""
        applying = [signature for signature in signatures if signature.applies(facts) is Verdict.BAD]
        possible = [signature for signature in signatures if signature.applies(facts) is Verdict.UNKNOWN]
        if applying:
            worth = max(signature.confidence for signature in applying)
            steps = {Verdict.BAD: 1, Verdict.FINE: -Confidence.HIGH}.get(verdict, 0)
            if issue.has_cure and not told:
                worth = min(worth, Confidence.MEDIUM)
            if outdated:
                steps, reason = -1, f"{reason}, and {outdated}; the log is of {today:%Y}"
        elif possible:
            worth, steps = Confidence.LOW, 0
            needs = dict.fromkeys(str(need) for signature in possible for need in signature.needs)
            reason += f", and this issue occurs only with {', '.join(needs)}"
        else:
            return None
        parts = dict.fromkeys(part for numbers in signatures.values() for part in numbers)
        return Recognised(
            issue,
            worth,
            Confidence(min(max(worth + steps, Confidence.LOW), Confidence.HIGH)),
            _RELATIONS[verdict],
            reason,
            issue.remedies(facts),
            self._of_issue[number].occurrences(),
            tuple(self._of_part[part].occurrences() for part in parts),
        )


def _without_needless_fallbacks(recognised: Sequence[Recognised]) -> Iterator[Recognised]:
    """The issues, except fallbacks that share a component or a first line with a more specific issue."""
    definite = [known_issue for known_issue in recognised if not known_issue.issue.fallback]
    components = {
        name for known_issue in definite for name in (known_issue.issue.component, *known_issue.issue.also)
    }
    places = {lines.first.where for known_issue in definite for lines in known_issue.signatures}
    for known_issue in recognised:
        explained = not components.isdisjoint((known_issue.issue.component, *known_issue.issue.also)) or any(
            lines.first.where in places for lines in known_issue.signatures
        )
        if not (known_issue.issue.fallback and explained):
            yield known_issue


def _lookalikes(one: Recognised, recognised: Iterable[Recognised]) -> Iterator[Lookalike]:
    """Other recognised issues that cause the same lines; either issue may name the other."""
    named = {lookalike.id: lookalike for lookalike in one.issue.resembles}
    for other in recognised:
        if lookalike := named.get(other.issue.id):
            yield lookalike
        for lookalike in other.issue.resembles:
            if lookalike.id == one.issue.id:
                yield Lookalike(other.issue.id, lookalike.decide)


class LogExamination:
    """Examination of one log, which must contain all parts of a signature."""

    def __init__(self, summary: LogSummary, examination: Examination) -> None:
        self._summary = summary
        self._examination = examination
        self._index = examination.index
        self._scanner = Scanner(self._index.patterns)
        self._collectives = examination.collectives.log(summary.name)
        self._seen: Counter[int] = Counter()
        self._stacks: Stacks[StackLine] = Stacks()
        self._framed: Counter[int] = Counter()
        """Signature part → number of stacks in which it was found."""

    @property
    def lines(self) -> int:
        return self._scanner.lines

    def feed(self, block: bytes) -> None:
        self._collectives.feed(block)
        self._add(self._scanner.feed(block))

    def flush(self) -> None:
        """Examine the lines that are held back until following lines arrive."""
        self._collectives.end()
        self._add(self._scanner.flush(), ended=True)

    def _add(self, hits: Iterable[Hit], *, ended: bool = False) -> None:
        frames: list[tuple[int, bytes | str, tuple[int, ...]]] = []
        for hit in hits:
            numbers = tuple(number for number, _ in hit.matches)
            of_stack = tuple(filter(self._index.is_of_stack, numbers))
            if awake := tuple(n for n in of_stack if self._framed[n] or self._seen[n] < ENOUGH):
                frames.append((hit.number, hit.text, awake))
                frames += [(n, text, awake) for n, text in zip(hit.numbers, hit.again, strict=True)]
            if of_stack == numbers:
                continue
            seen = self._examination.sighting(self._summary.name, hit)
            self._summary.saw(seen.hosts, seen.ranks)
            parts = [number for number in numbers if number not in of_stack and self._is_news(number)]
            told = [number for number in numbers if self._index.is_error_line(number)]
            self._examination.count(seen, parts, told[0] if told else None)
            if told:
                self._summary.add(seen.kind, seen.first)
                if self._examination.is_flood(told[0]):
                    self._scanner.rest(told[0])
            for number, match in hit.matches:
                if fact := self._index.fact(number):
                    self._examination.learn(fact, match[1], seen.first)
            for number in parts:
                self._count(number, seen.lines)
        self._add_frames(sorted(frames, key=itemgetter(0)), ended)

    def _add_frames(self, frames: Iterable[tuple[int, bytes | str, tuple[int, ...]]], ended: bool) -> None:
        """Add lines that may be frames, in order, and examine the stacks that they complete."""
        for at, line, numbers in frames:
            text = line if isinstance(line, str) else line.decode("utf-8", "replace")
            for stack in self._stacks.add(at, text, (at, text, numbers)):
                self._look_at(stack)
            for number in numbers:
                self._seen[number] += 1
                if self._seen[number] == ENOUGH and not self._framed[number]:
                    self._scanner.rest(number)  # in lines of a debug log, not in stacks
        for stack in self._stacks.end() if ended else ():
            self._look_at(stack)

    def _look_at(self, stack: Stack[StackLine]) -> None:
        numbers = {number for (_, _, some), _ in stack.frames for number in some}
        self._framed.update(numbers)
        signatures = {self._index.parts[n].numbers: self._index.parts[n] for n in sorted(numbers)}
        for parts, one in signatures.items():
            for number, (at, text, _) in zip(parts, stack.lines(one.stack), strict=False):
                seen = self._examination.line(self._summary.name, at, text)
                self._summary.saw(seen.hosts, seen.ranks)
                self._examination.count(seen, [number], None)
                self._examination.complete.add((one.issue, one.signature))
                self._summary.issues.add(one.issue)

    def _is_news(self, number: int) -> bool:
        """Whether a line with this part must be examined: the part's first line, and later ones if they are
        counted."""
        return self._index.is_part(number) and (self._index.parts[number].counts or not self._seen[number])

    def _most(self, part: Part, complete: bool) -> float:
        """Number of lines after which the search for a part pauses: few for a fallback, whose part is in most
        errors."""
        if self._index.issues[part.issue].fallback:
            return ENOUGH
        return inf if complete else MANY

    def _count(self, number: int, lines: int) -> None:
        part = self._index.parts[number]
        begins = not self._seen[number]
        self._seen[number] += lines
        complete = all(self._seen[part_number] for part_number in part.numbers)
        if complete and begins:
            self._examination.complete.add((part.issue, part.signature))
            self._summary.issues.add(part.issue)
            self._scanner.wake(
                [part_number for part_number in part.numbers if self._index.parts[part_number].counts]
            )
        if not part.counts and begins:
            self._scanner.rest(number)
        elif part.counts and self._seen[number] >= self._most(part, complete) > self._seen[number] - lines:
            self._scanner.rest(number)
            self._examination.lose_count(number)
