"""Count what is found in logs, and conclude which known issues that shows, with the versions there are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gpuipc_doctor.diagnose.diagnosis import Diagnosis, LogRead, Recognised
from gpuipc_doctor.diagnose.evidence import Place, Tally
from gpuipc_doctor.diagnose.facts import Facts
from gpuipc_doctor.diagnose.index import Index
from gpuipc_doctor.diagnose.origin import Writers, kind
from gpuipc_doctor.diagnose.scanner import Hit, Scanner
from gpuipc_doctor.diagnose.telling import Groups
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature
from gpuipc_doctor.knownissues.versions import Verdict
from gpuipc_doctor.model import Fact, Relation

MANY = 1000
"""Lines of a part of a signature, without the other parts, after which it rests until those are found.

The names of libfabric's functions are in stacks, and in every line of its debug log.
"""

_RELATIONS = {
    Verdict.BAD: Relation.CONFIRMED,
    Verdict.FINE: Relation.NEW,
    Verdict.UNKNOWN: Relation.UNKNOWN,
}


class Examination:
    """Looks for known issues in any number of logs; its memory does not grow with their length."""

    def __init__(self, issues: Iterable[KnownIssue]) -> None:
        self.index = Index(issues)
        self.complete: set[tuple[int, int]] = set()
        """(issue, signature) of which one log has every part."""
        self._of_part: dict[int, Tally] = {}
        self._of_issue: dict[int, Tally] = {}
        self._facts = Facts()
        self._groups = Groups()
        self._writers = Writers()

    def log(self, name: str) -> LogExamination:
        return LogExamination(name, self)

    def count(self, place: Place, parts: Sequence[int], told: int | None) -> None:
        """Count a line with parts of signatures, or with the telling words number ``told``."""
        for part in parts:
            self._tally(self._of_part, part, place)
        for issue in {self.index.parts[part].issue for part in parts}:
            self._tally(self._of_issue, issue, place)
        if told is not None:
            self._groups.add(place, told, parts)

    def lose_count(self, part: int) -> None:
        """There may be more lines of a part from here on than are counted."""
        self._of_part[part].lose_count()
        self._of_issue[self.index.parts[part].issue].lose_count()

    def learn(self, fact: str, value: str, place: Place) -> None:
        self._facts.add(fact, value, place.where)

    def place(self, log: str, hit: Hit) -> Place:
        text, start, end = _span(hit, hit.matches[0][1])
        words = kind(text)
        return Place(log, hit.number, text, start, end, words, *self._writers.writer(text, words))

    def conclude(
        self, logs: Sequence[LogRead], known: Sequence[Fact] = (), interrupted: bool = False
    ) -> Diagnosis:
        """``known``: facts of the node that are known otherwise; they win over what logs tell."""
        names = {fact.name for fact in known}
        facts = (*known, *(fact for fact in self._facts.all() if fact.name not in names))
        recognised: list[Recognised] = []
        explained: set[int] = set()
        for number, issue in enumerate(self.index.issues):
            signatures = {
                issue.signatures[signature]: numbers
                for signature, numbers in self.index.of_issue(number).items()
                if (number, signature) in self.complete
            }
            if one := self._recognise(number, signatures, facts):
                recognised.append(one)
                explained.update(part for numbers in signatures.values() for part in numbers)
        recognised.sort(key=lambda one: (-one.confidence, one.relation is Relation.NEW, -one.lines.count))
        unknown = tuple(self._groups.unexplained(explained))
        return Diagnosis(tuple(logs), facts, tuple(recognised), unknown, self._groups.beyond, interrupted)

    def _recognise(
        self, number: int, signatures: dict[Signature, tuple[int, ...]], facts: Sequence[Fact]
    ) -> Recognised | None:
        issue = self.index.issues[number]
        verdict, reason = issue.judge(facts)
        applying = [one for one in signatures if one.applies(facts) is Verdict.BAD]
        possible = [one for one in signatures if one.applies(facts) is Verdict.UNKNOWN]
        if applying:
            worth = max(one.confidence for one in applying)
            steps = {Verdict.BAD: 1, Verdict.FINE: -1}.get(verdict, 0)
        elif possible:
            worth, steps = Confidence.LOW, 0
            needs = dict.fromkeys(str(need) for one in possible for need in one.needs)
            reason += f"; the lines count only with {', '.join(needs)}, of which not all is known"
        else:
            return None
        parts = dict.fromkeys(part for numbers in signatures.values() for part in numbers)
        return Recognised(
            issue,
            worth,
            Confidence(min(max(worth + steps, Confidence.LOW), Confidence.HIGH)),
            _RELATIONS[verdict],
            reason,
            issue.remedy(facts),
            self._of_issue[number].evidence(),
            tuple(self._of_part[part].evidence() for part in parts),
        )

    @staticmethod
    def _tally(tallies: dict[int, Tally], key: int, place: Place) -> None:
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = Tally(place)
        tally.add(place)


class LogExamination:
    """The examination of one log: the parts of a signature count together when they are in the same one."""

    def __init__(self, name: str, examination: Examination) -> None:
        self._name = name
        self._examination = examination
        self._index = examination.index
        self._scanner = Scanner(self._index.patterns)
        self._seen: Counter[int] = Counter()

    @property
    def lines(self) -> int:
        return self._scanner.lines

    def feed(self, block: bytes) -> None:
        self._add(self._scanner.feed(block))

    def flush(self) -> None:
        """Look at the lines that wait for what follows them."""
        self._add(self._scanner.flush())

    def _add(self, hits: Iterable[Hit]) -> None:
        for hit in hits:
            place = self._examination.place(self._name, hit)
            parts = [number for number, _ in hit.matches if self._index.is_part(number)]
            told = [number for number, _ in hit.matches if self._index.is_telling(number)]
            self._examination.count(place, parts, told[0] if told else None)
            for number, match in hit.matches:
                if fact := self._index.fact(number):
                    self._examination.learn(fact, match[1], place)
            for number in parts:
                self._count(number)

    def _count(self, number: int) -> None:
        part = self._index.parts[number]
        self._seen[number] += 1
        resting = self._scanner.resting
        complete = all(self._seen[one] for one in part.numbers)
        if complete and self._seen[number] == 1:
            self._examination.complete.add((part.issue, part.signature))
            resting.difference_update(one for one in part.numbers if self._index.parts[one].counts)
        if not part.counts:
            resting.add(number)
        elif not complete and self._seen[number] == MANY:
            resting.add(number)
            self._examination.lose_count(number)


def _span(hit: Hit, match: re.Match[str]) -> tuple[str, int, int]:
    """The text that a match is in, and from where to where: the hit's own line unless it was wrapped."""
    if match.string is hit.text:
        return hit.text, match.start(), match.end()
    begin = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    text = match.string[begin : end if end >= 0 else None]
    return text, match.start() - begin, match.end() - begin
