"""Which known issues logs show: what was found where, what it means with the versions that are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuipc_doctor.diagnose import facts, origin, telling
from gpuipc_doctor.diagnose.evidence import Evidence, Place, Tally
from gpuipc_doctor.diagnose.literals import SHORTEST, fixed_text
from gpuipc_doctor.diagnose.scanner import Hit, Pattern, Patterns, Scanner
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature
from gpuipc_doctor.knownissues.versions import Verdict
from gpuipc_doctor.model import Fact, Relation

_RELATIONS = {
    Verdict.BAD: Relation.CONFIRMED,
    Verdict.FINE: Relation.NEW,
    Verdict.UNKNOWN: Relation.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known issue whose signature is in the logs.

    ``confidence`` is the signature's, one step up where the version is known to be bad, one step down
    where it is known to be fine; LOW is a hint, no more.
    """

    issue: KnownIssue
    confidence: Confidence
    relation: Relation
    reason: str
    remedy: str
    lines: Evidence
    """All lines of all signatures."""
    signatures: tuple[Evidence, ...]
    """The lines of each expression, in the order of their appearance."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """What was read of one log. ``trouble`` says why there is no more; ``notes`` what one should know."""

    name: str
    lines: int
    bytes: int
    trouble: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the logs say, surest first."""

    logs: tuple[LogRead, ...]
    facts: tuple[Fact, ...]
    recognised: tuple[Recognised, ...]
    unknown: tuple[Evidence, ...]
    """Lines that tell of an error that nothing recognised explains; most telling kind first."""
    unknown_beyond: int = 0
    """Such lines of still other kinds, of which only the number is known."""
    interrupted: bool = False

    @property
    def found(self) -> tuple[Recognised, ...]:
        return tuple(one for one in self.recognised if one.confidence > Confidence.LOW)

    @property
    def hints(self) -> tuple[Recognised, ...]:
        return tuple(one for one in self.recognised if one.confidence is Confidence.LOW)


@dataclass(frozen=True, slots=True)
class _Part:
    """One expression of a signature."""

    issue: int
    signature: int


class Examination:
    """Looks for known issues in any number of logs; its memory does not grow with their length."""

    def __init__(self, issues: Iterable[KnownIssue]) -> None:
        self._issues = [issue for issue in issues if not issue.withdrawn]
        self.skipped: list[str] = []
        """Signatures that are not looked for, and why."""
        self._parts: list[_Part] = []
        patterns: list[Pattern] = []
        for part, text, main in self._expressions():
            if fixed_text(text):
                self._parts.append(part)
                patterns.append(Pattern(re.compile(text), wrapped=main, once=not main))
            else:
                id_ = self._issues[part.issue].id
                self.skipped.append(f"{id_}: {text!r} has no fixed text of {SHORTEST} characters")
        self._fact_patterns = facts.patterns(self._facts_asked_for())
        self._first_fact = len(patterns)
        patterns += [Pattern(regex, wrapped=True) for _, regex in self._fact_patterns]
        self._first_telling = len(patterns)
        patterns += [Pattern(re.compile(text)) for text in telling.PATTERNS]
        self._patterns = Patterns(patterns)

        self._seen: dict[str, set[int]] = {}
        """Log → numbers of the parts that were found in it."""
        self._tallies: dict[int, Tally] = {}
        self._of_issue: dict[int, Tally] = {}
        self._facts = facts.Facts()
        self._groups = telling.Groups()
        self._writers = origin.Writers()

    @property
    def engine(self) -> str:
        """What searches: hyperscan or re."""
        return self._patterns.finder.name if self._patterns.finder else "re"

    def scanner(self) -> Scanner:
        """For one log; what it finds goes to `add`."""
        return Scanner(self._patterns)

    def add(self, log: str, hits: Iterable[Hit]) -> None:
        """Count what was found in a log."""
        for hit in hits:
            place = self._place(log, hit)
            known: list[int] = []
            told = 0
            for number, match in hit.matches:
                if number < self._first_fact:
                    known.append(number)
                    self._tally(self._tallies, number, place)
                elif number < self._first_telling:
                    name = self._fact_patterns[number - self._first_fact][0]
                    self._facts.add(name, match[1], place.where)
                elif not told:
                    told = number
            if told:
                self._groups.add(place, told, known)
            if known:
                self._seen.setdefault(log, set()).update(known)
                for issue in {self._parts[number].issue for number in known}:
                    self._tally(self._of_issue, issue, place)

    def _place(self, log: str, hit: Hit) -> Place:
        text, start, end = _span(hit, hit.matches[0][1])
        kind = origin.kind(text)
        return Place(log, hit.number, text, start, end, kind, *self._writers.writer(text, kind))

    @staticmethod
    def _tally(tallies: dict[int, Tally], key: int, place: Place) -> None:
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = Tally(place)
        tally.add(place)

    def conclude(
        self, logs: Sequence[LogRead], known: Sequence[Fact] = (), interrupted: bool = False
    ) -> Diagnosis:
        """``known``: facts of the node that are known otherwise; they win over what logs tell."""
        names = {fact.name for fact in known}
        all_facts = (*known, *(fact for fact in self._facts.all() if fact.name not in names))
        recognised: list[Recognised] = []
        explained: set[int] = set()
        for number, issue in enumerate(self._issues):
            if complete := self._complete(number):
                one = self._recognise(number, issue, complete, all_facts)
                if one:
                    recognised.append(one)
                    explained.update(part for parts in complete.values() for part in parts)
        recognised.sort(key=lambda one: (-one.confidence, one.relation is Relation.NEW, -one.lines.count))
        return Diagnosis(
            tuple(logs),
            all_facts,
            tuple(recognised),
            tuple(self._groups.unexplained(explained)),
            self._groups.beyond,
            interrupted,
        )

    def _expressions(self) -> Iterator[tuple[_Part, str, bool]]:
        """Each part, its expression, and whether its lines are counted.

        Of several that make up a signature it is enough that most are there at all; they may be in every
        other line (``MPI_``). The one with the most fixed text is the one to count.
        """
        for number, issue in enumerate(self._issues):
            for which, signature in enumerate(issue.signatures):
                lengths = [min(map(len, fixed_text(text)), default=0) for text in signature.patterns]
                for text, length in zip(signature.patterns, lengths, strict=True):
                    yield _Part(number, which), text, length == max(lengths)

    def _facts_asked_for(self) -> list[str]:
        names = (
            need.fact
            for issue in self._issues
            for needs in (issue.needs, *(signature.needs for signature in issue.signatures))
            for need in needs
        )
        return list(dict.fromkeys(names))

    def _complete(self, number: int) -> dict[int, list[int]]:
        """An issue's signatures of which one log has every expression, with the numbers of their parts."""
        parts: dict[int, list[int]] = {}
        for n, part in enumerate(self._parts):
            if part.issue == number:
                parts.setdefault(part.signature, []).append(n)
        return {
            signature: numbers
            for signature, numbers in parts.items()
            if len(numbers) == len(self._issues[number].signatures[signature].match)
            and any(seen.issuperset(numbers) for seen in self._seen.values())
        }

    def _recognise(
        self, number: int, issue: KnownIssue, complete: dict[int, list[int]], known: tuple[Fact, ...]
    ) -> Recognised | None:
        worth = [_worth(issue.signatures[signature], known) for signature in complete]
        confidence = max((one for one in worth if one), default=None)
        if confidence is None:
            return None
        verdict, reason = issue.judge(known)
        steps = {Verdict.BAD: 1, Verdict.FINE: -1}.get(verdict, 0)
        tallies = [self._tallies[n] for n in dict.fromkeys(n for ns in complete.values() for n in ns)]
        return Recognised(
            issue,
            Confidence(min(max(confidence + steps, Confidence.LOW), Confidence.HIGH)),
            _RELATIONS[verdict],
            reason,
            issue.remedy(known),
            self._of_issue[number].evidence(),
            tuple(tally.evidence() for tally in tallies),
        )


def _worth(signature: Signature, known: tuple[Fact, ...]) -> Confidence | None:
    """What a complete signature says; None where something that it needs is known to be otherwise."""
    return {
        Verdict.BAD: signature.confidence,
        Verdict.UNKNOWN: Confidence.LOW,
        Verdict.FINE: None,
    }[signature.applies(known)]


def _span(hit: Hit, match: re.Match[str]) -> tuple[str, int, int]:
    """The text that a match is in, and from where to where: the hit's own line unless it was wrapped."""
    if match.string is hit.text:
        return hit.text, match.start(), match.end()
    begin = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    text = match.string[begin : end if end >= 0 else None]
    return text, match.start() - begin, match.end() - begin
