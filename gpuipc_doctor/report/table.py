"""The health matrix: checks × devices, and columns for pairs and for the node where checks speak of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpuipc_doctor.model import Report, Result, Status
from gpuipc_doctor.report.digest import by_check, worst
from gpuipc_doctor.report.page import Page
from gpuipc_doctor.report.text import columns, fold_devices, sanitise, shorten

Cell = tuple[str, str]
"""What a cell says, and the status (or ``-``) that gives it its colour."""

EMPTY: Cell = ("-", "-")


@dataclass(frozen=True)
class Column:
    """A column of the matrix, with a cell for each check; ``devices`` are the labels that it speaks of."""

    title: str
    cells: tuple[Cell, ...]
    devices: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """In terminal columns, the gap before it included."""
        return 2 + max(len(self.title), *(len(text) for text, _ in self.cells))


def blocks(report: Report, page: Page) -> Iterator[list[str]]:
    """The matrix as lines, in several blocks when its columns do not fit side by side.

    Before that, neighbouring devices about which everything is the same share a column (``cuda:0-3``), so
    that the odd one stands out.
    """
    checks = by_check(report)
    if not checks:
        return
    names = [shorten(sanitise(check), page.width // 3) for check in checks]
    room = page.width - max(map(columns, ("check", *names)))
    devices, others = _device_columns(report, checks), _other_columns(checks)
    if sum(column.width for column in (*devices, *others)) > room:
        devices = _fold(devices)
    for block in _break([*devices, *others], room):
        yield _lines(names, block, page)


def _lines(names: Sequence[str], block: Sequence[Column], page: Page) -> list[str]:
    from tabulate import tabulate

    titles = ["check", *(column.title for column in block)]
    rows = [[name, *(page.paint(*column.cells[i]) for column in block)] for i, name in enumerate(names)]
    table = tabulate(  # the titles are a row because tabulate pads headers
        [titles, *rows],
        tablefmt="plain",
        colalign=["left"] + ["right"] * len(block),
        disable_numparse=True,
    )
    return [line.rstrip() for line in table.splitlines()]


def _device_columns(report: Report, checks: Mapping[str, Sequence[Result]]) -> list[Column]:
    labels = [device.label for device in report.devices]
    labels += [result.devices[0] for result in report.results if len(result.devices) == 1]
    return [
        Column(label, tuple(cell(r for r in c if r.devices == (label,)) for c in checks.values()), (label,))
        for label in dict.fromkeys(labels)
    ]


def _other_columns(checks: Mapping[str, Sequence[Result]]) -> list[Column]:
    pairs = tuple(map(pairs_cell, checks.values()))
    node = tuple(cell(r for r in results if not r.devices) for results in checks.values())
    return [
        Column(title, cells) for title, cells in (("pairs", pairs), ("node", node)) if set(cells) != {EMPTY}
    ]


def cell(results: Iterable[Result]) -> Cell:
    status = worst(results)
    return (status.value, status.value) if status else EMPTY


def pairs_cell(results: Sequence[Result]) -> Cell:
    """``12/12`` when all pairs pass, else how many of them have the worst status (``FAIL 2/12``)."""
    pairs: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if len(result.devices) == 2:
            pairs.setdefault(result.devices, []).append(result)
    statuses = Counter(status for status in map(worst, pairs.values()) if status)
    if not statuses:
        return EMPTY
    bad = max(statuses, key=lambda status: status.severity)
    count = f"{statuses[bad]}/{len(pairs)}"
    return count if bad is Status.PASS else f"{bad.value} {count}", bad.value


def _fold(devices: Sequence[Column]) -> list[Column]:
    folded: list[Column] = []
    for (_, cells), group in groupby(devices, key=lambda c: (c.title.rpartition(":")[0], c.cells)):
        labels = tuple(label for column in group for label in column.devices)
        folded.append(Column(fold_devices(labels), cells, labels))
    return folded


def _break(line_up: Sequence[Column], room: int) -> list[list[Column]]:
    """As few blocks as ``room`` columns allow, and those about equally wide."""
    fewest = len(_greedy(line_up, room))
    return next(blocks for r in range(room + 1) if len(blocks := _greedy(line_up, r)) == fewest)


def _greedy(line_up: Sequence[Column], room: int) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    for column in line_up:
        if blocks[-1] and sum(c.width for c in (*blocks[-1], column)) > room:
            blocks.append([])
        blocks[-1].append(column)
    return blocks
