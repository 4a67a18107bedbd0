"""From what speaks against a node to the one line and the exit code, by the site's policy. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor import __version__, node_name
from gpuipc_doctor.present.text import counted, sanitise
from gpuipc_doctor.site.policy import Action, PrologConfig

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json

MAX_LINE = 200
"""Characters of the line; a drain reason is read in one row of ``sinfo -R``."""


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
    """Choose the most severe action of the policy; ``otherwise`` is the text if there is no concern."""
    weighed = [Weighed(concern, _action(concern.kind, policy)) for concern in found]
    weighed.sort(key=lambda one: (list(Action).index(one.action), list(Kind).index(one.concern.kind)))
    text = otherwise
    if weighed:
        text = weighed[0].concern.text
        if weighed[0].action is Action.IGNORE:
            text = f"nothing that counts: the policy ignores {counted(len(weighed), 'result')}"
    mark = f"SIMULATED ({policy.simulate})" if policy.simulate else ""
    decided = Decision(text, tuple(weighed), mark=mark)
    if not decided.exit_code:
        return decided
    if policy.shadow:
        return decided._replace(withheld="shadow mode is on")
    if place(node_name.full()) >= policy.share:
        return decided._replace(withheld=f"this node is not in the share of {policy.share:g} that may")
    return decided


def place(node: str) -> float:
    """Number from 0 to 1, by a node's name and the tool's version: another release meets other nodes."""
    import zlib

    return zlib.crc32(f"{node} {__version__}".encode()) / 2**32


def _action(kind: Kind, policy: PrologConfig) -> Action:
    action: Action = getattr(policy, f"on_{kind.value}")
    return action
