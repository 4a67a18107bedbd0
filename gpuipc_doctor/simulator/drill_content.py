"""What ``drill`` prints: a table of drills, missed and false findings, totals, or JSON."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gpuipc_doctor.present.terminal import MIN_WIDTH, Page, laid_out
from gpuipc_doctor.present.text import counted, wrap
from gpuipc_doctor.simulator import drill
from gpuipc_doctor.simulator.drilling import Drill
from gpuipc_doctor.simulator.profile import Profile


def all_good(done: Sequence[Drill]) -> bool:
    return bool(done) and all(run.verdict.good for run in done)


def as_json(done: Sequence[Drill], left: int, not_run: Mapping[str, str]) -> str:
    drills = [{**asdict(run), "good": run.verdict.good} for run in done]
    good = all_good(done) and not left and not not_run
    document = {"simulated": True, "good": good, "left": left, "not_run": not_run, "drills": drills}
    return json.dumps(document, indent=2)


class Table:
    """Prints a line or more for each drill as it ends; then missed and false findings, and the totals."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._page = Page(max(shutil.get_terminal_size().columns, MIN_WIDTH))
        first = max(len("profile"), *(len(stated.name) for stated in profiles))
        fixed = (4, 18, 7)
        self._widths = (first, fixed[0], self._page.width - first - sum(fixed) - 4 * 2, *fixed[1:])

    def head(self) -> list[str]:
        return ["SIMULATED", *self._line("profile", "on", "must be found", "outcome", "seconds")]

    def row(self, stated: Profile, runs: Sequence[Drill]) -> list[str]:
        """The line of one profile on one backend: its worst run, and the number of good runs."""
        found = stated.expect[runs[0].backend].findings
        must = "; ".join(dict.fromkeys(f"{expected.check} {expected.status.value}" for expected in found))
        outcome = _outcome(min(runs, key=lambda run: run.verdict.good).verdict)
        if len(runs) > 1:
            outcome += f", {sum(run.verdict.good for run in runs)} of {len(runs)}"
        seconds = sum(run.seconds for run in runs)
        return self._line(stated.name, runs[0].backend, must or "nothing", outcome, f"{seconds:7.1f}")

    def foot(self, done: Sequence[Drill], left: int, not_run: Mapping[str, str]) -> list[str]:
        lines = [""]
        for name, why in not_run.items():
            lines += self._page.fill(f"{name}: {why}", "NOT RUN   ", " " * 10)
        told = Counter(
            (kind, f"{run.profile} on {run.backend}: {item}")
            for run in done
            for kind, items in (
                (
                    "MISSED",
                    (*run.verdict.missed, *(f"{check} did not run" for check in run.verdict.given_up)),
                ),
                ("INVENTED", run.verdict.invented),
                ("ACCEPTED", run.verdict.let_off),
            )
            for item in items
        )
        for (kind, text), times in told.items():
            often = f" ({times} times)" if times > 1 else ""
            lines += self._page.fill(f"{text}{often}", f"{kind:9} ", " " * 10)
        good = sum(run.verdict.good for run in done)
        accepted = sum(len(run.verdict.let_off) for run in done)
        seconds = sum(run.seconds for run in done)
        ended_early = f", {left} not completed" if left else ""
        ended = f"{counted(len(done), 'drill')} in {seconds:.0f} s"
        if accepted:
            lines.append(f"{counted(accepted, 'finding')} accepted: not in 'expect', but caused by a fault")
        return [*lines, f"{ended}: {good} as expected, {len(done) - good} not{ended_early}"]

    def _line(self, *cells: str) -> list[str]:
        wrapped = [wrap(cell, width) for cell, width in zip(cells, self._widths, strict=True)]
        return list(laid_out(wrapped, self._widths))


def _outcome(verdict: drill.DrillResult) -> str:
    parts = (
        (verdict.caught, f"caught {len(verdict.caught)}"),
        (verdict.missed, f"MISSED {len(verdict.missed)}"),
        (verdict.given_up, f"NOT RUN {len(verdict.given_up)}"),
        (verdict.invented, f"INVENTED {len(verdict.invented)}"),
        (verdict.let_off, f"accepted {len(verdict.let_off)}"),
    )
    return ", ".join(text for items, text in parts if items) or "nothing invented"
