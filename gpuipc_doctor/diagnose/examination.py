"""Count matches in logs, and conclude which known issues they show, given the versions that are known."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from operator import attrgetter

from gpuipc_doctor import knownissues
from gpuipc_doctor.diagnose import error_lines, log_facts
from gpuipc_doctor.diagnose.collectives import Collectives, ranks_at_fault
from gpuipc_doctor.diagnose.debug_dumps import late_by_stacks
from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead, Recognised
from gpuipc_doctor.diagnose.error_lines import ErrorLines
from gpuipc_doctor.diagnose.flight_recorder import Dump, differences
from gpuipc_doctor.diagnose.log_facts import Facts
from gpuipc_doctor.diagnose.occurrences import Place, Sighting, Tally
from gpuipc_doctor.diagnose.origin import Writers, day
from gpuipc_doctor.diagnose.rank_files import LogSummary, compare
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Message, affected, cures, relation, relevance
from gpuipc_doctor.knownissues.conditions import NamedFacts
from gpuipc_doctor.knownissues.entry import Lookalike
from gpuipc_doctor.knownissues.literals import Needs, bare
from gpuipc_doctor.knownissues.patterns import Index, Pattern
from gpuipc_doctor.knownissues.scanner import Hit, Reading, spanned
from gpuipc_doctor.model import Fact
from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Verdict

MOST_LOGS = 1 << 14
"""Maximum logs compared with each other."""

Entry = KnownIssue | Message


class Examination:
    """Searches any number of logs for known issues; its memory does not grow with their length."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entry for entry in entries if isinstance(entry, Message) or not entry.withdrawn)
        flat = [(n, signature) for n, entry in enumerate(self.entries) for signature in entry.signatures]
        self.signatures = [signature for _, signature in flat]
        self.entry_of = [number for number, _ in flat]
        """For each signature, the number of its entry."""
        facts = log_facts.patterns(_facts_asked_for(self.entries))
        self._facts_read = [name for name, _ in facts]
        errors = error_lines.patterns()
        self.index = Index(
            self.signatures,
            more=[*(Pattern(text, wrapped=True) for _, text in facts), *map(Pattern, errors)],
            known_texts=_known_texts(),
        )
        self._first_error = self.index.more.start + len(facts)
        self._begin()

    def anew(self) -> Examination:
        """An examination of other logs for the same entries."""
        other = copy.copy(self)
        other._begin()
        return other

    def _begin(self) -> None:
        self.complete: set[int] = set()
        """Signatures with all parts found in one log."""
        self._of_part: dict[int, Tally] = {}
        self._of_issue: dict[int, Tally] = {}
        self._facts = Facts()
        self._groups = ErrorLines()
        self._writers = Writers()
        self._logs: list[LogSummary] = []
        self.collectives = Collectives()

    @property
    def skipped(self) -> list[str]:
        """Signatures that cannot be searched, with the reason."""
        return [f"{self.entries[self.entry_of[n]].id}: {why}" for n, why in self.index.skipped.items()]

    def fact(self, number: int) -> str | None:
        """The fact whose value is the pattern's first group."""
        number -= self.index.more.start
        return self._facts_read[number] if 0 <= number < len(self._facts_read) else None

    def is_error_line(self, number: int) -> bool:
        return self._first_error <= number < self.index.more.stop

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
            entry = self.entry_of[part.signature]
            of_issue[entry] = max(counted, of_issue.get(entry, counted), key=attrgetter("lines"))
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
        self._of_issue[self.entry_of[self.index.parts[part].signature]].lose_count()

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
        dumps = tuple(dumps)
        names = {fact.name for fact in known}
        facts = NamedFacts((*known, *(fact for fact in self._facts.all() if fact.name not in names)))
        order = {log.name: number for number, log in enumerate(logs)}
        last_day = self._last_day()
        recognised: list[Recognised] = []
        explained: set[int] = set()
        shown: dict[int, list[int]] = {}
        for signature in sorted(self.complete):
            shown.setdefault(self.entry_of[signature], []).append(signature)
        for number, signatures in shown.items():
            entry = self.entries[number]
            if relevance.may_concern(entry, facts) and (
                one := self._recognise(number, signatures, facts, last_day)
            ):
                recognised.append(one)
                explained.update(part for n in signatures for part in self.index.signatures[n])
        recognised.sort(key=lambda one: one.rank(order.get(one.lines.first.log, 0)))
        recognised = [
            replace(known_issue, lookalikes=tuple(_lookalikes(known_issue, recognised)))
            for known_issue in recognised
        ]
        unknown = dict(self._groups.unexplained(explained))
        ids = {number: entry.id for number, entry in enumerate(self.entries)}
        there = {known_issue.issue.id for known_issue in recognised}
        return Diagnosis(
            tuple(logs),
            facts,
            tuple(recognised),
            tuple(unknown.values()),
            self._groups.beyond,
            interrupted,
            tuple(compare(self._logs, {n: id_ for n, id_ in ids.items() if id_ in there}, unknown.keys())),
            (*ranks_at_fault(self.collectives), *differences(dumps), *late_by_stacks(dumps)),
        )

    def _last_day(self) -> date | None:
        """The last date of a counted line."""
        last = (day(tally.last.time) for tally in self._of_issue.values())
        return max(filter(None, last), default=None)

    def _recognise(
        self, number: int, shown: Sequence[int], facts: Sequence[Fact], last_day: date | None
    ) -> Recognised | None:
        entry = self.entries[number]
        signatures = [self.signatures[n] for n in shown]
        applying = [signature for signature in signatures if signature.applies(facts) is Verdict.BAD]
        possible = [signature for signature in signatures if signature.applies(facts) is Verdict.UNKNOWN]
        parts = dict.fromkeys(part for n in shown for part in self.index.signatures[n])
        lines = tuple(self._of_part[part].occurrences() for part in parts)
        total = self._of_issue[number].occurrences()
        if isinstance(entry, Message):
            sure = max(signature.confidence for signature in signatures)
            return Recognised(entry, sure, sure, Relation.UNKNOWN, "", entry.look, total, lines)
        verdict, reason = affected.judge(entry, facts)
        told = any(fact.name == entry.component and fact.value for fact in facts)
        today = None if told else last_day
        outdated = affected.fixed_long_before(entry, today) if today else ""
        if applying:
            worth = max(signature.confidence for signature in applying)
            steps = {Verdict.BAD: 1, Verdict.FINE: -Confidence.HIGH}.get(verdict, 0)
            if entry.has_cure and not told:
                worth = min(worth, Confidence.MEDIUM)
            if outdated:
                steps, reason = -1, f"{reason}, and {outdated}; the log is of {today:%Y}"
        elif possible:
            worth, steps = Confidence.LOW, 0
            needs = dict.fromkeys(str(need) for signature in possible for need in signature.needs)
            reason += f", and this issue occurs only with {', '.join(needs)}"
        else:
            return None
        sure = Confidence(min(max(worth + steps, Confidence.LOW), Confidence.HIGH))
        related = relation(verdict, True) or Relation.UNKNOWN
        return Recognised(entry, worth, sure, related, reason, cures.remedies(entry, facts), total, lines)


def _facts_asked_for(entries: Iterable[Entry]) -> list[str]:
    needs = (
        need.fact
        for entry in entries
        for some in (entry.needs, *(signature.needs for signature in entry.signatures))
        for need in some
    )
    return list(dict.fromkeys(needs))


@cache
def _known_texts() -> Mapping[str, Mapping[bytes, Needs]]:
    facts = log_facts.patterns(_facts_asked_for(knownissues.load()))
    return knownissues.known_texts([*(text for _, text in facts), *error_lines.patterns()])


def _lookalikes(one: Recognised, recognised: Iterable[Recognised]) -> Iterator[Lookalike]:
    """Other recognised issues that cause the same lines; either issue may name the other."""
    named = {lookalike.id: lookalike for lookalike in _resembling(one)}
    for other in recognised:
        if lookalike := named.get(other.issue.id):
            yield lookalike
        for lookalike in _resembling(other):
            if lookalike.id == one.issue.id:
                yield Lookalike(other.issue.id, lookalike.decide)


def _resembling(one: Recognised) -> tuple[Lookalike, ...]:
    return () if isinstance(one.issue, Message) else one.issue.resembles


class LogExamination(Reading):
    """Examination of one log, which must contain all parts of a signature."""

    def __init__(self, summary: LogSummary, examination: Examination) -> None:
        super().__init__(examination.index)
        self._summary = summary
        self._examination = examination
        self._collectives = examination.collectives.log(summary.name)

    def feed(self, block: bytes) -> None:
        self._collectives.feed(block)
        super().feed(block)

    def flush(self) -> None:
        self._collectives.end()
        super().flush()

    def saw(self, hit: Hit, numbers: Sequence[int], parts: Sequence[int]) -> None:
        examination = self._examination
        seen = examination.sighting(self._summary.name, hit)
        self._summary.saw(seen.hosts, seen.ranks)
        told = next(filter(examination.is_error_line, numbers), None)
        examination.count(seen, parts, told)
        if told is not None:
            self._summary.add(seen.kind, seen.first)
            if examination.is_flood(told):
                self._scanner.pause(told)
        for number, match in hit.matches:
            if fact := examination.fact(number):
                examination.learn(fact, match[1], seen.first)

    def saw_frame(self, at: int, text: str, part: int) -> None:
        seen = self._examination.line(self._summary.name, at, text)
        self._summary.saw(seen.hosts, seen.ranks)
        self._examination.count(seen, [part], None)

    def completed(self, signature: int) -> None:
        self._examination.complete.add(signature)
        self._summary.issues.add(self._examination.entry_of[signature])

    def lost_count(self, part: int) -> None:
        self._examination.lose_count(part)
