"""What it means that a probe did not complete: the same answer for every check.

Ended while an operation was armed, by a hang, a signal or a driver error: FAIL, naming the operation. Ended
while nothing was armed, or for want of memory that others hold: ERROR, for then we could not tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuipc_doctor.gpu import OUT_OF_MEMORY
from gpuipc_doctor.model import Ending, Finding, ProbeOutcome, RoleOutcome
from gpuipc_doctor.supervise.rank import COMPLAINT

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU")
"""Signals that say nothing of a driver: somebody, or a limit of the system, ends processes here."""

_BANNER = re.compile(r"^-{20,}\n\s*(.+?)\n\s*(?:\n|-{20,}$)", re.MULTILINE | re.DOTALL)
"""The first paragraph of what stands between rules."""


def conclude(outcome: ProbeOutcome) -> Finding:
    """The finding of a probe that was stopped or that went wrong."""
    if outcome.stopped == "budget" and outcome.blamed:
        return Finding.error(
            f"{_where(outcome.roles[outcome.blamed])} had not returned when the run's budget ended",
            *_so_far(outcome),
            remedy="run this check alone, or with a larger --budget, to see whether it hangs",
        )
    if outcome.stopped == "budget":
        return Finding.skip("budget: the run's time was up while this probe ran")
    if outcome.stopped:
        return Finding.skip(f"{outcome.stopped} while this probe ran")
    assert outcome.blamed is not None
    role = outcome.roles[outcome.blamed]
    evidence = _so_far(outcome)
    match role.ending:
        case Ending.DRIVER_ERROR:
            assert role.fault is not None
            if role.fault.name in OUT_OF_MEMORY:
                return Finding.error(
                    f"{_where(role)} returned {role.fault.name} ({role.fault.code}): "
                    "too little device memory is free to test with",
                    *evidence,
                    remedy="see who holds the memory (nvidia-smi, rocm-smi), end it, run again",
                )
            what = f"returned {role.fault.name} ({role.fault.code})"
        case Ending.CRASHED if role.signal in FROM_OUTSIDE:
            return Finding.error(
                f"{_where(role) if role.operation else role.role} was killed from outside ({role.signal})",
                *evidence,
                remedy="see whether the kernel ran out of memory (dmesg), and who else kills processes here",
            )
        case Ending.CRASHED:
            what = f"ended the process by {role.signal}" if role.signal else _exited(role)
        case Ending.HUNG:
            what = f"hung ({outcome.deadline_s:g} s)"
        case Ending.UNKILLABLE:
            what = f"hung and cannot be killed: {'; '.join(role.kernel)}"
        case Ending.NOT_STARTED:
            words = [line.removeprefix(COMPLAINT) for line in role.log_tail if any(map(str.isalnum, line))]
            said = _complaint(role.log_tail) or (words[-1] if words else _no_word(outcome))
            beside = [line for line in words if line.strip() not in said]
            return Finding.error(f"{role.role}: the worker did not start: {said}", *beside[-3:], *evidence)
        case Ending.UNAVAILABLE:
            reason, _, remedy = role.exception.partition("\n")
            return Finding.error(f"{role.role}: {reason}", *evidence, remedy=remedy)
        case Ending.UNFIT:
            return Finding.skip(role.exception)
        case Ending.PEER_LOST:
            return Finding.error(f"{role.role}: its partner ended without a reason of its own", *evidence)
        case _:
            text = role.exception.partition("\n")[0]
            return Finding.error(f"{role.role}: the check's own code failed: {text}", *evidence)
    if role.operation:
        return Finding.fail(f"{_where(role)} {what}", *evidence)
    return Finding.error(f"{role.role}: {what} while no operation was armed", *evidence)


def _no_word(outcome: ProbeOutcome) -> str:
    """Why a worker that never began may have left nothing."""
    if outcome.launch is None:
        return "it left no word"
    return f"the launcher, {outcome.launch.command[0]}, started no rank in time and said nothing"


def _complaint(log: Sequence[str]) -> str:
    """What stood in the way by the log, in our own words, else in those of a launcher; empty if neither.

    Open MPI's draws rules of dashes around what it says, and says the reason first.
    """
    ours = [line.removeprefix(COMPLAINT) for line in log if line.startswith(COMPLAINT)]
    theirs = _BANNER.findall("\n".join(log))
    return " ".join((ours or theirs or [""])[-1].split())


def _exited(role: RoleOutcome) -> str:
    return f"ended the process with exit code {role.exit_code}"


def _where(role: RoleOutcome) -> str:
    """``importer: cuIpcOpenMemHandle #4 (second open of segment 1)``"""
    step = f" ({role.step})" if role.step else ""
    return f"{role.role}: {role.operation} #{role.occurrence}{step}"


def _so_far(outcome: ProbeOutcome) -> tuple[str, ...]:
    """What the roles had put in words by then: often the control that makes the failure telling."""
    return tuple(
        f"before that, {role.role}: {key}: {value}"
        for role in outcome.roles.values()
        for key, value in role.records.items()
        if isinstance(value, str) and value
    )
