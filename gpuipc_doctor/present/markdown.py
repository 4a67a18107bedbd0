"""Render blocks as Markdown, for a ticket or a pull request. Text from a report never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.present.blocks import (
    ALSO,
    Block,
    Entry,
    Grid,
    Group,
    Item,
    Lines,
    Notice,
    Parts,
    Table,
    Verbatim,
)
from gpuipc_doctor.present.text import sanitise

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")
"""Characters that are Markdown markup anywhere (CommonMark 2.4, and GitHub's tables)."""

_NODES = re.compile(r"(?<![\w.-])[A-Za-z][\w.-]*\[[0-9,-]+\][\w.,\[\]-]*")
"""A set of nodes, ``nid[001-128]``: shown as code, so that it can be copied."""


def render(head: str, blocks: Iterable[Block]) -> str:
    """The document with its heading; it ends in a newline."""
    drawn = ("\n".join(_draw(block)) for block in blocks)
    return "\n\n".join([f"## {_escaped(head)}", *filter(None, drawn)]) + "\n"


def _draw(block: Block) -> Iterator[str]:
    match block:
        case Table(rows):
            yield _row(rows[0])
            yield "|---" * len(rows[0]) + "|"
            yield from map(_row, rows[1:])
        case Grid(corner, names, columns):
            yield from _draw(Table(((corner, *(one.title for one in columns)),)))
            for n, name in enumerate(names):
                yield _row([name, *(one.cells[n][0] for one in columns)])
        case Notice(text):
            yield f"**{_escaped(text)}**"
        case Entry(word, title, items):
            first, *rest = [item for item in items if isinstance(item, Item)] or [Item("")]
            yield f"**{_escaped(word)}** {_escaped(title)}" + (
                f": {_escaped(first.text)}" if first.text else ""
            )
            for item in rest:
                if item.text:
                    lead = f"*{item.lead.strip()}* " if item.lead else ""
                    lead = "- " if item.lead == ALSO else lead
                    yield f"{lead}{_escaped(item.text)}"
        case Lines(lines):
            yield from (f"- {_escaped(line)}" for line in lines)
        case Verbatim(lines):
            # Fences that are longer than any fence in the lines (CommonMark 4.5); indents are kept.
            longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
            fence = "`" * max(3, longest + 1)
            indents = (line[: len(line) - len(line.lstrip(" "))] for line in lines)
            yield from (fence, *map(str.__add__, indents, map(sanitise, lines)), fence)
        case Parts(parts):
            yield f"- {_escaped(' · '.join(parts))}"
        case Group(blocks):
            for one in blocks:
                yield from _draw(one)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    parts, at = [], 0
    for nodes in _NODES.finditer(text := sanitise(text)):
        parts += [_MARKUP.sub(r"\\\1", text[at : nodes.start()]), f"`{nodes[0]}`"]
        at = nodes.end()
    return "".join(parts) + _MARKUP.sub(r"\\\1", text[at:])
