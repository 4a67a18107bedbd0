"""Content of a ticket: each field of the vendor's form, or the command that prints what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby

from gpuipc_doctor import __version__
from gpuipc_doctor.present import markdown
from gpuipc_doctor.present.blocks import Block, Entry, Group, Lines, Verbatim
from gpuipc_doctor.present.text import counted, sanitise, shorten
from gpuipc_doctor.ticket.answers import ANSWERS, title
from gpuipc_doctor.ticket.subject import Subject
from gpuipc_doctor.ticket.templates import Ask, Template

LONGEST_TITLE = 120


@dataclass(frozen=True, slots=True)
class Filled:
    """A field of the form: its answers, and what is still missing."""

    label: str
    blocks: tuple[Block, ...]
    missing: tuple[Ask, ...]


def fill(template: Template, subject: Subject) -> tuple[Filled, ...]:
    """The fields of the form in order."""
    fields = []
    for field in template.fields:
        answers = {ask: tuple(_answer(ask, subject)) for ask in field.asks}
        fields.append(
            Filled(
                field.label,
                tuple(block for answer in answers.values() for block in answer),
                tuple(ask for ask, answer in answers.items() if not answer and not ask.optional),
            )
        )
    return tuple(fields)


def ticket(template: Template, subject: Subject, bundled: Sequence[str] = ()) -> str:
    """The ticket in Markdown. ``bundled``: lines about the bundle."""
    fields = fill(template, subject)
    parts = [
        markdown.render(f"Ticket for {template.name}", _preface(template, subject, fields, bundled)),
        markdown.render("Title", [Verbatim((shorten(sanitise(title(subject)), LONGEST_TITLE),))]),
        *(markdown.render(field.label, _blocks(field, subject)) for field in fields),
    ]
    return "\n".join(parts)


def _preface(
    template: Template, subject: Subject, fields: Sequence[Filled], bundled: Sequence[str]
) -> Iterator[Block]:
    missing = sum(len(field.missing) for field in fields)
    lines = [
        f"{counted(missing, 'answer')} missing: search for Missing." if missing else "Nothing is missing.",
        f"Made by gpuipc-doctor {__version__}. Read it before you send it, and delete this section.",
    ]
    if template.note:
        lines.insert(0, template.note)
    if simulated := [each.simulated for each in subject.reports if each.simulated]:
        lines.insert(0, f"SIMULATED (profile {simulated[0]}): no real GPU was tested. Do not send it.")
    yield Lines(tuple(lines))
    yield Verbatim((f"file the ticket at {template.file_at}", f"read on {template.read}: {template.source}"))
    if bundled:
        yield Lines(tuple(bundled))


def _blocks(field: Filled, subject: Subject) -> Iterator[Block]:
    for are_lines, blocks in groupby(field.blocks, key=lambda block: isinstance(block, Lines)):
        if are_lines:
            yield Lines(tuple(line for block in blocks if isinstance(block, Lines) for line in block.lines))
        else:
            yield from blocks
    for ask in field.missing:
        checks = " ".join(subject.checks) or "--all"
        yield Group((Entry("Missing", ask.what), Verbatim((ask.command.replace("CHECK", checks),))))
    if not field.blocks and not field.missing:
        yield Lines(("nothing to add",))


def _answer(ask: Ask, subject: Subject) -> Iterator[Block]:
    rows = [f"{name} {fact.value} ({fact.source})" for name in ask.facts for fact in subject.facts(name)]
    if rows:
        yield Lines(tuple(rows))
    if ask.answer:
        yield from ANSWERS[ask.answer](subject)
    if ask.file and (found := [name for name in subject.files if fnmatchcase(name, ask.file)]):
        yield Lines(tuple(f"attached: {name}" for name in found))
