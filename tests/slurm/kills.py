"""The table of kills in docs/fleet.md, drawn by the tests that kill: victim, time, output of `fleet`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm.test_fleet import told

PAGE = Path(__file__).parents[2] / "docs/fleet.md"

HEAD = "| what | when | what `fleet` says | pass | exit |\n|---|---|---|---|---|\n"


def check(what: str, when: str, into: Path, code: int) -> None:
    """Compare a row of the table with a run's directory: nodes and states, not words.

    With ``GPUIPC_UPDATE_GOLDEN=1``, write the row with the words of this run.
    """
    found = told(into)
    passed = found["nodes"]["pass"] or "none"  # type: ignore[index]
    said = [(missing["nodes"], missing["state"], missing["reason"]) for missing in found["silent"]]  # type: ignore[attr-defined]
    said += [(finding["nodes"], f"FAIL {finding['check']}", finding["says"]) for finding in found["findings"]]  # type: ignore[attr-defined]
    page = PAGE.read_text()
    begin = f"| {what} | {when} | "
    shown = next((line for line in page.splitlines() if line.startswith(begin)), "")
    as_shown = shown.endswith(f" | {passed} | {code} |")
    if as_shown and all(f"{nodes}: {state}" in shown for nodes, state, _ in said):
        return
    if os.environ.get("GPUIPC_UPDATE_GOLDEN") != "1":
        pytest.fail(f"{PAGE.name} has not in its row {shown or begin!r}: {said}, {passed}, {code}")
    words = "; ".join(f"{nodes}: {state}: {reason}" for nodes, state, reason in said) or "nothing"
    row = f"{begin}{words.replace('|', '/')} | {passed} | {code} |"
    if shown:
        PAGE.write_text(page.replace(shown, row))
    else:
        PAGE.write_text(page.replace(HEAD, f"{HEAD}{row}\n"))
