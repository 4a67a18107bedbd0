"""A comparison as Markdown, for a ticket or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuipc_doctor.comparison import content
from gpuipc_doctor.comparison.comparison import Comparison
from gpuipc_doctor.comparison.content import Block, Lines, Paragraph, Table
from gpuipc_doctor.report.text import sanitise

_MEANS_SOMETHING = re.compile(r"([\\`*_\[\]<>|#~&])")
"""What Markdown would take for markup wherever it stands (CommonMark 2.4, and tables of GitHub's)."""


def render(comparison: Comparison) -> str:
    """The document, ending in a newline. No text of a report becomes markup."""
    simulated = "SIMULATED: " if comparison.before.simulated or comparison.after.simulated else ""
    head = f"## {simulated}{', '.join(content.totals(comparison))} (exit {comparison.exit_code})"
    drawn = ["\n".join(_draw(block)) for block in content.blocks(comparison)]
    return "\n\n".join([head, *drawn]) + "\n"


def _draw(block: Block) -> Iterator[str]:
    match block:
        case Table(rows):
            yield _row(rows[0])
            yield "|---" * len(rows[0]) + "|"
            yield from map(_row, rows[1:])
        case Paragraph(status, title, text, remedy):
            yield f"**{status}** {_escaped(title)}: {_escaped(text)}"
            if remedy:
                yield f"*Do:* {_escaped(remedy)}"
        case Lines(lines):
            yield from (f"- {_escaped(line)}" for line in lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return _MEANS_SOMETHING.sub(r"\\\1", sanitise(text))
