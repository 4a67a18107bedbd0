"""What explainers are given, and how they say that a cause explains a failed probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Evidence, Fact, Json, Shown
from gpuipc_doctor.run.causes.node_state import Seen
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
    before: Seen = field(default_factory=dict)
    """The node's state before the first probe; ``seen`` may be a later one."""
    of_site: Mapping[str, str] = field(default_factory=dict)
    """Variable of ``stated`` that the site config sets → ``file:line``."""
    mpi: str = ""
    """The family of the tested MPI (``openmpi``); empty without one."""


Explainer = Callable[[Entry, NodeFacts, Trials], Iterator[Explanation]]


def shown(
    how: Shown,
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
        yield Explanation(cause=Evidence.cause(how, says, values), remedy=remedy)
