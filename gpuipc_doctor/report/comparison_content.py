"""Content of a comparison of two reports, for a terminal and a ticket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Device, Status
from gpuipc_doctor.present import markdown, terminal
from gpuipc_doctor.present.blocks import Block, Closing, Entry, Item, Lines, Table, do, table
from gpuipc_doctor.present.text import counted, fold_subjects, quantity
from gpuipc_doctor.report import acceptance, json_documents, sentences
from gpuipc_doctor.report.check_changes import ChangeKind, CheckChange
from gpuipc_doctor.report.comparison import MEANINGS, Comparison, DeviceChange, Match, Side
from gpuipc_doctor.report.speed import DOUBT, Speed, SpeedVerdict
from gpuipc_doctor.report_types import Relation

MOST_ROWS = 20
"""Maximum rows of slower or faster quantities; the JSON has all."""

MOST_NEWS = 8
"""Maximum lines of news at the top of a node's screen."""

NOT_RUN = "-"

_CHANGED = (SpeedVerdict.SLOWER, SpeedVerdict.FASTER)

DESCRIBED = (ChangeKind.WORSE, ChangeKind.NO_LONGER_TESTED, ChangeKind.FAILS_OTHERWISE)
"""Changes that get an entry with their finding."""

KIND = json_documents.Kind(
    "gpuipc-doctor/comparison/3",
    Comparison,
    "Changes from one report to another.",
    {"exit_code": json_documents.codes(MEANINGS)},
)
dumps = KIND.dumps


def screen(comparison: Comparison, *, width: int = 80, color: bool = False) -> str:
    """The screen, in lines of at most ``width`` columns, ending in a newline."""
    code = comparison.exit_code
    simulated = dict.fromkeys(filter(None, (comparison.before.simulated, comparison.after.simulated)))
    words = [f"SIMULATED ({', '.join(simulated)})"] if simulated else []
    closing = Closing([*words, *_totals(comparison)], f"exit {code}", code.name)
    return terminal.screen([*_blocks(comparison), closing], width=width, color=color)


def ticket(comparison: Comparison) -> str:
    """The comparison as Markdown, ending in a newline."""
    simulated = "SIMULATED: " if comparison.before.simulated or comparison.after.simulated else ""
    head = f"{simulated}{', '.join(_totals(comparison))} (exit {comparison.exit_code})"
    return markdown.render(head, _blocks(comparison))


def _blocks(comparison: Comparison) -> Iterator[Block]:
    yield from _simulated(comparison.before, comparison.after)
    if verdict := comparison.acceptance:
        yield acceptance.heading(verdict, comparison.reason)
    yield _sides(comparison.before, comparison.after)
    yield Lines(tuple(f"Note: {note}" for note in comparison.notes))
    facts = ((fact.name, fact.before or NOT_RUN, fact.after or NOT_RUN) for fact in comparison.inventory)
    yield from table(("inventory", "before", "after"), facts)
    yield from table(("device", "before", "after", ""), _devices(comparison))
    yield from table(("check", "on", "before", "after", ""), _checks(comparison))
    yield from _entries(comparison)
    issues = ((change.issue, *statuses(change.before, change.after)) for change in comparison.issues)
    yield from table(("known issue", "before", "after"), issues)
    for pace in _CHANGED:
        rows = list(_speeds(comparison.speeds.of(pace)))
        yield from table((pace.value, "in", "before", "after", "ratio (bounds)"), rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            yield Lines((f"… and {len(rows) - MOST_ROWS} more that are {pace.value}: see --json",))
    yield Lines(tuple(_on_speed(comparison)))


def _totals(comparison: Comparison) -> list[str]:
    turns = Counter({turn: sum(len(v.subjects) for v in comparison.turned(turn)) for turn in ChangeKind})
    issues = len(comparison.issues)
    words = [f"{turns[turn]} {turn.value}" for turn in ChangeKind if turns[turn]]
    words += [f"{len(found)} {pace.value}" for pace in _CHANGED if (found := comparison.speeds.of(pace))]
    words += [f"{counted(issues, 'known issue')} changed"] if issues else []
    return words or ["nothing to compare"]


def _simulated(before: Side, after: Side) -> Iterator[Lines]:
    sides = (("before", before), ("after", after))
    simulated = ((name, side.simulated) for name, side in sides if side.simulated)
    yield Lines(tuple(dict.fromkeys(filter(None, (before.untried, after.untried)))))
    yield Lines(
        tuple(f"SIMULATED {name} (profile {profile}): no real GPU was tested" for name, profile in simulated)
    )


def _sides(before: Side, after: Side) -> Table:
    return Table(
        (
            ("", "before", "after"),
            ("node", before.host, after.host),
            ("run at", *(side.started.replace("T", " ")[:19] for side in (before, after))),
            (
                "tier",
                *(s.tier.label + f", {s.repetitions} times" * (s.repetitions > 1) for s in (before, after)),
            ),
            ("gpuipc-doctor", before.tool_version, after.tool_version),
        )
    )


def _devices(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows for the changed devices. Replaced GPUs are left out if the reports are from different nodes."""
    before, after = comparison.before, comparison.after
    same_node = (before.host, before.simulated) == (after.host, after.simulated)
    for match in comparison.devices:
        if match.fate is not DeviceChange.SAME and (same_node or match.fate is not DeviceChange.REPLACED):
            yield _label(match), _device(match.before), _device(match.after), match.fate.value


def _label(match: Match) -> str:
    return " → ".join(dict.fromkeys(device.label for device in (match.before, match.after) if device))


def _device(device: Device | None) -> str:
    return f"{device.name}, {device.uuid}" if device else NOT_RUN


_ROWS = (*DESCRIBED, ChangeKind.SAME, ChangeKind.BETTER, ChangeKind.NEWLY_TESTED)


def _checks(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for turn in _ROWS:
        for verdict in comparison.turned(turn):
            if turn is not ChangeKind.SAME or verdict.after in (Status.FAIL, Status.ERROR):
                changed = statuses(verdict.before, verdict.after)
                yield verdict.check, fold_subjects(verdict.subjects) or "node", *changed, turn.value


def _entries(comparison: Comparison) -> Iterator[Entry]:
    for turn in DESCRIBED:
        for verdict in comparison.turned(turn):
            if verdict.after and verdict.finding:
                finding = verdict.finding
                items = (Item(sentences.headline(finding), hang=0), do(finding.remedy))
                yield Entry(verdict.after.value, _title(verdict), items)


def news(comparison: Comparison) -> Entry:
    """What is new since the earlier report, for the top of the later one's screen."""
    before = comparison.before
    host = f" on {before.host}" if before.host != comparison.after.host else ""
    lines = [f"{v.after.value} {_title(v)}" for turn in DESCRIBED for v in comparison.turned(turn) if v.after]
    lines += [f"not run: {_title(v)}" for turn in DESCRIBED for v in comparison.turned(turn) if not v.after]
    lines += [
        f"{fact.name} {fact.after or 'not found'}, was {fact.before or 'not found'}"
        for fact in comparison.inventory
    ]
    gone = [_label(match) for match in comparison.devices if match.fate is DeviceChange.GONE]
    lines += [f"{label} is gone" for label in gone]
    if more := len(lines) - MOST_NEWS:
        lines[MOST_NEWS:] = [f"and {more} more: gpuipc-doctor compare BEFORE AFTER"] if more > 0 else []
    since = f"since {before.started.replace('T', ' ')[:16]}{host}"
    title = f"{since}:" if lines else f"{since}: nothing is worse, no longer tested, or of another version"
    return Entry(
        "NEW", title, tuple(map(Item, lines)), look=Status.WARN.value if lines else Status.PASS.value
    )


def _title(verdict: CheckChange) -> str:
    where = fold_subjects(verdict.subjects)
    return f"{verdict.check}{f' on {where}' if where else ''}, {was(verdict.before)}"


def was(before: Status | None) -> str:
    return f"was {before.value}" if before else "had not run"


def statuses(*sides: Status | Relation | None) -> Iterator[str]:
    return (side.value if side else NOT_RUN for side in sides)


# -- speed ----------------------------------------------------------------------------------------------


def _speeds(speeds: Sequence[Speed]) -> Iterator[tuple[str, ...]]:
    """For each quantity of a check, the row of the subject that changed most; largest change first."""
    groups = by_key(
        ((speed.quantity.name, speed.quantity.check), speed)
        for speed in sorted(speeds, key=_change, reverse=True)
    )
    for (name, check), group in groups.items():
        first = group[0]
        where = fold_subjects(speed.quantity.subject for speed in group)
        unit = first.quantity.unit
        figures = (_figure(value, unit) for value in (first.before, first.after))
        yield name, f"{check} on {where}" if where else check, *figures, _ratio(first)


def _change(speed: Speed) -> float:
    assert speed.ratio is not None
    return max(speed.ratio.estimate, 1 / speed.ratio.estimate)


def _ratio(speed: Speed) -> str:
    assert speed.ratio is not None
    return f"{speed.ratio.estimate:.3g} ({speed.ratio.low:.3g} to {speed.ratio.high:.3g})"


def _figure(value: float, unit: str) -> str:
    """A value with its unit: ``38 µs`` for 0.000038 s; other units are unchanged."""
    if unit == "s":
        value, unit = next((value * by, name) for by, name in _SCALES if value * by < 1000 or by == 1)
    return quantity(value, unit)


_SCALES = ((1e6, "µs"), (1e3, "ms"), (1.0, "s"))


def _on_speed(comparison: Comparison) -> Iterator[str]:
    speeds = comparison.speeds
    control = speeds.control
    if control is None:
        yield "Speed: no probe was completed in both reports."
        return
    if control.samples == (1, 1):
        yield f"Speed: one sample each, cannot tell; run both with --repeat {speeds.needed} or more."
        return
    told = [speed for speed in speeds.all if speed.pace is not SpeedVerdict.TOO_FEW]
    few = len(speeds.all) - len(told)
    if told:
        found = ", ".join(f"{len(speeds.of(pace))} {pace.value}" for pace in _CHANGED)
        yield (
            f"Speed: {len(told)} quantities compared: {found}. Changes within "
            f"{100 * comparison.tolerance:g} % are ignored. All intervals together have a confidence of "
            f"{100 - 100 * DOUBT:g} %."
        )
    if few:
        yield (
            f"Speed: {few} quantities have too few samples ({control.samples[0]} and "
            f"{control.samples[1]} repetitions), cannot tell; run both with --repeat {speeds.needed} or more."
        )
    if control.ratio:
        was, now = (_figure(value, "s") for value in (control.before, control.after))
        yield (
            f"Control: starting a worker without a driver took {was} before and {now} after: ratio "
            f"{_ratio(control)}. Only changes beyond this ratio count."
        )
