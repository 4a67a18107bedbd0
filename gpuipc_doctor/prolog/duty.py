"""What the prolog does, in the guard's child, where it may hang: remember or test, decide, conclude."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.policy import PrologConfig
from gpuipc_doctor.prolog import decision, identity, memory
from gpuipc_doctor.prolog.conclude import conclude
from gpuipc_doctor.prolog.decision import Concern, Decision, Kind
from gpuipc_doctor.prolog.guard import Tell
from gpuipc_doctor.prolog.order import Order
from gpuipc_doctor.prolog.recall import Recall, recall

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json


def do(order: Order, tell: Tell) -> None:
    """Answer from memory, or test the node and answer."""
    tell.doing(f"it read {order.config or 'what it is made of'}")
    recalled = recall(order)
    if recalled.complaint:
        tell.say(f"gpuipc-doctor: {recalled.complaint}")
    if recalled.why_not:
        _test(order, recalled, tell)
        return
    policy = recalled.policy
    text = f"PASS {recalled.age_s:.0f} s ago, and boot, driver, GPUs and config are the same"
    decided = decision.decide([], policy, text)
    if order.explain:
        _explain(order, policy, decided, f"used: passed {recalled.age_s:.0f} s ago", "not needed", tell)
    else:
        conclude(order, policy, decided, tell)


def settle(order: Order, kind: str, what: str, kept: Json, tell: Tell) -> None:
    """Answer for a child that did not (see `guard.Settle`)."""
    policy = PrologConfig.read(kept) if kept else PrologConfig()
    decided = decision.decide([Concern(Kind(kind), f"{Kind(kind).word} {what}")], policy)
    if order.explain:
        tell.answer(decided.exit_code, decided.line)
    else:
        conclude(order, policy, decided, tell)


def _test(order: Order, recalled: Recall, tell: Tell) -> None:
    from gpuipc_doctor.config import SiteConfig, load
    from gpuipc_doctor.model import Tier
    from gpuipc_doctor.plan import UnknownName
    from gpuipc_doctor.prolog import testing, weighing
    from gpuipc_doctor.yamlfile import BadFile

    try:
        site = load(order.config) if order.config else SiteConfig()
        policy = site.prolog
        budget_s = order.budget_s or site.budget_s[Tier.PROLOG]
        tell.ends_at(order.started_at + budget_s)
        tell.keep(policy.written(), _exit_codes(policy))
        report = testing.test(order, site, budget_s, tell.doing)
    except (BadFile, UnknownName) as mistake:
        _refuse(str(mistake), tell)
        return
    decided = decision.decide(weighing.concerns(report), policy, weighing.passed(report))
    if order.explain:
        used = f"{budget_s:g} s from the start of the process; the checks took {report.elapsed_s:.1f} s"
        _explain(order, policy, decided, recalled.why_not, used, tell)
        return
    conclude(order, policy, decided, tell, report)
    if policy.fresh_for_s and not decided.weighed:
        tell.doing("it remembered the pass")
        _remember(order, policy, recalled, tell)


def _exit_codes(policy: PrologConfig) -> dict[str, int]:
    """What each kind alone would exit with; none drains that the breaker should be asked about."""
    if policy.breaker.is_set:
        return {}
    return {kind.value: decision.decide([Concern(kind, "")], policy).exit_code for kind in Kind}


def _remember(order: Order, policy: PrologConfig, recalled: Recall, tell: Tell) -> None:
    passes = recalled.memory.with_pass(recalled.identity, order.gpus, identity.now(), recalled.settings)
    try:
        if not recalled.is_of(order):
            raise memory.Forgotten("pass not remembered: the config has changed during the test")
        memory.remember(Path(policy.state_dir), passes)
    except memory.Forgotten as reason:
        tell.say(f"gpuipc-doctor: {reason}")


def _refuse(mistakes: str, tell: Tell) -> None:
    """Without a policy that can be read there is none, and one mistyped word must not drain a cluster."""
    from gpuipc_doctor.prolog.record import tell_syslog

    lines = mistakes.splitlines()
    line = decision.one_line("ERROR the config is wrong, so nothing was tested and the job starts:", lines[0])
    for mistake in lines:
        tell.say(f"gpuipc-doctor: {mistake}")
    tell.answer(0, line)
    tell_syslog(line, drains=False)


def _explain(
    order: Order, policy: PrologConfig, decided: Decision, remembered: str, budget: str, tell: Tell
) -> None:
    from gpuipc_doctor.prolog import explain

    account = explain.Account(
        config=str(order.config or "none, so the defaults hold"),
        gpus=order.gpus or "all of the node",
        budget=budget,
        memory=remembered,
    )
    tell.answer(decided.exit_code, explain.render(decided, policy, account))
