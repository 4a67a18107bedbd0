"""Plots of time series: one for each check and subject, with a panel for each probe.

They need matplotlib, an optional extra of this package, imported only when used.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.report import run_times, sentences
from gpuipc_doctor.report.run_times import Ran
from gpuipc_doctor.report_types import Report, Result, Series

_COLUMNS = 2
_PANEL = 5.6, 3.4
_HEAD, _FOOT = 0.75, 0.17
"""Heights in inches: of the header, and of a line of the footer."""

_FOOTER_COLUMNS = 14
"""Characters per inch of the footer."""

_LOOKS = ("#e69f00", 3.6), ("#0072b2", 2.2), ("#000000", 1.0), ("#cc79a7", 1.0)
"""Colours that every colour vision can distinguish (Okabe and Ito, https://jfly.uni-koeln.de/color/), and
widths in points: later lines are thinner, so that they do not hide earlier ones."""

_WORDS = {"PASS": "#1a7f37", "WARN": "#9a6700", "FAIL": "#cf222e", "ERROR": "#8250df", "SKIP": "#57606a"}
_QUIET = "#57606a"

_FACTS = {"nvidia-driver": "NVIDIA {}", "cuda-driver": "CUDA {}", "rocm": "ROCm {}"}
_LIBRARIES = {"cupy": "CuPy {}", "pytorch": "PyTorch {}"}
"""Additional facts in the footer for checks of allocators."""

_MOST_SUBJECTS = 10
"""Subjects that a legend names; with more, pairs of eight GPUs, colours would tell nothing."""

_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in two formats. ``name`` is the file name without suffix."""

    name: str
    svg: bytes
    png: bytes


def pictures(report: Report) -> Iterator[Picture]:
    """A picture for each check and subject with a recorded series."""
    groups = by_key(
        ((result.check, result.subject), (result, series))
        for result in report.results
        for series in result.series
    )
    for (check, subject), drawn in groups.items():
        title = f"{check} on {subject}" + (" · SIMULATED" if report.simulated else "")
        name = f"{check}-{subject}".replace(":", "").replace(" > ", "-")
        yield Picture(name, *_formats(report, title, drawn))


def of_run(report: Report) -> Picture | None:
    """When each check ran on which device; None if nothing ran."""
    ran = run_times.probes(report)
    return Picture("run", *_saved(partial(_timeline, report, ran))) if ran else None


def _timeline(report: Report, ran: Sequence[Ran]) -> Any:
    from matplotlib.figure import Figure

    checks = list(dict.fromkeys(each.check for each in ran))
    subjects = list(dict.fromkeys(each.subject for each in ran))
    height = 0.2 * len(checks) + 1.2
    figure = Figure((2 * _PANEL[0], height), layout="constrained", facecolor="white")
    panel = figure.subplots()
    for number, subject in enumerate(subjects):
        of = [each for each in ran if each.subject == subject]
        rows, widths = [checks.index(each.check) for each in of], [each.end - each.start for each in of]
        colour = f"C{number % 10}" if len(subjects) > 1 else _LOOKS[1][0]
        panel.barh(rows, widths, left=[each.start for each in of], height=0.7, color=colour, label=subject)
    panel.set_yticks(range(len(checks)), checks, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, report.elapsed_s)
    panel.set_xlabel(sanitise(f"seconds of {report.elapsed_s:.1f} · {_footer(report, '', 99)}"), fontsize=8)
    panel.grid(axis="x", color="#d0d7de", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    if 1 < len(subjects) <= _MOST_SUBJECTS:
        panel.legend(fontsize=8, frameon=False, ncols=2)
    return figure


def _formats(report: Report, title: str, drawn: Sequence[tuple[Result, Series]]) -> tuple[bytes, bytes]:
    return _saved(partial(_figure, report, title, drawn))


def _saved(draw: Callable[[], Any]) -> tuple[bytes, bytes]:
    import matplotlib

    # Text stays text; dates and random names are removed so that equal reports give equal pictures.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "gpuipc-doctor", "text.parse_math": False}
    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(settings):
        figure = draw()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.savefig(png, format="png", dpi=120)
    return svg.getvalue(), png.getvalue()


def _figure(report: Report, title: str, drawn: Sequence[tuple[Result, Series]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(len(drawn), _COLUMNS)
    rows = -(-len(drawn) // columns)
    width = _PANEL[0] * columns
    footer = _footer(report, drawn[0][0].check, width)
    foot = _FOOT * (2 + footer.count("\n"))
    height = _PANEL[1] * rows + _HEAD + foot
    layout = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - (_HEAD + foot) / height))
    figure = Figure((width, height), layout=layout, facecolor="white")
    left, top = 0.12 / width, 1 - 0.12 / height
    figure.text(left, top, title, va="top", fontsize=14, fontweight="bold")
    figure.text(left, 0.1 / height, footer, fontsize=8, color=_QUIET)
    unit = _unit(drawn)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for panel, (result, series) in zip(panels.flat, drawn, strict=False):
        _draw(panel, result, series, unit)
    for panel in panels.flat[len(drawn) :]:
        panel.set_axis_off()
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    shown = {label: line for label, line in lines.items() if not label.startswith("_")}
    figure.legend(
        shown.values(), shown, loc="upper left", bbox_to_anchor=(0, 1 - 0.42 / height), ncols=4, frameon=False
    )
    return figure


def _draw(panel: Any, result: Result, series: Series, unit: str) -> None:
    word, said = (
        result.finding.status.value,
        sentences.summary(result.finding).removeprefix(f"{result.probe}: "),
    )
    lines = textwrap.wrap(f"{word}  {sanitise(said)}", 74, max_lines=2, placeholder=" …")
    run = f" (run {result.repetition})" if result.repetition > 1 else ""
    panel.set_title(
        sanitise(series.title) + run, loc="left", fontsize=10.5, fontweight="bold", pad=8 + 11 * len(lines)
    )
    panel.text(0, 1.02, "\n".join(lines), transform=panel.transAxes, fontsize=8.5, color=_WORDS[word])
    in_ms = series.axis == "seconds" and max(series.at, default=0) < 1
    scale = 1000 if in_ms else 1
    at = [scale * point for point in series.at]
    few = {"marker": "o", "markersize": 3} if len(at) <= 40 else {"drawstyle": "steps-post"}
    for line, (colour, width) in zip(series.lines, _LOOKS, strict=False):
        values = [value / _UNITS[unit] for value in line.values]
        panel.plot(at, values, label=line.name, color=colour, linewidth=width, **few)
    for number, mark in enumerate(series.marks):
        side = -1 if number % 2 == 0 else 1
        panel.axvline(scale * mark.at, color=_QUIET, linewidth=0.8, linestyle=":")
        panel.annotate(
            mark.text,
            (scale * mark.at, 0.5),
            xycoords=("data", "axes fraction"),
            xytext=(4 * side, 0),
            textcoords="offset points",
            rotation=90,
            ha="right" if side < 0 else "left",
            va="center",
            fontsize=7.5,
            color=_QUIET,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    if not any(value for line in series.lines for value in line.values):
        panel.set_ylim(-0.1, 1)  # a constant zero needs no scale of its own
    panel.set_xlabel("milliseconds" if in_ms else series.axis)
    panel.set_ylabel(unit)
    panel.yaxis.set_tick_params(labelleft=True)
    panel.grid(color="#d0d7de", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)


def _unit(drawn: Sequence[tuple[Result, Series]]) -> str:
    """The largest unit in which no panel's figures become too small."""
    most = max(
        (abs(value) for _, series in drawn for line in series.lines for value in line.values), default=0
    )
    return next((unit for unit, nbytes in _UNITS.items() if most >= 2 * nbytes), "B" if most else "MiB")


def _footer(report: Report, check: str, width: float) -> str:
    """Origin of the figures: node, GPU, software, time, and tool version."""
    facts = {**_FACTS, **(_LIBRARIES if check.startswith("allocator-") else {})}
    software = [
        facts[fact.name].format(fact.value) for fact in report.inventory if fact.value and fact.name in facts
    ]
    if check.startswith("mpi-"):
        software += [
            sentences.summary(result.finding) for result in report.results if result.check == "mpi-gpu-aware"
        ]
    names = dict.fromkeys(device.name for device in report.devices)
    when = report.started.replace("T", " ")[:16]
    simulated = f"SIMULATED ({report.simulated})" if report.simulated else ""
    parts = (simulated, report.host, *names, *software, when, f"gpuipc-doctor {report.tool_version}")
    line = sanitise(" · ".join(filter(None, parts)))
    return "\n".join(textwrap.wrap(line, int(width * _FOOTER_COLUMNS), break_on_hyphens=False))
