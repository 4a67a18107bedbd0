"""Versions and variables in logs: facts of the nodes that wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuipc_doctor.diagnose.error_lines import LOG_LINES
from gpuipc_doctor.files.tables import table
from gpuipc_doctor.knownissues.conditions import ENV
from gpuipc_doctor.model import Fact

MOST_VALUES = 16
"""Maximum values kept per name: logs of many nodes may be mixed."""

_V = r"(\d+(?:\.\d+)+[\w.-]*)"


def patterns(facts_asked_for: Iterable[str]) -> list[tuple[str, str]]:
    """(fact, regular expression with the fact's value in its first group); variables only if requested."""
    return [
        *(
            (name, text.replace("{V}", _V))
            for name, texts in table(LOG_LINES)["facts"].items()
            for text in texts
        ),
        *((name, _variable(name.removeprefix(ENV))) for name in facts_asked_for if name.startswith(ENV)),
    ]


def _variable(name: str) -> str:
    """Pattern for a set variable as a shell, Cray MPICH (``MPICH_ENV_DISPLAY``) or NCCL prints it. It does
    not match prose."""
    before = r"(?:.{0,60}(?:\$|\+|>|export|setenv|-x|PE \d+:) +)?(?:[A-Za-z_]\w*=\S* +)*"
    return (
        rf"(?:^{before}|(?<= )(?=\w+ set by )){re.escape(name)}"
        r"(?: *= *| set by (?:environment|user) to )[\"']?([^\s\"';,`]+)"
    )


class Facts:
    """Facts in logs, each value with its first line."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, Fact]] = {}

    def add(self, name: str, value: str, source: str) -> None:
        values = self._facts.setdefault(name, {})
        value = value.rstrip(".-")
        if value not in values and len(values) < MOST_VALUES:
            values[value] = Fact(name, value, source)

    def all(self) -> tuple[Fact, ...]:
        return tuple(fact for values in self._facts.values() for fact in values.values())
