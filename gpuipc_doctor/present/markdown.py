"""Blocks as Markdown, for a ticket or a pull request. No text of a report becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.present.blocks import Block, Entry, Group, Item, Lines, Parts, Table
from gpuipc_doctor.present.text import sanitise

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")
"""Characters that Markdown takes for markup wherever they stand (CommonMark 2.4, and tables of GitHub's)."""


def render(head: str, blocks: Iterable[Block]) -> str:
    """The document below a heading, which is markup already; it ends in a newline."""
    drawn = ["\n".join(_draw(block)) for block in blocks]
    return "\n\n".join([f"## {head}", *drawn]) + "\n"


def _draw(block: Block) -> Iterator[str]:
    match block:
        case Table(rows):
            yield _row(rows[0])
            yield "|---" * len(rows[0]) + "|"
            yield from map(_row, rows[1:])
        case Entry(word, title, items):
            first, *rest = [item for item in items if isinstance(item, Item)] or [Item("")]
            yield f"**{_escaped(word)}** {_escaped(title)}" + (
                f": {_escaped(first.text)}" if first.text else ""
            )
            for item in rest:
                if item.text:
                    lead = f"*{item.lead.strip()}* " if item.lead else ""
                    yield f"{lead}{_escaped(item.text)}"
        case Lines(lines):
            yield from (f"- {_escaped(line)}" for line in lines)
        case Parts(parts):
            yield f"- {_escaped(' · '.join(parts))}"
        case Group(blocks):
            for one in blocks:
                yield from _draw(one)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", sanitise(text))
