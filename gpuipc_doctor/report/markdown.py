"""Blocks as Markdown, for a ticket or a pull request. No text of a report becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpuipc_doctor.report.blocks import Block, Lines, Paragraph, Table
from gpuipc_doctor.report.text import sanitise

_MEANS_SOMETHING = re.compile(r"([\\`*_\[\]<>|#~&])")
"""What Markdown would take for markup wherever it stands (CommonMark 2.4, and tables of GitHub's)."""


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
        case Paragraph(status, title, text, remedy, verdicts):
            yield f"**{status}** {_escaped(title)}: {_escaped(text)}"
            for verdict in verdicts:
                yield _escaped(verdict.text)
                yield from _remedy(verdict.remedy)
            yield from _remedy(remedy)
        case Lines(lines):
            yield from (f"- {_escaped(line)}" for line in lines)


def _remedy(remedy: str) -> Iterator[str]:
    if remedy:
        yield f"*Do:* {_escaped(remedy)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return _MEANS_SOMETHING.sub(r"\\\1", sanitise(text))
