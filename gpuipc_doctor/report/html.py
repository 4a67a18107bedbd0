"""The report as one HTML file: for a vendor's ticket, or to be opened in the morning.

It needs no network and no script to be read; with script its tables sort and filter. Whatever a report holds
is text to it: Jinja2 escapes all, and the page's policy lets nothing but its own style and script in.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.model import Report, Result, Status
from gpuipc_doctor.report import digest, exits, prose, sentences, table
from gpuipc_doctor.report.table import Cell
from gpuipc_doctor.report.text import device_key, sanitise

if TYPE_CHECKING:
    from jinja2 import Environment

SIGNS = {"PASS": "✓", "SKIP": "○", "WARN": "!", "ERROR": "?", "FAIL": "✗"}
"""A status differs by its sign as well as by its colour."""


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("gpuipc_doctor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    made.globals["signs"] = SIGNS
    return made


def _shown(value: Any) -> Any:
    """Text without what a terminal would act upon, for pages are copied from; what templates made stays."""
    is_ours = hasattr(value, "__html__") or not isinstance(value, str)
    return value if is_ours else "\n".join(map(sanitise, value.split("\n")))


def page(template: str, **values: Any) -> str:
    """A page, ending in a newline."""
    text: str = _environment().get_template(template).render(values)
    return text + "\n"


def render(report: Report) -> str:
    """The page of a node."""
    counts = digest.totals(report)
    names = Counter(device.name for device in report.devices)
    columns, rows = _matrix(report)
    return page(
        "node.html",
        title=f"{report.host}: {report.worst().value}",
        simulated=report.simulated,
        report=report,
        worst=report.worst().value,
        devices=" + ".join(f"{n} × {name}" for name, n in names.items()) or "no GPU found",
        totals=", ".join(f"{counts[s]} {s.value}" for s in reversed(Status) if counts[s]),
        exit_code=exits.code(report),
        columns=columns,
        rows=rows,
        findings=list(_findings(report)),
        pictures=list(_pictures(report)),
        facts=[fact for fact in report.inventory if fact.value is not None],
    )


def _matrix(report: Report) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """The columns' titles, and for each check its cell in each, as on a screen."""
    checks = digest.by_check(report)
    singles = {result.devices[0] for result in report.results if len(result.devices) == 1}
    labels = sorted(singles | {device.label for device in report.devices}, key=device_key)
    titles = [*labels, "pairs", "node"]
    rows = [(check, _cells(results, labels)) for check, results in checks.items()]
    kept = [n for n in range(len(titles)) if any(cells[n] != table.EMPTY for _, cells in rows)]
    return [titles[n] for n in kept], [(check, [cells[n] for n in kept]) for check, cells in rows]


def _cells(results: Sequence[Result], labels: Sequence[str]) -> list[Cell]:
    of_devices = [table.cell(r for r in results if r.devices == (label,)) for label in labels]
    return [*of_devices, table.pairs_cell(results), table.cell(r for r in results if not r.devices)]


def _findings(report: Report) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for paragraph in digest.paragraphs(report):
        finding, first = paragraph.finding, paragraph.results[0]
        yield {
            "status": finding.status.value,
            "title": prose.title(report, paragraph),
            "key": first.key,
            "says": sentences.summary(finding),
            "evidence": prose.evidence(paragraph, told),
            "verdicts": list(prose.verdicts(paragraph, told)),
            "remedy": prose.remedy(paragraph, told),
            "folded": list(_folded(first)),
        }
        told.update(join.issue for join in paragraph.joins)


def _folded(result: Result) -> Iterator[tuple[str, Sequence[str]]]:
    """What the roles left, which only some will want to read."""
    for role in result.roles:
        kinds = {
            "native stack": role.native_stack,
            "Python stack": role.python_stack,
            "kernel": role.kernel,
            "end of what it printed": role.log_tail,
        }
        for kind, lines in kinds.items():
            if lines:
                yield f"{role.role}: {kind}", [sanitise(line) for line in lines]


def _pictures(report: Report) -> Iterator[tuple[str, str]]:
    """What was recorded over time, where matplotlib is there to draw it."""
    if find_spec("matplotlib") is None:
        return
    from gpuipc_doctor.report import plots

    for picture in plots.pictures(report):
        yield picture.name, f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
