"""Results of probes between two nodes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

Pair = tuple[str, str]


class Outcome(enum.Enum):
    """Result of a probe between two nodes."""

    PASS = "pass"
    FAIL = "fail"
    SILENT = "silent"
    """No answer: the probe could not be started, or its report was lost."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a probe between two nodes."""

    pair: Pair
    outcome: Outcome
