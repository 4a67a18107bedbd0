"""What ``fleet pairs`` prints: bad switches, nodes, links and pairs, as lines or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuipc_doctor.fleet.nodeset import NodeSetFormatter
from gpuipc_doctor.model import Status
from gpuipc_doctor.present.text import counted, sanitise
from gpuipc_doctor.report import sentences

if TYPE_CHECKING:
    from gpuipc_doctor.fleet.pairs import Rounds
    from gpuipc_doctor.fleet.partners import Blame

UNTRIED = "most links between switches were not tested, since neighbours are paired first; add --across"
"""Note on a PASS without ``--across``."""

SHOWN_PAIRS = 8
"""Maximum lines for failed pairs, and for pairs without an answer."""


def untried(found: Blame, *, across: bool) -> str:
    """What a PASS did not test; empty if it tested everything."""
    parts = [] if across else [UNTRIED]
    if found.uncrossed:
        parts.append(f"no link out of {NodeSetFormatter(found.uncrossed).fold(found.uncrossed)} was tested")
    return "; ".join(parts)


def _verdict(wanted: Sequence[str], found: Blame) -> dict[str, str]:
    folder = NodeSetFormatter(wanted)
    certain = [each for each in found.cut if each.is_certain]

    def joined(pairs: Sequence[tuple[str, str]]) -> str:
        return ", ".join(f"{one} - {other}" for one, other in pairs)

    return {
        "bad switches": folder.fold(each.switch for each in certain),
        "nodes behind bad switches": folder.fold(node for each in certain for node in each.nodes),
        "switches cut off, or with only bad nodes": ", ".join(
            f"{each.switch} ({folder.fold(each.nodes)})" for each in found.cut if not each.is_certain
        ),
        "perhaps cut off": folder.fold(found.suspected),
        "bad links between switches": _sides(found.links),
        "bad nodes": folder.fold(found.nodes),
        "bad pairs": joined(found.pairs),
        "unstable nodes": folder.fold(found.unstable),
        "flaky pairs": joined(found.flaky),
        "cannot tell": folder.fold(found.unclear),
        "no answer": folder.fold(found.silent),
    }


def _sides(links: Sequence[tuple[str, str]]) -> str:
    """All links in one line, grouped by the switches at their ends: ``s[1-4] - t1``."""
    folder = NodeSetFormatter(sorted({switch for link in links for switch in link}))
    others: dict[str, set[str]] = {}
    for one, other in links:
        others.setdefault(one, set()).add(other)
    sides: dict[tuple[str, ...], list[str]] = {}
    if links and not set(others) & {other for _, other in links}:
        sides[tuple(sorted({other for _, other in links}))] = sorted(others)
    else:
        for one, those in others.items():
            sides.setdefault(tuple(sorted(those)), []).append(one)
    return "; ".join(f"{folder.fold(ones)} - {folder.fold(those)}" for those, ones in sides.items())


def as_json(wanted: Sequence[str], found: Blame, told: Rounds, left: str) -> str:
    counts = {"nodes": len(wanted), "rounds": len(told.runs), "runs": sum(map(len, told.runs))}
    return json.dumps({**counts, **_verdict(wanted, found), "not tried": left}, indent=2)


def as_text(wanted: Sequence[str], found: Blame, told: Rounds, left: str) -> str:
    runs = sum(map(len, told.runs))
    lines = [f"{len(wanted)} nodes, {counted(runs, 'pair')} tested in {counted(len(told.runs), 'round')}"]
    verdict = {what: which for what, which in _verdict(wanted, found).items() if which}
    lines += [f"{what}: {which}" for what, which in verdict.items()] or ["all pairs pass"]
    for (one, other), report in list(told.failed.items())[:SHOWN_PAIRS]:
        worst = next(r.finding for r in report.results if r.finding.status is Status.FAIL)
        lines.append(f"{one} - {other}: {sentences.summary(worst)}")
    lines += [
        f"{one} - {other}: no answer: {why}" for (one, other), why in list(told.silent.items())[:SHOWN_PAIRS]
    ]
    if left:
        lines.append(left)
    return "\n".join(map(sanitise, lines))
