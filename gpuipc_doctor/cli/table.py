"""Tables that fit a terminal of the usual width."""

from __future__ import annotations

from collections.abc import Sequence

from gpuipc_doctor.report.text import columns, sanitise, wrap

COLUMNS = 80
_LEAST = 20
"""A column gets as many, even where the table then is too wide."""


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], *, wrapped: int) -> str:
    """A table of 80 columns: the column with the number ``wrapped`` has what the others leave of them.

    What a terminal would act upon is shown by its number.
    """
    from tabulate import tabulate

    rows = [[sanitise(cell) for cell in row] for row in rows]
    widths = [max(map(columns, cells)) for cells in zip(headers, *rows, strict=True)]
    room = max(COLUMNS - sum(widths) + widths[wrapped] - 2 * (len(widths) - 1), _LEAST)
    shown = [
        ["\n".join(wrap(cell, room)) if n == wrapped else cell for n, cell in enumerate(row)] for row in rows
    ]
    return tabulate(shown, headers, "simple", disable_numparse=True)
