"""What explainers are given, and how they say that a cause explains a failed probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Evidence, EvidenceKind, Fact, Json
from gpuipc_doctor.run.causes.node_state import Seen, list_of
from gpuipc_doctor.run.results import Entry, Explanation

Trials = Sequence[Evidence]
"""What repetitions, reruns and tried workarounds of the failed probe showed."""


@dataclass(frozen=True)
class NodeFacts:
    """What is known of this node. ``stated``: variables of the environment and of the site's ranks."""

    seen: Seen
    stated: Mapping[str, str] = field(default_factory=dict)
    inventory: Sequence[Fact] = ()
    checks: Sequence[Check] = ()
    entries: Sequence[Entry] = ()
    """All probes that ended."""
    failed: Sequence[Entry] = ()

    @property
    def _of_files(self) -> dict[str, tuple[str, str]]:
        """Variable → value and place, of files of parameters."""
        return {n: (value, where) for where, n, value in list_of(self.seen, "parameters") if n.isupper()}

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that are set, also in files of parameters."""
        return {**{name: value for name, (value, _) in self._of_files.items()}, **self.stated}

    @property
    def undo(self) -> Mapping[str, str]:
        """Variable that is set in a file → what to do to unset it."""
        files = self._of_files
        return {name: f"remove {name} from {files[name][1]}" for name in files if name not in self.stated}


Explainer = Callable[[Entry, NodeFacts, Trials], Iterator[Explanation]]


def shown(
    failed: Entry,
    says: str,
    values: Mapping[str, Json],
    remedy: str,
    explains: Callable[[Entry], bool],
    *,
    of_data: bool = False,
) -> Iterator[Explanation]:
    """A cause, if it can explain the failed probe.

    ``of_data``: whether it can also explain what a completed probe found, such as wrong data.
    """
    completed = bool(failed.outcome and failed.outcome.completed)
    if (of_data or not completed) and explains(failed):
        yield Explanation(cause=Evidence(EvidenceKind.CAUSE, says, values), remedy=remedy)
