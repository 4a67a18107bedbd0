"""A comparison as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from gpuipc_doctor.comparison import content
from gpuipc_doctor.comparison.comparison import Comparison
from gpuipc_doctor.report.blocks import draw
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page


def render(comparison: Comparison, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    page = Page(min(max(width, MIN_WIDTH), MAX_WIDTH), color)
    drawn = draw(content.blocks(comparison), page)
    return "\n\n".join([*drawn, "\n".join(_totals(comparison, page))]) + "\n"


def _totals(comparison: Comparison, page: Page) -> Iterator[str]:
    simulated = dict.fromkeys(filter(None, (comparison.before.simulated, comparison.after.simulated)))
    words = [f"SIMULATED ({', '.join(simulated)})"] if simulated else []
    yield from page.close(
        [*words, *content.totals(comparison)], f"exit {comparison.exit_code}", comparison.exit_code.name
    )
