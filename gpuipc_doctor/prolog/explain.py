"""What ``--explain-decision`` prints: what was known, what the policy says to it, and what follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpuipc_doctor.policy import PrologConfig
from gpuipc_doctor.prolog.decision import Decision
from gpuipc_doctor.report.text import sanitise, wrap

WIDTH = 80
INDENT = 15


@dataclass(frozen=True, slots=True)
class Account:
    """What a run of the prolog went by, in words."""

    config: str
    budget: str
    memory: str
    gpus: str


def render(decided: Decision, policy: PrologConfig, account: Account) -> str:
    """Several lines, the first of which is the one that the prolog prints."""
    rows = [
        ("config", account.config),
        ("GPUs", account.gpus),
        ("budget", account.budget),
        ("memory", account.memory),
        *(
            (f"on_{one.concern.kind.value}", f"{one.action.value}, because of: {one.concern.text}")
            for one in decided.weighed
        ),
        ("shadow", "on" if policy.shadow else "off"),
        ("breaker", _breaker(policy)),
        ("decision", _decision(decided)),
    ]
    lines = [decided.line]
    for name, text in rows:
        lines += wrap(sanitise(text), WIDTH, first=f"{name:<{INDENT}}", rest=" " * INDENT)
    return "\n".join([*lines, "(Explained only: nothing was logged, remembered or counted.)"])


def _breaker(policy: PrologConfig) -> str:
    bounds = []
    if policy.breaker.share < 1:
        bounds.append(f"a share of {policy.breaker.share:g} of the nodes may drain")
    if policy.breaker.directory:
        breaker = policy.breaker
        bounds.append(
            f"{breaker.max_drains} nodes may drain within {breaker.within_s:g} s ({breaker.directory})"
        )
    return "; ".join(bounds) or "none"


def _decision(decided: Decision) -> str:
    if decided.exit_code:
        return f"drain: exit code {decided.exit_code}; the breaker, if there is one, is asked first"
    if decided.withheld:
        return f"the job starts: exit code 0, because {decided.withheld}"
    return "the job starts: exit code 0"
