"""Run an MPI probe that hung or crashed once more, with the libraries' logs raised, to hear why.

The log is not raised in the first place because writing it changes the timing, and with it what goes wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuipc_doctor.model import Ending, ProbeOutcome
from gpuipc_doctor.plan import PlannedProbe
from gpuipc_doctor.runner import Runner, conclusions
from gpuipc_doctor.supervise.evidence import TELLING

LINES = 4
"""Lines of a log that a finding is given; the whole of it is in the kept logs."""

_CHANGING = re.compile(r"0x[0-9a-f]+|\d+")

Kind = tuple[str, str, Ending, str]
"""A check, and how its probe ended: in which call, how, by which signal."""


def listen(runner: Runner, louder: Mapping[str, str]) -> None:
    """Do so once for each kind of failure, within the budget; adds lines to the findings' evidence."""
    heard: set[Kind] = set()
    # In the order in which the report tells of them: of several that failed alike it shows the first.
    for planned, outcome in sorted(runner.failed, key=lambda one: (one[0].probe.subject, one[0].probe.name)):
        kind = _kind(planned, outcome)
        if louder and kind and kind not in heard:
            heard.add(kind)
            for line in _again(runner, planned, outcome, louder):
                runner.add_evidence(planned.check.id, outcome, line)


def _kind(planned: PlannedProbe, outcome: ProbeOutcome) -> Kind | None:
    role = outcome.roles.get(outcome.blamed or "")
    if planned.probe.launch is None or role is None:
        return None
    return planned.check.id, role.operation, role.ending, role.signal


def _again(
    runner: Runner, planned: PlannedProbe, outcome: ProbeOutcome, louder: Mapping[str, str]
) -> Iterator[str]:
    probe = planned.probe
    assert probe.launch is not None
    settings = " ".join(f"{name}={value}" for name, value in louder.items())
    launch = replace(probe.launch, env={**probe.launch.env, **louder})
    second = runner.rehearse(replace(planned, probe=replace(probe, launch=launch)))
    if isinstance(second, str):
        yield f"Not run again with {settings}: {second}"
    elif second.completed:
        yield f"Run again with {settings}: went through that time"
    elif second.stopped or _kind(planned, second) != _kind(planned, outcome):
        yield f"Run again with {settings}: {conclusions(planned, second)[0].summary}"
        yield from _news(outcome, second)
    else:
        news = list(_news(outcome, second))
        yield f"Run again with {settings}: the same{', and now it says' if news else ', and it says no more'}"
        yield from news


def _news(first: ProbeOutcome, second: ProbeOutcome) -> Iterator[str]:
    """The telling lines of the second run that the first did not have, apart from their figures.

    Where neither run tells anything, the last lines are better than none. Those of the role that is blamed
    come last: of too many lines the first are left out.
    """
    said = {_CHANGING.sub("", line) for role in first.roles.values() for line in role.log_tail}
    new = [
        f"{role.role}: {line}"
        for role in sorted(second.roles.values(), key=lambda role: role.role == second.blamed)
        for line in role.log_tail
        if line.strip() and _CHANGING.sub("", line) not in said
    ]
    telling = [line for line in new if TELLING.search(line)]
    yield from (telling if telling or any(map(TELLING.search, said)) else new)[-LINES:]
