"""A comparison as Markdown, for a ticket or a pull request."""

from __future__ import annotations

from gpuipc_doctor.comparison import content
from gpuipc_doctor.comparison.comparison import Comparison
from gpuipc_doctor.report import markdown


def render(comparison: Comparison) -> str:
    """The document, ending in a newline."""
    simulated = "SIMULATED: " if comparison.before.simulated or comparison.after.simulated else ""
    head = f"{simulated}{', '.join(content.totals(comparison))} (exit {comparison.exit_code})"
    return markdown.render(head, content.blocks(comparison))
