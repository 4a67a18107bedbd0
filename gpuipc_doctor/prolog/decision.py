"""Decide the one line and the exit code from a node's concerns, by the site's policy."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor import __version__, node_name
from gpuipc_doctor.present.text import sanitise
from gpuipc_doctor.site.policy import Action, PrologConfig

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from gpuipc_doctor.model import Json

MAX_LINE = 200
"""Maximum characters of the line; `sinfo -R` shows a drain reason in one row."""


class Kind(enum.Enum):
    """The outcomes that the policy distinguishes, worst first. The policy has a key for each: ``on_`` and the
    outcome's value."""

    FAIL = "fail"
    MISSING = "missing"
    UNKILLABLE = "unkillable"
    ERROR = "error"
    BUSY = "busy"
    BUDGET = "budget"

    @property
    def is_known_bad(self) -> bool:
        """Whether the outcome means a bad node, not merely an unknown state."""
        return self in (Kind.FAIL, Kind.MISSING, Kind.UNKILLABLE)

    @property
    def exit_code(self) -> int:
        """Exit code if the policy drains the node. Shells, Python and missing programs never use this
        code."""
        return 12 if self.is_known_bad else 11

    @property
    def word(self) -> str:
        return "FAIL" if self.is_known_bad else "ERROR"


class Concern(NamedTuple):
    """One reason to reject the node, or to consider its state unknown."""

    kind: Kind
    text: str


class Weighed(NamedTuple):
    """A concern with the policy's action."""

    concern: Concern
    action: Action


class Decision(NamedTuple):
    """The answer for the batch system."""

    text: str
    weighed: tuple[Weighed, ...] = ()
    """The concerns about the node, most severe first."""
    withheld: str = ""
    """Why the drain that the policy demands is not done."""
    mark: str = ""
    """Prefix of the line if a simulated node was tested."""

    @property
    def action(self) -> Action | None:
        """The policy's action; None without a concern."""
        return self.weighed[0].action if self.weighed else None

    @property
    def exit_code(self) -> int:
        drains = self.action is Action.DRAIN and not self.withheld
        return self.weighed[0].concern.kind.exit_code if drains else 0

    def written(self) -> dict[str, Json]:
        """The decision in the log's form."""
        return {
            "exit_code": self.exit_code,
            "line": self.line,
            "policy": self.action.value if self.action else None,
            "withheld": self.withheld,
            "simulated": bool(self.mark),
            "concerns": [
                {
                    "kind": entry.concern.kind.value,
                    "action": entry.action.value,
                    "text": entry.concern.text,
                }
                for entry in self.weighed
            ],
        }

    @property
    def line(self) -> str:
        would = f"would drain, but {self.withheld}:" if self.withheld else ""
        return one_line(self.mark, would, self.text)


def one_line(*parts: str) -> str:
    """Make the text printable and no longer than `MAX_LINE` characters."""
    text = sanitise(" ".join(["gpuipc-doctor:", *filter(None, parts)]))
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def decide(found: Iterable[Concern], policy: PrologConfig, otherwise: str = "") -> Decision:
    """Choose the most severe action that the policy has for the concerns. Without concerns, the text is
    ``otherwise``."""
    weighed = [Weighed(concern, _action(concern.kind, policy)) for concern in found]
    weighed.sort(key=lambda one: (list(Action).index(one.action), list(Kind).index(one.concern.kind)))
    text = otherwise
    if weighed:
        text = weighed[0].concern.text
        if weighed[0].action is Action.IGNORE:
            text = f"the policy ignores every result ({len(weighed)})"
    mark = f"SIMULATED ({policy.simulate})" if policy.simulate else ""
    decided = Decision(text, tuple(weighed), mark=mark)
    if not decided.exit_code:
        return decided
    if policy.shadow:
        return decided._replace(withheld="shadow mode is on")
    if place(node_name.full()) >= policy.share:
        return decided._replace(withheld=f"prolog.breaker.share ({policy.share:g}) exempts this node")
    return decided


def place(node: str) -> float:
    """A number from 0 to 1, evenly distributed over nodes. It depends on the node and on this tool's
    version."""
    import zlib

    return zlib.crc32(f"{node} {__version__}".encode()) / 2**32


def _action(kind: Kind, policy: PrologConfig) -> Action:
    action: Action = getattr(policy, f"on_{kind.value}")
    return action
