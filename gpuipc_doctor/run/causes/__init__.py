"""Why did it fail? One list of small functions: (failed probe, facts, trials) → evidence and remedy.

A cause is tried, stated or measured (`model.Shown`); what is merely there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpuipc_doctor.api import Check
from gpuipc_doctor.model import Fact
from gpuipc_doctor.run.causes import chosen_settings, controls, innocent_lines, limits, setting_trials
from gpuipc_doctor.run.causes.explaining import Explainer, NodeFacts
from gpuipc_doctor.run.causes.node_state import Seen
from gpuipc_doctor.run.causes.setting_trials import Rerun
from gpuipc_doctor.run.results import Explanation, ResultLog
from gpuipc_doctor.site.config import SourcedValue
from gpuipc_doctor.supervise import process_limits

EXPLAINERS: Sequence[Explainer] = (
    controls.part_at_fault,
    controls.other_check,
    limits.hanging_sources,
    limits.not_writable,
    limits.no_room,
    limits.limited_step,
    limits.limited_locked_memory,
    limits.loopback_is_down,
    limits.host_name,
    chosen_settings.chosen,
    limits.between_gpus,
)
"""Of several causes the first one counts: a defect of the node before a setting that would avoid it."""


def explain(
    log: ResultLog,
    before: Seen,
    after: Callable[[], Seen],
    environ: Mapping[str, str],
    inventory: Sequence[Fact] = (),
    checks: Sequence[Check] = (),
    *,
    of_site: Mapping[str, SourcedValue] = MappingProxyType({}),
    mpi: str = "",
    rerun: Rerun | None = None,
) -> None:
    """Attach to each failed probe what explains it.

    ``before`` and ``after``: the node's state before the first probe, and now, which is read only if a probe
    failed. ``of_site``: variables that the site config sets for ranks. ``mpi``: see `NodeFacts`. ``rerun``
    runs a probe without a setting; None: nothing is tried.
    """
    failed = [
        entry
        for entry in log.unsuccessful()
        if entry.outcome and not any(finding.key == process_limits.LIMITED for finding in entry.standing)
    ]
    innocent_lines.leave_out((entry.outcome for entry in log.entries if failed), failed)
    stated = {**environ, **{name: said.value for name, said in of_site.items()}}
    places = {name: said.where for name, said in of_site.items()}
    facts = NodeFacts(before, stated, inventory, checks, log.entries, failed, before, places, mpi)
    if rerun:
        passed = setting_trials.try_without(failed, facts, rerun)
        innocent_lines.leave_out(passed, failed)
    every = (facts, replace(facts, seen=after())) if failed else (facts,)
    for entry in {id(entry): entry for entry in (*failed, *log.to_cure())}.values():
        found: list[Explanation] = []
        for explainer in EXPLAINERS:
            for state in every:
                found += [each for each in explainer(entry, state, entry.trials) if each not in found]
        if not any(each.cause for each in found):
            found += chosen_settings.mentioned(entry, facts)
        entry.explanations = found
