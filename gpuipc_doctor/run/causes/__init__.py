"""Why did it fail? One list of small functions: (failed probe, facts, trials) → evidence and remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Fact
from gpuipc_doctor.run.causes import chosen_settings, controls, limits
from gpuipc_doctor.run.causes.explaining import Explainer, NodeFacts
from gpuipc_doctor.run.causes.node_state import Seen
from gpuipc_doctor.run.results import Explanation, ResultLog
from gpuipc_doctor.supervise import process_limits

EXPLAINERS: Sequence[Explainer] = (
    controls.part_at_fault,
    controls.other_check,
    limits.hanging_sources,
    limits.not_writable,
    limits.no_room,
    limits.limited_step,
    limits.limited_locked_memory,
    chosen_settings.unknown_interfaces,
    chosen_settings.without_device_memory,
    chosen_settings.components,
    chosen_settings.preloads,
    chosen_settings.expandable_segments,
    chosen_settings.switched_off,
    limits.loopback_is_down,
    limits.host_name,
    limits.between_gpus,
)
"""The most certain first: of several causes the first one counts."""


def explain(
    log: ResultLog,
    before: Seen,
    after: Callable[[], Seen],
    stated: Mapping[str, str],
    inventory: Sequence[Fact] = (),
    checks: Sequence[Check] = (),
) -> None:
    """Attach to each failed probe what explains it.

    ``before`` and ``after``: the node's state before the first probe, and now, which is read only if a probe
    failed. ``stated``: environment variables.
    """
    failed = [entry for entry in log.unsuccessful() if entry.outcome]
    states = (before, after()) if failed else (before,)
    every = [NodeFacts(seen, stated, inventory, checks, log.entries, failed) for seen in states]
    for entry in {id(entry): entry for entry in (*failed, *log.to_cure())}.values():
        if any(finding.key == process_limits.LIMITED for finding in entry.standing):
            continue
        found: list[Explanation] = []
        for explainer in EXPLAINERS:
            for facts in every:
                found += [each for each in explainer(entry, facts, entry.trials) if each not in found]
        entry.explanations = found
