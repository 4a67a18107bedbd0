"""From a report to the one line and the exit code, by the site's policy. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuipc_doctor.config import Action, PrologConfig
from gpuipc_doctor.model import Device, Ending, Relation, Report, Result, Status
from gpuipc_doctor.report import digest
from gpuipc_doctor.report.text import fold_devices, sanitise, shorten

MAX_LINE = 200
"""Characters of the line; a drain reason is read in one row of ``sinfo -R``."""

NAME = "gpuipc-doctor"


class Kind(enum.Enum):
    """What the policy tells apart, worst first."""

    FAIL = "fail"
    UNKILLABLE = "unkillable"
    ERROR = "error"
    BUDGET = "budget"

    @property
    def exit_code(self) -> int:
        """Where the policy drains. No code that a shell, Python or a missing program would exit with."""
        return 12 if self in (Kind.FAIL, Kind.UNKILLABLE) else 11

    @property
    def word(self) -> str:
        return "FAIL" if self in (Kind.FAIL, Kind.UNKILLABLE) else "ERROR"


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that speaks against the node, or against knowing it."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the batch system is told."""

    exit_code: int
    line: str
    action: Action | None = None
    """None where nothing speaks against the node."""
    concerns: tuple[tuple[Concern, Action], ...] = ()
    """The gravest first; the line tells the first that is not ignored."""


def decide(concerns: Iterable[Concern], policy: PrologConfig, *, otherwise: str, mark: str = "") -> Decision:
    """The gravest action that any concern asks for. ``otherwise`` is the line where none speaks against it.

    ``mark`` is put before what the line says.
    """
    weighed = [(concern, action_on(concern.kind, policy)) for concern in concerns]
    weighed.sort(key=lambda pair: (list(Action).index(pair[1]), list(Kind).index(pair[0].kind)))
    if not weighed:
        return Decision(0, line(mark, otherwise))
    worst, action = weighed[0]
    if action is Action.IGNORE:
        count = len(weighed)
        text = f"nothing that counts; {count} {'result' if count == 1 else 'results'} ignored by the policy"
        return Decision(0, line(mark, text), action, tuple(weighed))
    code = worst.kind.exit_code if action is Action.DRAIN else 0
    return Decision(code, line(mark, worst.text), action, tuple(weighed))


def action_on(kind: Kind, policy: PrologConfig) -> Action:
    action: Action = getattr(policy, f"on_{kind.value}")
    return action


def line(*parts: str) -> str:
    """The one line: printable, and of at most `MAX_LINE` characters."""
    return shorten(sanitise(" ".join([f"{NAME}:", *filter(None, parts)])), MAX_LINE)[:MAX_LINE]


def concerns(report: Report) -> list[Concern]:
    """All that speaks against the node, or against knowing it, each in words."""
    found = [
        Concern(kind, _text(kind, paragraph, report))
        for paragraph in digest.paragraphs(report)
        if (kind := _kind(paragraph.results))
    ]
    if not found and not report.probes_run:
        found.append(Concern(Kind.ERROR, "ERROR no probe ran, so nothing is known about this node's GPUs"))
    return found


def passed(report: Report) -> str:
    """What the line says of a node that nothing speaks against."""
    checks = digest.totals(report)[Status.PASS] + digest.totals(report)[Status.WARN]
    where = fold_devices(device.label for device in report.devices)
    return f"PASS {checks} checks on {where}, {report.elapsed_s:.1f} s"


def _kind(results: Sequence[Result]) -> Kind | None:
    status = results[0].finding.status
    if any(role.ending is Ending.UNKILLABLE for result in results for role in result.roles):
        return Kind.UNKILLABLE
    if any(result.stopped == "budget" for result in results):
        return Kind.BUDGET
    return {Status.FAIL: Kind.FAIL, Status.ERROR: Kind.ERROR}.get(status)


def _text(kind: Kind, paragraph: digest.Paragraph, report: Report) -> str:
    """``FAIL ipc-reopen on cuda:0 GPU-8f3a… and 3 more [nvidia-ipc-reopen]: importer: …``"""
    labels = dict.fromkeys(label for result in paragraph.results for label in result.devices)
    devices = [device for device in report.devices if device.label in labels]
    issues = [join.issue for join in paragraph.joins if join.relation is not Relation.LATENT]
    parts = [
        kind.word,
        ", ".join(paragraph.checks),
        _where(devices),
        f"[{', '.join(issues)}]" if issues else "",
    ]
    return f"{' '.join(filter(None, parts))}: {_briefly(paragraph.results[0])}"


def _briefly(result: Result) -> str:
    """What was found, without the check's own words for where it was: the call says enough in one line."""
    summary = result.finding.summary
    for role in result.roles:
        summary = summary.replace(f" ({role.step})", "")
    return summary


def _where(devices: Sequence[Device]) -> str:
    if not devices:
        return ""
    first, *others = devices
    more = f" and {len(others)} more" if others else ""
    return f"on {first.label} {first.uuid}{more}"
