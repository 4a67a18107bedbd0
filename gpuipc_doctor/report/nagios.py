"""What ``--exit-style nagios`` prints: the state in one line with its figures, then the screen.

The form is that of https://nagios-plugins.org/doc/guidelines.html: one line of text, a bar, performance
data; more lines may follow, in which another bar would begin performance data once more.
"""

from __future__ import annotations

from gpuipc_doctor.model import Report, Status
from gpuipc_doctor.report import digest, exits, matrix, sentences
from gpuipc_doctor.report.text import sanitise


def render(report: Report, *, width: int = 80) -> str:
    """The plugin output for ``report``, ending in a newline."""
    state = exits.nagios_state(report)
    screen = matrix.render(report, width=width, exit_code=state)
    return f"{_plain(_first_line(report, state))} | {_figures(report)}\n{_plain(screen)}"


def _first_line(report: Report, state: exits.Nagios) -> str:
    simulated = "SIMULATED " if report.simulated else ""
    return sanitise(f"GPUIPC {state.name} - {simulated}{_reason(report)}")


def _reason(report: Report) -> str:
    shown = [p for p in digest.paragraphs(report) if p.status is not Status.SKIP]
    if shown:
        where = f" on {shown[0].where}" if shown[0].where else ""
        return f"{', '.join(shown[0].checks)}{where}: {sentences.summary(shown[0].finding)}"
    if report.interrupted:
        return "interrupted"
    return (
        "nothing was tested"
        if report.nothing_tested
        else f"{digest.totals(report)[Status.PASS]} checks passed"
    )


def _figures(report: Report) -> str:
    counts = digest.totals(report)
    return " ".join([*(f"{s.value.lower()}={counts[s]}" for s in Status), f"time={report.elapsed_s:.1f}s"])


def _plain(text: str) -> str:
    return text.replace("|", "¦")
