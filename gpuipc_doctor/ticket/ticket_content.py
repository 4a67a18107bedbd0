"""Content of a bug report: what fails, how to reproduce it, versions, evidence, what was tried, its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, groupby

from gpuipc_doctor import __version__
from gpuipc_doctor.present import markdown
from gpuipc_doctor.present.blocks import Block, Entry, Group, Lines, Verbatim
from gpuipc_doctor.present.text import counted, sanitise, shorten
from gpuipc_doctor.report_types import Report
from gpuipc_doctor.ticket import answers, components
from gpuipc_doctor.ticket.components import Ask, Component
from gpuipc_doctor.ticket.subject import Subject

LONGEST_TITLE = 120

SECTIONS: dict[str, tuple[answers.Answer, ...]] = {
    "What fails": (answers.fails, answers.incidence),
    "How to reproduce it": (answers.reproduce,),
    "Versions": (answers.versions,),
    "Evidence": (answers.evidence,),
    "What was tried": (answers.tried,),
}


def ticket(subject: Subject, component: Component | None, bundled: Sequence[str] = ()) -> str:
    """The bug report in Markdown. ``component``: whose maintainers get it; ``bundled``: on the bundle."""
    absent = missing(subject, component)
    parts = [
        markdown.render("Bug report", [Lines(tuple(_preface(subject, len(absent))))]),
        markdown.render("Title", [Verbatim((shorten(sanitise(answers.title(subject)), LONGEST_TITLE),))]),
    ]
    for heading, says in SECTIONS.items():
        said = list(_joined(chain.from_iterable(answer(subject) for answer in says)))
        parts.append(markdown.render(heading, said or [Lines(("nothing in the documents",))]))
    if absent:
        checks = " ".join(subject.checks) or "--all"
        wanted = [(ask.what, ask.command.replace("CHECK", checks)) for ask in absent]
        blocks = [Group((Entry("Missing", what), Verbatim((command,)))) for what, command in wanted]
        parts.append(markdown.render("Still missing", blocks))
    parts.append(markdown.render("Where such reports go", _place(component, subject)))
    if bundled:
        parts.append(markdown.render("Bundle", [Lines(tuple(bundled))]))
    return "\n".join(parts)


def missing(subject: Subject, component: Component | None) -> tuple[Ask, ...]:
    """What the documents and added files do not answer."""
    kind = "report" if isinstance(subject.about, Report) else "job"
    asks = (*components.catalogue().everyone, *(component.asks if component else ()))
    return tuple(ask for ask in asks if ask.about in ("", kind) and not _is_answered(ask, subject))


def _is_answered(ask: Ask, subject: Subject) -> bool:
    return bool(
        any(subject.facts(name) for name in ask.facts)
        or (ask.answer and any(answers.ANSWERS[ask.answer](subject)))
        or (ask.file and any(fnmatchcase(name, ask.file) for name in subject.files))
    )


def _preface(subject: Subject, absent: int) -> Iterator[str]:
    if simulated := [each.simulated for each in subject.reports if each.simulated]:
        yield f"SIMULATED (profile {simulated[0]}): no real GPU was tested. Do not send it."
    yield f"{counted(absent, 'answer')} missing: see Still missing." if absent else "Nothing is missing."
    yield f"Made by gpuipc-doctor {__version__}. Read it before you send it, and delete this section."


def _place(component: Component | None, subject: Subject) -> Iterator[Block]:
    if component is None:
        why = "The documents do not tell whose fault it is. A rank late outside MPI is the job's own."
        if of := ", ".join(filter(None, dict.fromkeys(subject.confirmed))):
            why = f"The confirmed known issue is of {of}: its references say where it is known."
        yield Lines((why, f"Choose with --for: {', '.join(components.load())}."))
        return
    yield Lines(tuple(filter(None, (component.name, component.note))))
    yield Verbatim((component.file_at, f"asks for the above, read on {component.read}: {component.source}"))


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks, with adjacent lists as one."""
    for are_lines, those in groupby(blocks, key=lambda block: isinstance(block, Lines)):
        if are_lines:
            yield Lines(tuple(line for block in those if isinstance(block, Lines) for line in block.lines))
        else:
            yield from those
