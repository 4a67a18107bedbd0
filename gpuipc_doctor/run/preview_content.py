"""What a dry run shows: planned probes, ranks, and checks that would not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuipc_doctor.present.terminal import COLUMNS, table
from gpuipc_doctor.present.text import counted, fold_subjects, wrap
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.preview import Preview


def text(preview: Preview, *, full: bool) -> str:
    """What would run, a line a check (``full``: a line a probe), and what would not, a sentence a reason."""
    probes = preview.plan.probes
    if full:
        rows = [
            (item.check.id, item.probe.subject, item.probe.name, f"{item.probe.deadline_s:g}")
            for item in probes
        ]
        shown = [table(rows, ("check", "subject", "probe", "deadline, s"), wrapped=2)]
    else:
        shown = [table([*_by_check(probes)], ("check", "on", "probes", "deadline, s"), wrapped=1)]
    if preview.ranks:
        told = [(rank.kind, rank.value, rank.where) for rank in preview.ranks]
        shown.append(table(told, ("for ranks", "", "set at"), wrapped=1))
    lines: list[str] = []
    said: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for result in preview.plan.concluded:
        key = (result.check, result.finding.status.value, sentences.summary(result.finding))
        said.setdefault(key, []).append(result.devices)
    for (check, status, why), subjects in said.items():
        where = f"{check} on {fold_subjects(subjects) or 'node'}"
        lines += wrap(f"{where}: {status}, {why}", COLUMNS, rest="  ")
    return "\n".join(["\n\n".join(shown), "", *lines, f"{counted(len(probes), 'probe')} would run."])


def _by_check(probes: Sequence[PlannedProbe]) -> Iterator[tuple[str, ...]]:
    groups: dict[str, list[PlannedProbe]] = {}
    for item in probes:
        groups.setdefault(item.check.id, []).append(item)
    for check, group in groups.items():
        subjects = dict.fromkeys(tuple(device.label for device in item.probe.devices) for item in group)
        deadline_s = max(item.probe.deadline_s for item in group)
        yield check, fold_subjects(subjects) or "node", str(len(group)), f"{deadline_s:g}"
