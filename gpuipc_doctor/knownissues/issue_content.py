"""The content of known issues and messages: one as a page of 80 columns, or all as a Markdown document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date
from itertools import groupby

from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Message, Signature, Suppression, Workaround
from gpuipc_doctor.knownissues.questions import Answer, Change, Entry, Question, missing, nearest
from gpuipc_doctor.knownissues.releases import newer_than_read
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node.inventory import NAMES
from gpuipc_doctor.present.terminal import COLUMNS
from gpuipc_doctor.present.text import counted, sanitise, wrap
from gpuipc_doctor.versions import Verdict

MOST_NEAR = 5
"""Most entries that are named if none has all of the words asked for."""

_WEAK = "These sources are weak: a single third-hand report, or few details."
_NO_WORKAROUND = "use a version that is not affected, and follow the links: no workaround is published"
_STATUS = {
    "open": "not fixed yet",
    "fixed": "fixed in a later version",
    "by-design": "works as its makers intend",
    "closed-unclear": "closed without a stated fix",
    "resolved-by-site": "resolved at the site that reported it",
}


def page(issue: KnownIssue, today: date | None = None, again: str = "") -> str:
    """The issue's page. Text for copying (URLs, variables) stays on one line, however long.

    ``again``: the option that its commands need."""
    parts = [_fill(f"{issue.id}: {issue.title}", "")]
    for heading, lines in _sections(issue, today or date.today(), again):
        parts.append(f"\n{heading}\n" + "\n".join(lines))
    return "\n".join(parts)


def message_page(message: Message) -> str:
    """The message's page, as `page`."""
    signatures = [line for signature in message.signatures for line in _signature(signature)]
    parts = [
        _fill(f"{message.id}: {message.says}", ""),
        "\nReported by\n" + "\n".join(_paragraphs(f"{message.component} ({message.kind})", _also(message))),
        "\nWhat to do\n" + "\n".join(_items(message.look)),
        "\nHow logs show it\n" + "\n".join(signatures),
    ]
    return "\n".join(parts)


def _also(message: Message) -> str:
    return f"also concerns: {', '.join(message.also)}" if message.also else ""


def _sections(issue: KnownIssue, today: date, again: str) -> Iterator[tuple[str, list[str]]]:
    sections: dict[str, Iterable[str]] = {
        "Withdrawn": _paragraphs(issue.withdrawn),
        "Changed by this site": _paragraphs(issue.overrides),
        "Suppressed by this site": _paragraphs(*_suppression(issue.suppression, today)),
        "What happens": _paragraphs(issue.symptom),
        "When": _paragraphs(issue.trigger),
        "Who is affected": _paragraphs(*_affected(issue)),
        "How logs show it": (line for signature in issue.signatures for line in _signature(signature)),
        "How this tool finds it": _paragraphs(*(f"{command}{again}" for command in _detection(issue))),
        "What to do": [line for each in issue.harmless_first for line in _workaround(issue, each)]
        or _items([_NO_WORKAROUND] * (not issue.withdrawn)),
        "Not confirmed by the links": _items(issue.inferred),
        "Notes": _paragraphs(issue.notes),
        "Links": _links(issue),
    }
    for heading, lines in sections.items():
        if shown := list(lines):
            yield heading, shown


def _suppression(suppression: Suppression | None, today: date) -> Iterator[str]:
    if suppression:
        until = "until" if suppression.holds(today) else "expired; it was valid until"
        yield f"{suppression.reason} ({until} {suppression.until}; {suppression.where})"


def _affected(issue: KnownIssue) -> Iterator[str]:
    versions = "in versions that no source names" if issue.bad_versions == "unknown" else issue.bad_versions
    versions = versions.replace("any, as far as is known", "in any version, as far as is known")
    yield f"{issue.component} {versions}; {_STATUS[issue.status]}"
    if good := [version for range_ in issue.affected for version in range_.known_good]:
        yield f"not affected: {', '.join(good)}"
    if issue.needs:
        yield f"only with: {', '.join(map(str, issue.needs))}"
    if issue.harms:
        yield f"skipped: each probe that {' or '.join(issue.harms)}"
    if issue.also:
        yield f"also concerns: {', '.join(issue.also)}"


def _detection(issue: KnownIssue) -> Iterator[str]:
    if issue.checks:
        yield f"gpuipc-doctor check {' '.join(issue.checks)}"
    if issue.signatures:
        yield "gpuipc-doctor diagnose LOG"
    if any(range_.introduced != "unknown" or range_.known_bad for range_ in issue.affected) or (
        issue.needs and not issue.affected
    ):
        yield "gpuipc-doctor check known-versions"


def _signature(one: Signature) -> Iterator[str]:
    """A signature's sample line; its regular expressions are only in the JSON."""
    if one.finding or one.call:
        return
    said = one.sample.splitlines() or [" … ".join(one.match) or f"a stack of {' < '.join(one.stack)}"]
    beside = "".join(f"; counts beside {need}" for need in one.needs)
    sure = "" if one.confidence is Confidence.HIGH else f"; {one.confidence.label} confidence"
    *before, last = said
    for line in before:
        yield _fill(line.strip(), "  | ")
    yield _fill(last.strip(), "  | ")
    if remark := f"{beside}{sure}".removeprefix("; "):
        yield _fill(f"({remark})", "    ")


def _workaround(issue: KnownIssue, one: Workaround) -> Iterator[str]:
    yield _fill(one.do, "  - ")
    if one.when:
        yield _fill(f"for: {issue.component} {one.when}", "    ")
    if one.cost:
        yield _fill(f"cost: {one.cost}", "    ")
    if one.risk:
        yield _fill(f"can cause {one.risk}: {one.risk_source}", "    ")
    if one.conflicts:
        yield _fill(f"causes: {', '.join(one.conflicts)}", "    ")


def _links(issue: KnownIssue) -> Iterator[str]:
    yield from (f"  {reference.url} ({reference.type})" for reference in issue.references)
    if issue.evidence == "weak":
        yield f"  {_WEAK}"


def _paragraphs(*texts: str) -> Iterator[str]:
    return (_fill(text, "  ", hang="    " if len(texts) > 1 else "  ") for text in texts if text)


def _items(texts: Iterable[str]) -> Iterator[str]:
    return (_fill(text, "  - ") for text in texts)


def _fill(text: str, lead: str, hang: str = "") -> str:
    return "\n".join(wrap(text, COLUMNS, lead, hang or None, to_copy=True))


# -- the list ----------------------------------------------------------------------------------------------


def listing(answers: Iterable[Answer], question: Question) -> str:
    """The answers and their number; by what an upgrade changes, if one is asked for."""
    answers = list(answers)
    parts = []
    for change in Change if question.before else (None,):
        group = [answer for answer in answers if answer.change is change]
        if change:
            parts.append(f"{_heading(change, question)}: {len(group) or 'none'}\n")
        parts += [f"{_short(answer)}\n" for answer in group]
    issues = sum(isinstance(answer.entry, KnownIssue) for answer in answers)
    count = counted(issues, "known issue")
    if not question.version:
        count += f", {counted(len(answers) - issues, 'message')}"
    elif perhaps := sum(answer.verdict is Verdict.UNKNOWN for answer in answers):
        count += f"; whether {perhaps} of them affect this version is not known"
    newer = newer_than_read([Fact(question.component, question.version, "")])
    return "\n".join([*parts, count, *(f"{fact.name} {fact.value} is {fact.source}" for fact in newer)])


def near_entries(words: Sequence[str], entries: Collection[Entry]) -> str:
    """What to read or to type if no entry has all of these words, with the other options."""
    near = nearest(words, entries)
    lacks = missing(near[0], words) if near else words
    if not lacks:
        return "There are entries with these words, but not with these options: leave an option out."
    known = {word for entry in entries for word in f"{entry.id} {entry.title}".replace("-", " ").split()}
    meant = "".join(did_you_mean(word, known) for word in lacks)
    says = f"No entry has {' or '.join(map(repr, map(sanitise, lacks)))}{meant}"
    if not near:
        return _fill(f"{says}; without a word, all are listed", "")
    items = (_fill(f"{entry.id}: {entry.title}", "  ", "    ") for entry in near[:MOST_NEAR])
    return "\n".join([_fill(f"{says}; nearest:" if len(words) > 1 else says, ""), *items])


def _heading(change: Change, question: Question) -> str:
    return {
        Change.NEW: f"New with {question.component} {question.version}",
        Change.STAYS: f"With {question.before} and with {question.version}",
        Change.ENDS: f"Only with {question.component} {question.before}",
    }[change]


def _short(answer: Answer) -> str:
    entry = answer.entry
    kind, where = f"message: {entry.kind}", ""
    if isinstance(entry, KnownIssue):
        kind, where = (
            "withdrawn" if entry.withdrawn else entry.kind,
            f"{entry.component} {entry.bad_versions}",
        )
    lines = (entry.title, answer.why or where)
    return "\n".join([f"{entry.id} ({kind})", *(_fill(line, "    ") for line in lines if line)])


# -- the document ------------------------------------------------------------------------------------------

_HEAD = """\
# Known issues and messages

gpuipc-doctor's database: known issues [by symptom](#by-symptom) and by [component](#by-component), and
[messages](#messages), which are texts in logs. `gpuipc-doctor explain ID` shows all of an entry. Made by
`gpuipc-doctor known-issues list --markdown`.

Versions: *unknown* means that no source names them; the issue is reported when its signature is found in a
log or in a check's result, and never because of a version. *Any* means that versions do not matter.

## By symptom
"""

_SEEN = {
    "hardware": "The GPU, its memory, its driver or a link failed",
    "corruption": "Wrong results",
    "crash": "A crash",
    "hang": "A hang",
    "error": "An error",
    "leak": "Memory or handles that are not released",
    "perf": "Something is slow",
    "config": "Wrong configuration",
    "limitation": "Unsupported feature",
    "elsewhere": "A fault outside the GPU",
    "probe-harms": "A node that a probe of gpuipc-doctor would harm",
}


def markdown(issues: Iterable[KnownIssue], messages: Iterable[Message] = ()) -> str:
    """The document; withdrawn issues are omitted."""
    order = list(NAMES)
    known = sorted((issue for issue in issues if not issue.withdrawn), key=lambda i: order.index(i.component))
    lines = [_HEAD]
    for kind, seen in _SEEN.items():
        if shown := [_entry(issue) for issue in known if issue.kind == kind]:
            lines += [f"### {seen}", "", *shown, ""]
    lines += ["## By component", ""]
    for component, group in groupby(known, key=lambda issue: issue.component):
        members = list(group)
        lines += [f"### {component}", "", *_table(members), ""]
    texts = sorted(messages, key=lambda message: (order.index(message.component), message.id))
    lines += ["## Messages", ""]
    for component, some in groupby(texts, key=lambda message: message.component):
        lines += [f"### Messages of {component}", "", *_messages(some), ""]
    lines.append(f"{len(known)} issues, {len(texts)} messages.\n")
    return "\n".join(lines)


def _entry(issue: KnownIssue) -> str:
    return f"- {issue.component}: [{_cell(issue.title)}](#{issue.id})"


def _table(issues: Sequence[KnownIssue]) -> Iterator[str]:
    yield "| issue | versions | workaround |"
    yield "|---|---|---|"
    for issue in issues:
        what = f'<a id="{issue.id}"></a>[{issue.id}]({issue.references[0].url}) ({issue.kind}): {issue.title}'
        where = issue.bad_versions.replace("any, as far as is known", "any")
        if issue.needs:
            where += f", with {', '.join(f'`{need}`' for need in issue.needs)}"
        helps = "; ".join(map(_help, issue.harmless_first)) or "–"
        yield f"| {_cell(what)} | {_cell(where)} | {_cell(helps)} |"


def _messages(messages: Iterable[Message]) -> Iterator[str]:
    yield "| message | severity | meaning | what to do |"
    yield "|---|---|---|---|"
    for message in messages:
        cells = (message.says, "; ".join(message.look))
        yield f'| <a id="{message.id}"></a>{message.id} | {message.kind} | {" | ".join(map(_cell, cells))} |'


def _help(workaround: Workaround) -> str:
    settings = " ".join(f"{name}={value}" for name, value in workaround.env.items())
    do = workaround.do.replace(settings, f"`{settings}`") if settings else workaround.do
    when = f" ({workaround.when})" if workaround.when else ""
    return f"{do}{when}" + (f" (can cause {workaround.risk})" if workaround.risk else "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
