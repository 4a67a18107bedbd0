"""From what speaks against a node to the one line and the exit code, by the site's policy. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.present.text import counted, sanitise, wrap
from gpuipc_doctor.site.policy import Action, PrologConfig

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

MAX_LINE = 200
"""Characters of the line; a drain reason is read in one row of ``sinfo -R``."""

WIDTH, INDENT = 80, 15
"""Columns of an explanation, and of the names in it."""


class Kind(enum.Enum):
    """What the policy tells apart, worst first; the values are those of its keys ``on_…``."""

    FAIL = "fail"
    MISSING = "missing"
    UNKILLABLE = "unkillable"
    ERROR = "error"
    BUDGET = "budget"

    @property
    def is_known_bad(self) -> bool:
        """Whether it speaks against the node, and not only against knowing it."""
        return self in (Kind.FAIL, Kind.MISSING, Kind.UNKILLABLE)

    @property
    def exit_code(self) -> int:
        """Where the policy drains. Neither a shell nor Python nor a program that is missing exits so."""
        return 12 if self.is_known_bad else 11

    @property
    def word(self) -> str:
        return "FAIL" if self.is_known_bad else "ERROR"


class Concern(NamedTuple):
    """One thing that speaks against the node, or against knowing it."""

    kind: Kind
    text: str


class Weighed(NamedTuple):
    """A concern and what the policy does about it."""

    concern: Concern
    action: Action


class Decision(NamedTuple):
    """What the batch system is told."""

    text: str
    """What the line says."""
    weighed: tuple[Weighed, ...] = ()
    """What speaks against the node, the gravest first."""
    withheld: str = ""
    """Why a drain that the policy asks for is not done."""
    mark: str = ""
    """Stands first in the line: that a simulated node was tested."""

    @property
    def action(self) -> Action | None:
        """What the policy does; None where nothing speaks against the node."""
        return self.weighed[0].action if self.weighed else None

    @property
    def exit_code(self) -> int:
        drains = self.action is Action.DRAIN and not self.withheld
        return self.weighed[0].concern.kind.exit_code if drains else 0

    def written(self) -> dict[str, Json]:
        """As the log has it."""
        return {
            "exit_code": self.exit_code,
            "line": self.line,
            "policy": self.action.value if self.action else None,
            "withheld": self.withheld,
            "simulated": bool(self.mark),
            "concerns": [
                {"kind": one.concern.kind.value, "action": one.action.value, "text": one.concern.text}
                for one in self.weighed
            ],
        }

    @property
    def line(self) -> str:
        would = f"would drain, but {self.withheld}:" if self.withheld else ""
        return one_line(self.mark, would, self.text)


def one_line(*parts: str) -> str:
    """Printable, and of at most `MAX_LINE` characters."""
    text = sanitise(" ".join(["gpuipc-doctor:", *filter(None, parts)]))
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def decide(found: Iterable[Concern], policy: PrologConfig, otherwise: str = "") -> Decision:
    """The gravest that the policy does about any concern. ``otherwise``: what to say where there is none."""
    weighed = [Weighed(concern, _action(concern.kind, policy)) for concern in found]
    weighed.sort(key=lambda one: (list(Action).index(one.action), list(Kind).index(one.concern.kind)))
    text = otherwise
    if weighed:
        text = weighed[0].concern.text
        if weighed[0].action is Action.IGNORE:
            text = f"nothing that counts: the policy ignores {counted(len(weighed), 'result')}"
    mark = f"SIMULATED ({policy.simulate})" if policy.simulate else ""
    decided = Decision(text, tuple(weighed), mark=mark)
    return withhold(decided, "shadow mode is on") if policy.shadow and decided.exit_code else decided


def withhold(decided: Decision, why: str) -> Decision:
    """The decision not to drain, although the policy asks for it."""
    return decided._replace(withheld=why)


def _action(kind: Kind, policy: PrologConfig) -> Action:
    action: Action = getattr(policy, f"on_{kind.value}")
    return action


# -- explained ------------------------------------------------------------------------------------------


def explain(decided: Decision, policy: PrologConfig, went_by: Mapping[str, str]) -> str:
    """What ``--explain-decision`` prints: what was known, what the policy says to it, and what follows;
    several lines, the first of which is the one that the prolog prints. ``went_by``: what a run went by, by
    its name."""
    rows = [
        *went_by.items(),
        *(
            (f"on_{one.concern.kind.value}", f"{one.action.value}, because of: {one.concern.text}")
            for one in decided.weighed
        ),
        ("shadow", "on" if policy.shadow else "off"),
        ("breaker", _bounds(policy) or "none"),
        ("decision", _outcome(decided, policy)),
    ]
    lines = [decided.line]
    for name, text in rows:
        lines += wrap(sanitise(text), WIDTH, first=f"{name:<{INDENT}}", rest=" " * INDENT)
    return "\n".join([*lines, "(Explained only: nothing was logged, remembered or counted.)"])


def _bounds(policy: PrologConfig) -> str:
    bounds = []
    if policy.breaker.share < 1:
        bounds.append(f"a share of {policy.breaker.share:g} of the nodes may drain")
    if policy.breaker.directory:
        breaker = policy.breaker
        bounds.append(
            f"{breaker.max_drains} nodes may drain within {breaker.within_s:g} s ({breaker.directory})"
        )
    return "; ".join(bounds)


def _outcome(decided: Decision, policy: PrologConfig) -> str:
    if decided.exit_code:
        asked_first = "; the breaker is asked first" if _bounds(policy) else ""
        return f"drain: exit code {decided.exit_code}{asked_first}"
    if decided.withheld:
        return f"the job starts: exit code 0, because {decided.withheld}"
    return "the job starts: exit code 0"
