"""Questions to the database: by words, component, check, and by the versions before and after an upgrade."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.knownissues import affected
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.message import Message
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict

Entry = KnownIssue | Message

_TIMEOUT = re.compile(r"\btim(?:e|ed|es|ing)[ _-]?outs?\b")

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where a word in a name begins: cudaMalloc also has "malloc"."""


class Change(enum.Enum):
    """What an upgrade does to an issue."""

    NEW = "new"
    STAYS = "stays"
    ENDS = "ends"


@dataclass(frozen=True, slots=True)
class Question:
    """What to look for; what is empty does not matter."""

    words: tuple[str, ...] = ()
    """All of them, in any order, in the id, title, symptom, component or samples of logs. Case, hyphens and a
    plural are not compared; "timed out" is "timeout"."""
    component: str = ""
    check: str = ""
    version: str = ""
    """Of ``component``: only issues that this version has or may have."""
    before: str = ""
    """The version that ``version`` replaces."""


@dataclass(frozen=True, slots=True)
class Answer:
    entry: Entry
    verdict: Verdict | None = None
    """Of the version asked for: BAD if it has the issue; None if no version was asked for."""
    why: str = ""
    change: Change | None = None


def ask(question: Question, entries: Iterable[Entry]) -> Iterator[Answer]:
    """The entries that the question is about, in their order. No version has a withdrawn issue."""
    for entry in entries:
        if not _is_about(entry, question):
            continue
        if not question.version:
            yield Answer(entry)
        elif isinstance(entry, KnownIssue) and (answer := _of_version(entry, question)):
            yield answer


def _is_about(entry: Entry, question: Question) -> bool:
    checks: tuple[str, ...] = ()
    if isinstance(entry, KnownIssue):
        if entry.withdrawn and question.version:
            return False
        checks = entry.checks
    concerned = {entry.component, *(need.fact for need in entry.needs)}
    concerned |= set() if question.version else {*entry.also}
    return (
        not missing(entry, question.words)
        and question.component in {"", *concerned}
        and question.check in {"", *checks}
    )


def missing(entry: Entry, words: Iterable[str]) -> list[str]:
    """The words that no word of an entry begins with."""
    text = _text(entry)
    begins = {word: rf"(?<![a-z]){re.escape(_folded(word).rstrip('s'))}" for word in words}
    return [word for word in begins if not re.search(begins[word], text)]


def nearest(words: Collection[str], entries: Iterable[Entry]) -> list[Entry]:
    """The entries that have most of these words, if none has all; first those with the words in the title."""
    by_lack = {entry.id: (len(missing(entry, words)), entry) for entry in entries}
    least = min((lack for lack, _ in by_lack.values()), default=0)
    found = [entry for lack, entry in by_lack.values() if lack == least < len(words)]
    titled = {entry.id: _folded(f"{entry.id} {entry.title}") for entry in found}
    return sorted(found, key=lambda entry: -sum(_folded(word) in titled[entry.id] for word in words))


def _text(entry: Entry) -> str:
    symptom = entry.symptom if isinstance(entry, KnownIssue) else ""
    samples = " ".join(signature.sample for signature in entry.signatures)
    text = " ".join((entry.id, entry.title, symptom, entry.component, *entry.also, samples))
    return _folded(f"{text} {_HUMP.sub(' ', text)}")


def _folded(text: str) -> str:
    return _TIMEOUT.sub("timeout", text.casefold()).replace("-", " ").replace("_", " ")


def _of_version(issue: KnownIssue, question: Question) -> Answer | None:
    after, why = affected.judge(issue, [Fact(question.component, question.version, "")])
    if not question.before:
        return None if after is Verdict.FINE else Answer(issue, after, why)
    before, _ = affected.judge(issue, [Fact(question.component, question.before, "")])
    if after is before is Verdict.FINE:
        return None
    change = Change.NEW if before is Verdict.FINE else Change.ENDS if after is Verdict.FINE else Change.STAYS
    return Answer(issue, after, why, change)
