"""One known issue as a page of 80 columns: who is affected, how it shows, what to do, who says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from textwrap import fill

from gpuipc_doctor.cli.table import COLUMNS
from gpuipc_doctor.knownissues import Confidence, KnownIssue, Signature, Suppression, Workaround

_EVIDENCE = {
    "read": "Its sources were read in full.",
    "excerpts": "Its sources were read in excerpts.",
    "weak": "Its sources are weak: one report at third hand, or few details.",
}


def page(issue: KnownIssue, today: date | None = None) -> str:
    """The whole page. What people copy (addresses, variables) stays on one line, however long."""
    parts = [fill(f"{issue.id}: {issue.title}", COLUMNS)]
    for heading, lines in _sections(issue, today or date.today()):
        parts.append(f"\n{heading}\n" + "\n".join(lines))
    return "\n".join(parts)


def _sections(issue: KnownIssue, today: date) -> Iterator[tuple[str, list[str]]]:
    sections: dict[str, Iterable[str]] = {
        "Withdrawn": _paragraphs(issue.withdrawn),
        "Changed by this site": _paragraphs(issue.overrides),
        "Suppressed by this site": _paragraphs(*_suppression(issue.suppression, today)),
        "What happens": _paragraphs(issue.symptom),
        "When": _paragraphs(issue.trigger),
        "Who is affected": _paragraphs(*_affected(issue)),
        "How logs show it": (line for one in issue.signatures for line in _signature(one)),
        "How it is found here": _paragraphs(*_detection(issue)),
        "What to do": (line for one in issue.harmless_first for line in _workaround(issue, one)),
        "Not in the sources, but concluded": _items(issue.inferred),
        "Notes": _paragraphs(issue.notes),
        "Links": _links(issue),
    }
    for heading, lines in sections.items():
        if shown := list(lines):
            yield heading, shown


def _suppression(suppression: Suppression | None, today: date) -> Iterator[str]:
    if suppression:
        until = "until" if suppression.holds(today) else "expired, it was until"
        yield f"{suppression.reason} ({until} {suppression.until}; {suppression.where})"


def _affected(issue: KnownIssue) -> Iterator[str]:
    yield f"{issue.component} {issue.bad_versions} ({issue.kind}, {issue.status})"
    if good := [version for one in issue.affected for version in one.known_good]:
        yield f"known to be good: {', '.join(good)}"
    if issue.needs:
        yield f"only with: {', '.join(map(str, issue.needs))}"
    if issue.harms:
        yield f"here, no probe may do this: {', '.join(issue.harms)}"
    if issue.also:
        yield f"also has to do with: {', '.join(issue.also)}"


def _detection(issue: KnownIssue) -> Iterator[str]:
    if issue.checks:
        yield f"gpuipc-doctor check {' '.join(issue.checks)}"
    if issue.signatures:
        yield "gpuipc-doctor diagnose FILE, in logs"
    if any(one.introduced != "unknown" or one.known_bad for one in issue.affected) or (
        issue.needs and not issue.affected
    ):
        yield "gpuipc-doctor check known-versions"


def _signature(one: Signature) -> Iterator[str]:
    """The sample; the expressions are for programs, which get them as JSON."""
    said = one.sample.splitlines() or [" … ".join(one.match)]
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
        yield _fill(f"right in: {issue.component} {one.when}", "    ")
    if one.cost:
        yield _fill(f"price: {one.cost}", "    ")
    if one.risk:
        yield _fill(f"may give rise to {one.risk}: {one.risk_source}", "    ")
    if one.conflicts:
        yield _fill(f"brings about: {', '.join(one.conflicts)}", "    ")


def _links(issue: KnownIssue) -> Iterator[str]:
    yield from (f"  {one.url} ({one.type})" for one in issue.references)
    if issue.evidence:
        yield f"  {_EVIDENCE[issue.evidence]}"


def _paragraphs(*texts: str) -> Iterator[str]:
    return (_fill(text, "  ", hang="    " if len(texts) > 1 else "  ") for text in texts if text)


def _items(texts: Iterable[str]) -> Iterator[str]:
    return (_fill(text, "  - ") for text in texts)


def _fill(text: str, lead: str, hang: str = "") -> str:
    return fill(
        text,
        COLUMNS,
        initial_indent=lead,
        subsequent_indent=hang or " " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
