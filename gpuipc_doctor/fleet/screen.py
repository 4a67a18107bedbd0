"""A fleet as a terminal shows it: the matrix over groups of nodes, a paragraph for each thing, the totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuipc_doctor.fleet.fold import Drift, Fleet, Group, Silence, Slow
from gpuipc_doctor.fleet.summary import State
from gpuipc_doctor.fleet.verdicts import Judged, judged
from gpuipc_doctor.model import Status
from gpuipc_doctor.report.page import MAX_WIDTH, MIN_WIDTH, Page
from gpuipc_doctor.report.text import counted, sanitise, shorten

SHOWN_GROUPS, SHOWN_DRIFTS, SHOWN_SLOW = 12, 12, 12
"""What is more is counted; the JSON has all."""

SHOWN_ISSUES = 3
"""Of one version."""

SHORT = {"PASS": "pass", "SKIP": "skip", "WARN": "WARN", "ERROR": "ERR", "FAIL": "FAIL", "": "-"}

_INDENT = " " * 6
_HANG = " " * 8


def render(fleet: Fleet, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    page = Page(min(max(width, MIN_WIDTH), MAX_WIDTH), color)
    blocks = [
        list(_header(fleet, page)),
        list(_matrix(fleet, page)),
        *(list(_problem(fleet, one, page)) for one in judged(fleet)),
        *(list(_silence(fleet, one, page)) for one in fleet.silences),
        list(_drifts(fleet, page)),
        list(_slow(fleet.slow, page)),
        list(_totals(fleet, page)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _header(fleet: Fleet, page: Page) -> Iterator[str]:
    if simulated := fleet.simulated:
        text = f"SIMULATED: no real GPU was tested on {fleet.folder.fold(simulated)}"
        yield from page.notice(text, "WARN")
    answered = fleet.answered
    longest = max(answered, key=lambda one: one.elapsed_s, default=None)
    parts = [counted(len(fleet.reports), "node"), counted(len(answered), "report")]
    if longest:
        parts.append(f"the longest took {longest.elapsed_s:.1f} s, on {longest.node}")
        began = sorted(one.started for one in answered)
        parts.append(f"{began[0][:16].replace('T', ' ')} to {began[-1][11:16]}")
    yield from page.join(parts)


def _matrix(fleet: Fleet, page: Page) -> Iterator[str]:
    """Rows are groups of nodes with the same answer, worst first; columns the checks that are not PASS
    there."""
    from tabulate import tabulate

    groups = [group for group in fleet.groups if group.state is State.REPORTED]
    shown, more = groups[:SHOWN_GROUPS], groups[SHOWN_GROUPS:]
    telling = fleet.telling_checks
    if not shown:
        return
    room = max(page.width - sum(len(check) + 2 for check in telling) - 14, 16)
    if room > page.width or sum(len(check) + 2 for check in telling) > page.width - 30:
        yield from _groups_as_lines(fleet, shown, page)
    else:
        rows = [
            [
                shorten(sanitise(fleet.folder.fold(group.nodes)), room),
                str(len(group.nodes)),
                *(
                    page.paint(SHORT[group.checks.get(check, "")], group.checks.get(check, "-"))
                    for check in telling
                ),
                *([] if telling else [page.paint(group.status.value, group.status.value)]),
            ]
            for group in shown
        ]
        titles = ["nodes", "", *(map(sanitise, telling) if telling else [""])]
        table = tabulate([titles, *rows], tablefmt="plain", disable_numparse=True, colalign=_aligned(titles))
        yield from (line.rstrip() for line in table.splitlines())
    if more:
        number = sum(len(group.nodes) for group in more)
        yield f"… and {counted(number, 'node')} in {counted(len(more), 'more group')}"


def _aligned(titles: Sequence[str]) -> list[str]:
    return ["left"] + ["right"] * (len(titles) - 1)


def _groups_as_lines(fleet: Fleet, groups: Sequence[Group], page: Page) -> Iterator[str]:
    """Where the columns do not fit side by side."""
    for group in groups:
        bad = [check for check, status in group.checks.items() if status not in ("PASS", "SKIP")]
        where = f"{fleet.folder.fold(group.nodes)} ({len(group.nodes)}): {', '.join(bad) or 'all passed'}"
        first, *rest = page.fill(where, f"{group.status.value:<6}", _HANG)
        yield page.paint(group.status.value, group.status.value) + first[len(group.status.value) :]
        yield from rest


def _problem(fleet: Fleet, one: Judged, page: Page) -> Iterator[str]:
    problem = one.problem
    word, told = problem.status.value, problem.example
    where = f"{problem.check} on {fleet.folder.brief(problem.nodes)}"
    first, *rest = page.fill(where, f"{word:<6}", _INDENT)
    yield page.paint(word, word) + first.removeprefix(word)
    yield from rest
    place = f" ({told.where})" if told.where else ""
    yield from page.fill(f"{problem.nodes[0]}{place}: {told.says}", _INDENT)
    if len(problem.nodes) > 1:
        yield from page.fill(
            f"and {len(problem.nodes) - 1} more; each node's report has its own", _INDENT, _HANG
        )
    for verdict in one.verdicts:
        yield from page.fill(verdict.text, _INDENT, _HANG)
        yield from _remedy(verdict.remedy, page)
    yield from _remedy(one.remedy, page)


def _remedy(remedy: str, page: Page) -> list[str]:
    return page.fill(remedy, _INDENT + "Do: ", _INDENT + "    ")


def _silence(fleet: Fleet, silence: Silence, page: Page) -> Iterator[str]:
    word = Status.ERROR.value
    where = silence.about(fleet.folder.brief(silence.nodes))
    first, *rest = page.fill(where, f"{word:<6}", _INDENT)
    yield page.paint(word, word) + first.removeprefix(word)
    yield from rest
    if silence.reason:
        yield from page.fill(f"{silence.nodes[0]}: {silence.reason}", _INDENT, _HANG)


def _drifts(fleet: Fleet, page: Page) -> Iterator[str]:
    for drift in fleet.drifts[:SHOWN_DRIFTS]:
        yield from page.fill(_drift(fleet, drift), "DRIFT ", _INDENT)
    if len(fleet.drifts) > SHOWN_DRIFTS:
        yield f"… and {counted(len(fleet.drifts) - SHOWN_DRIFTS, 'more fact')} not the same everywhere"


def _drift(fleet: Fleet, drift: Drift) -> str:
    """``nvidia-driver: 570.86 on nid[17,420], known bad (nvidia-…); 580.95.05 on the other 1998``"""
    common, *rare = drift.values.items()
    parts = [(value, fleet.folder.brief(nodes)) for value, nodes in rare]
    parts.append((common[0], f"the other {len(common[1])}"))
    told = (f"{_value(value)} on {where}{known_bad(drift, value)}" for value, where in parts)
    return f"{drift.name}: {'; '.join(told)}"


def known_bad(drift: Drift, value: str) -> str:
    """What is known of a version, in words; nothing, where nothing is."""
    issues = drift.bad.get(value, ())
    more = f" and {len(issues) - SHOWN_ISSUES} more" if len(issues) > SHOWN_ISSUES else ""
    return f", known bad ({', '.join(issues[:SHOWN_ISSUES])}{more})" if issues else ""


def _value(value: str) -> str:
    return shorten(value, 60) or "not found"


def _slow(slow: Sequence[Slow], page: Page) -> Iterator[str]:
    for one in slow[:SHOWN_SLOW]:
        text = (
            f"{one.node}, {one.name}: {one.value:.3g} {one.unit}; the median of {one.peers} nodes with the "
            f"same GPUs is {one.median:.3g} {one.unit}"
        )
        yield from page.fill(text, "SLOW  ", _INDENT)
    if len(slow) > SHOWN_SLOW:
        yield f"… and {counted(len(slow) - SHOWN_SLOW, 'more figure')} out of line"


def _totals(fleet: Fleet, page: Page) -> Iterator[str]:
    counts = [(status, len(fleet.nodes(status))) for status in reversed(Status)]
    words = [f"{count} {status.value}" for status, count in counts if count]
    worst = next((status for status, count in counts if count), Status.SKIP)
    yield from page.close(words or ["no nodes"], f"exit {fleet.exit_code}", worst.value)
