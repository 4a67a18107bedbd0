"""From a decision to what others see of it: the breaker is asked, the guard told, and it is written down."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor import __version__
from gpuipc_doctor.policy import Action, PrologConfig
from gpuipc_doctor.prolog import decision, record
from gpuipc_doctor.prolog.decision import Decision
from gpuipc_doctor.prolog.guard import Tell
from gpuipc_doctor.prolog.order import Order

if TYPE_CHECKING:  # importing it takes longer than the prolog has for a remembered answer
    from gpuipc_doctor.model import Json, Report, Result

HOSTNAME = Path("/proc/sys/kernel/hostname")


def conclude(
    order: Order, policy: PrologConfig, decided: Decision, tell: Tell, report: Report | None = None
) -> None:
    """Answer, and then write down what was answered: what goes wrong there is said and changes nothing."""
    host = HOSTNAME.read_text().strip()
    if decided.exit_code and policy.breaker.is_set:
        tell.doing("the breaker was asked")
        unanswered = decision.withhold(decided, "the breaker did not answer")
        tell.answer(unanswered.exit_code, unanswered.line)
        from gpuipc_doctor.prolog import breaker  # not before there is an answer: this, too, can hang

        if refusal := breaker.refusal(policy.breaker, host):
            decided = decision.withhold(decided, refusal)
    tell.answer(decided.exit_code, decided.line)
    tell.doing("it wrote the log")
    if policy.log:
        try:
            record.append(Path(policy.log), entry(order, host, decided, report), policy.log_max_bytes)
        except record.NotLogged as reason:
            tell.say(f"gpuipc-doctor: {reason}")
    if policy.syslog and decided.action in (Action.DRAIN, Action.LOG):
        record.tell_syslog(decided.line, drains=bool(decided.exit_code))


def entry(order: Order, host: str, decided: Decision, report: Report | None) -> dict[str, Json]:
    """One line of the log."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": host,
        "job": order.job,
        "gpus": order.gpus,
        "exit_code": decided.exit_code,
        "line": decided.line,
        "policy": decided.action.value if decided.action else None,
        "withheld": decided.withheld,
        "simulated": bool(decided.mark),
        "concerns": [
            {"kind": one.concern.kind.value, "action": one.action.value, "text": one.concern.text}
            for one in decided.weighed
        ],
        "results": [_result(one) for one in report.results] if report else [],
        "devices": {device.label: device.uuid for device in report.devices} if report else {},
        "elapsed_s": round(time.monotonic() - order.started_at, 3),
        "tool": __version__,
    }


def _result(result: Result) -> dict[str, Json]:
    finding = result.finding
    return {
        "check": result.check,
        "devices": list(result.devices),
        "probe": result.probe,
        "status": finding.status.value,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
        "elapsed_s": round(result.elapsed_s, 3),
    }
