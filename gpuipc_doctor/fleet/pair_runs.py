"""How probes between two nodes ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass

Pair = tuple[str, str]


class Outcome(enum.Enum):
    """How a probe between two nodes ended."""

    PASS = "pass"
    FAIL = "fail"
    SILENT = "silent"
    """There was no answer: it could not be started, or its report is lost."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the probe between two nodes."""

    pair: Pair
    outcome: Outcome
