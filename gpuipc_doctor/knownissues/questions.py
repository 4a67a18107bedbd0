"""Questions to the database: by words, component, check, and by the versions before and after an upgrade."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuipc_doctor.knownissues import affected
from gpuipc_doctor.knownissues.entry import KnownIssue
from gpuipc_doctor.knownissues.message import Message
from gpuipc_doctor.model import Fact
from gpuipc_doctor.versions import Verdict

Entry = KnownIssue | Message


class Change(enum.Enum):
    """What an upgrade does to an issue."""

    NEW = "new"
    STAYS = "stays"
    ENDS = "ends"


@dataclass(frozen=True, slots=True)
class Question:
    """What to look for; what is empty does not matter."""

    words: tuple[str, ...] = ()
    """All of them, in the id, the title or the symptom; upper and lower case are equal."""
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
    if isinstance(entry, KnownIssue):
        if entry.withdrawn and question.version:
            return False
        text = f"{entry.id} {entry.title} {entry.symptom}"
        checks, needed = entry.checks, {need.fact for need in entry.needs}
    else:
        text, checks, needed = f"{entry.id} {entry.says}", (), set()
    concerned = {entry.component, *needed} | (set() if question.version else {*entry.also})
    return (
        all(word.casefold() in text.casefold() for word in question.words)
        and question.component in {"", *concerned}
        and question.check in {"", *checks}
    )


def _of_version(issue: KnownIssue, question: Question) -> Answer | None:
    after, why = affected.judge(issue, [Fact(question.component, question.version, "")])
    if not question.before:
        return None if after is Verdict.FINE else Answer(issue, after, why)
    before, _ = affected.judge(issue, [Fact(question.component, question.before, "")])
    if after is before is Verdict.FINE:
        return None
    change = Change.NEW if before is Verdict.FINE else Change.ENDS if after is Verdict.FINE else Change.STAYS
    return Answer(issue, after, why, change)
