"""The finding for an incomplete probe, by the same rule for every check.

It is a FAIL that names the operation if a role hung, crashed or got a driver error in an armed operation, or
if a library's own thread crashed after the operation. In all other cases, and always if other processes hold
the memory, the cause is unknown and the finding is an ERROR.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuipc_doctor.api.capabilities import instead_of, lacking
from gpuipc_doctor.api.driver_errors import (
    CONTEXT_CREATIONS,
    OUT_OF_MEMORY,
    TEST_CONTEXTS,
    TOO_MANY_PEERS,
    WITH_FEWER_PEERS,
    DriverError,
    room_for,
)
from gpuipc_doctor.api.leak_report import holders
from gpuipc_doctor.api.loop_growth import filled
from gpuipc_doctor.api.meter import THIS_RUN
from gpuipc_doctor.log_lines import place_of_error, reason_of_abort
from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Finding, Json, Shown, Status
from gpuipc_doctor.probe_types import Ending, Observed, ProbeOutcome, RoleOutcome
from gpuipc_doctor.supervise import process_limits
from gpuipc_doctor.supervise.evidence import EXPLANATION
from gpuipc_doctor.supervise.rank import COMPLAINT
from gpuipc_doctor.vendors import SUPPORTED

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU")
"""Signals that say nothing about a driver: sent by a user or by a limit of the system."""

NO_ROOM = "no-room"
"""Key of the ERROR about a GPU on which other processes leave too little memory for any test."""

PLENTY = 0.25
"""Fraction of a device's memory, far larger than what a check may use."""

_BY_DOCUMENTATION = (Ending.DRIVER_ERROR, Ending.CRASHED, Ending.HUNG)
"""Endings in a call that `RoleOutcome.unsupported` excuses."""

_BANNER = re.compile(r"^-{20,}\n\s*(.+?)\n\s*(?:\n|-{20,}$)", re.MULTILINE | re.DOTALL)
"""Pattern for the first paragraph between rules of dashes, as Open MPI's launcher prints it."""


_CALL = "{role}: {call} #{occurrence}{step:place}"
"""Sentence part for a call: ``importer: cuIpcOpenMemHandle #4 (second open of segment 1)``."""


def conclude(outcome: ProbeOutcome) -> Finding:
    """The finding of a probe that was stopped or failed. One that reached a limit of this tool's own
    processes is an ERROR that begins with the limit."""
    if outcome.stopped:
        return _stopped(outcome)
    found = _of_failure(outcome)
    limit = process_limits.reached(outcome)
    is_short = found.key in ("out-of-memory", NO_ROOM)
    if not limit or found.status not in (Status.FAIL, Status.ERROR) or is_short:
        return found
    cause = Evidence.cause(Shown.STATED, process_limits.words(limit), {"limit": outcome.limits[limit]})
    return replace(
        found,
        key=process_limits.LIMITED,
        status=Status.ERROR,
        evidence=(cause, *found.evidence),
        remedy=process_limits.remedy(limit),
    )


def _of_failure(outcome: ProbeOutcome) -> Finding:  # noqa: C901 - a branch for each end, in order
    assert outcome.blamed is not None
    role = outcome.roles[outcome.blamed]
    so_far = _so_far(outcome)
    if role.operation and role.unsupported and role.ending in _BY_DOCUMENTATION:
        return Finding.skip(
            "unsupported",
            f"{_CALL} {{ended}}; by documentation, its library does not support {{gap}}",
            *so_far,
            ended=role.ending.value,
            gap=role.unsupported,
            **_of(role),
        )
    match role.ending:
        case Ending.DRIVER_ERROR:
            assert role.fault is not None
            fault = {"error": role.fault.name, "code": role.fault.code}
            if role.by_design:
                is_limit = role.fault.name in TOO_MANY_PEERS
                return Finding.skip(
                    "not-supported",
                    f"{_CALL} returned {{error}} ({{code}}): {{by_design}}",
                    remedy=WITH_FEWER_PEERS if is_limit else instead_of(outcome.devices, ["legacy-ipc"]),
                    by_design=role.by_design,
                    lacking=[] if is_limit else lacking(role.operation),
                    **_of(role),
                    **fault,
                )
            if _has_no_room(role) or (role.fault.name in OUT_OF_MEMORY and not (free := _plenty(role))):
                if grows := next(filter(None, map(filled, outcome.roles.values())), None):
                    full = Evidence.seen(f"then {_CALL} returned {{error}} ({{code}})", **_of(role), **fault)
                    return replace(grows, evidence=(*grows.evidence, full, *so_far))
                return Finding.error(
                    NO_ROOM if without_room(outcome) else "out-of-memory",
                    f"{_CALL} returned {{error}} ({{code}}): too little device memory is free for the test",
                    *holders(role.holders),
                    *so_far,
                    remedy=f"find the process that holds the memory ({_memory_tool(outcome)}), "
                    "stop it, rerun",
                    **_of(role),
                    **fault,
                )
            if role.fault.name in OUT_OF_MEMORY:
                says = "returned {error} ({code}) with {free:mib} of device memory free"
                return _during(role, "returned-error", says, so_far, free=free, **fault)
            return _during(role, "returned-error", "returned {error} ({code})", so_far, **fault)
        case Ending.CRASHED if outcome.launch and (aborted := _who_aborted(outcome)):
            role, said = aborted
            return _during(role, "aborted", "ended the ranks: {said}", so_far, said=said)
        case Ending.CRASHED if role.signal in FROM_OUTSIDE:
            return Finding.error(
                "killed-from-outside",
                f"{_CALL if role.operation else '{role}'} was killed from outside ({{signal}})",
                *so_far,
                remedy="check dmesg for the OOM killer; else find the program that sent the signal",
                signal=role.signal,
                **_of(role),
            )
        case Ending.CRASHED if role.signal and role.returned:
            says = f"a library's thread ended the process by {{signal}} after {_CALL} had returned"
            return Finding.fail("crashed-in-thread", says, *so_far, signal=role.signal, **_of(role))
        case Ending.CRASHED if role.signal:
            return _during(role, "crashed", "ended the process by {signal}", so_far, signal=role.signal)
        case Ending.CRASHED if outcome.launch and (said := _explanation(role.log_tail)):
            return _during(role, "aborted", "ended the ranks: {said}", so_far, said=said)
        case Ending.CRASHED:
            says = "ended the process with exit code {exit_code}"
            if role.exit_code is None:
                says = "ended the process, whose exit code the launcher did not keep"
            return _during(role, "exited", says, so_far, exit_code=role.exit_code)
        case Ending.HUNG:
            who = " or ".join(outcome.suspects)
            says = "hung ({deadline:s})"
            return _during(role, "hung", says, so_far, role=who, deadline=outcome.deadline_s)
        case Ending.UNKILLABLE:
            says = "hung and cannot be killed: {processes}"
            return _during(role, "unkillable", says, so_far, processes=list(role.kernel))
        case Ending.NOT_STARTED:
            return _not_started(outcome, role, so_far)
        case Ending.UNAVAILABLE:
            reason, _, remedy = role.exception.partition("\n")
            says = "{role}: {reason}"
            return Finding.error("unavailable", says, *so_far, remedy=remedy, role=role.role, reason=reason)
        case Ending.UNFIT:
            lack = list(role.lacking)
            remedy = instead_of(outcome.devices, lack) if lack else ""
            return Finding.skip("unfit", "{reason}", remedy=remedy, reason=role.exception, lacking=lack)
        case Ending.UNRECORDED:
            return Finding.error(
                "unrecorded",
                "{role}: could not write its journal",
                *so_far,
                remedy="check with df and df -i whether the temporary directory is full; if not, a driver "
                "or library closes files that it did not open",
                role=role.role,
            )
        case Ending.PEER_LOST:
            says = "the test's other process ended without giving a reason ({role} waited for it)"
            return Finding.error("partner-lost", says, *so_far, role=role.role)
        case _:
            says = "the check's own code failed, in its role {role!r}: {exception}"
            first = role.exception.partition("\n")[0]
            if place := place_of_error(role.exception):
                first = f"{first} ({place})"
            return Finding.error("check-failed", says, *so_far, role=role.role, exception=first)


def of_launcher(outcome: ProbeOutcome) -> Iterator[Finding]:
    """The finding about a launcher that failed although its ranks succeeded."""
    if outcome.launcher is None or outcome.launch is None:
        return
    launcher, values = outcome.launcher, {"launcher": outcome.launch.command[0]}
    evidence = _lines([line for line in launcher.log_tail if line.strip()][-3:])
    command = shlex.join([*outcome.launch.with_ranks(len(outcome.roles)), "true"])
    remedy = f"run `{command}` by hand: this command probably ends in the same way"
    if launcher.exit_code is None:
        says = "the launcher, {launcher}, had not ended {waited:s} after its ranks"
        yield Finding.fail(
            "launcher-hung", says, *evidence, remedy=remedy, waited=launcher.waited_s, **values
        )
    else:
        says = "the launcher, {launcher}, ended with exit code {exit_code} although its ranks ended with 0"
        yield Finding.warn(
            "launcher-exited", says, *evidence, remedy=remedy, exit_code=launcher.exit_code, **values
        )


def _who_aborted(outcome: ProbeOutcome) -> tuple[RoleOutcome, str] | None:
    """The rank whose MPI library ended all ranks, and its reason; another rank may have ended first."""
    roles = sorted(outcome.roles.values(), key=lambda role: role.role != outcome.blamed)
    return next(((role, said) for role in roles if (said := reason_of_abort(role.log_tail))), None)


def _memory_tool(outcome: ProbeOutcome) -> str:
    tools = [device.vendor.tool for device in outcome.devices]
    return ", ".join(dict.fromkeys(tools or [vendor.tool for vendor in SUPPORTED.values()]))


def _stopped(outcome: ProbeOutcome) -> Finding:
    if outcome.stopped != "budget":
        return Finding.skip("interrupted", "{stopped} while this probe ran", stopped=outcome.stopped)
    if outcome.blamed is None:
        return Finding.skip("budget", "time budget exhausted while this probe ran")
    role = outcome.roles[outcome.blamed]
    return Finding.error(
        "not-returned-in-budget",
        f"{_CALL} had not returned when the time budget ended, before its deadline ({{deadline:s}})",
        *_so_far(outcome),
        remedy="run this check alone or with a larger --budget to find out whether it hangs",
        deadline=outcome.deadline_s,
        **_of(role),
    )


def _has_no_room(role: RoleOutcome) -> bool:
    """Whether a call failed as a context without memory fails, and less is free than a context takes."""
    assert role.fault is not None
    is_unclear = DriverError(role.fault).may_be_out_of_memory
    return is_unclear and any(free < room_for(1, total) for free, total in role.memory)


def without_room(outcome: ProbeOutcome) -> tuple[Device, ...]:
    """The devices on which other processes leave too little free memory for any test, as far as is known."""
    role = outcome.roles.get(outcome.blamed or "")
    if role is None or role.fault is None:
        return ()
    if not role.memory and role.fault.call in CONTEXT_CREATIONS and role.fault.name in OUT_OF_MEMORY:
        return outcome.devices if len(outcome.devices) == 1 else ()
    if len(role.memory) != len(outcome.devices):
        return ()
    ours = sum(holder["held"] for holder in role.holders if holder["whose"] == THIS_RUN)
    return tuple(
        device
        for device, (free, total) in zip(outcome.devices, role.memory, strict=True)
        if free + ours < room_for(TEST_CONTEXTS, total)
    )


def _plenty(role: RoleOutcome) -> int:
    """The least free bytes of the role's devices, if all have more than `PLENTY` free; else 0."""
    are_free = all(free > PLENTY * total for free, total in role.memory)
    return min((free for free, _ in role.memory), default=0) * are_free


def _during(
    role: RoleOutcome, key: str, says: str, so_far: tuple[Evidence, ...], /, **values: Json
) -> Finding:
    """The FAIL that names the armed operation; an ERROR if none was armed."""
    values = {**_of(role), **values}
    if role.operation:
        return Finding.fail(key, f"{_CALL} {says}", *so_far, **values)
    return Finding.error(key, f"{{role}}: {says} outside any driver or MPI call", *so_far, **values)


def _not_started(outcome: ProbeOutcome, role: RoleOutcome, so_far: tuple[Evidence, ...]) -> Finding:
    words = [line.removeprefix(COMPLAINT) for line in role.log_tail if any(map(str.isalnum, line))]
    said = _complaint(role.log_tail) or (words[-1] if words else _no_word(outcome))
    beside = [line for line in words if line.strip() not in said]
    says = "{role}: the worker did not start: {said}"
    return Finding.error("not-started", says, *_lines(beside[-3:]), *so_far, role=role.role, said=said)


def _lines(lines: Sequence[str]) -> Sequence[Evidence]:
    """Lines of a program as data, in which known issues are looked up."""
    return [Evidence.seen("{line}", line=line) for line in lines]


def _of(role: RoleOutcome) -> dict[str, Json]:
    if not role.operation:
        return {"role": role.role}
    return {
        "role": role.role,
        "call": role.operation,
        "occurrence": role.occurrence,
        "step": role.step,
    }


def _no_word(outcome: ProbeOutcome) -> str:
    """Why a worker that never started wrote nothing."""
    if outcome.launch is None:
        return "it printed nothing"
    return f"the launcher, {outcome.launch.command[0]}, started no rank in time and printed nothing"


def _complaint(log: Sequence[str]) -> str:
    """The reason stated in the log by this tool, or else by a launcher; empty if there is none.

    Open MPI's launcher prints a message between rules of dashes; its first paragraph is the reason.
    """
    ours = [line.removeprefix(COMPLAINT) for line in log if line.startswith(COMPLAINT)]
    theirs = _BANNER.findall("\n".join(log))
    return " ".join((ours or theirs or [""])[-1].split())


def _explanation(log: Sequence[str]) -> str:
    """The first sentence of what a launcher explains between rules of dashes, and its ``Key: value`` lines:
    ``A requested component was not found (Framework: pml)``. Empty if it explains nothing."""
    found = EXPLANATION.search("\n".join(log))
    if found is None:
        return ""
    lines = found[0].splitlines()[1:-1]
    sentence, _, _ = " ".join(" ".join(lines).split()).partition(". ")
    named = [" ".join(line.split()) for line in lines if re.fullmatch(r"\s*(?!Host)[A-Z][\w ]+:\s+\S+", line)]
    return sentence.rstrip(".") + (f" ({', '.join(named)})" if named else "")


def _so_far(outcome: ProbeOutcome) -> tuple[Evidence, ...]:
    """What the roles observed before the failure; some of these observations are controls. What several roles
    observed alike is one item."""
    found: dict[tuple[str, str], Evidence] = {}
    times: Counter[tuple[str, str]] = Counter()
    for role in outcome.roles.values():
        for name in Observed:
            if said := role.observed.get(name.value):
                kind = EvidenceKind.CONTROL if name is Observed.CONTROL else EvidenceKind.BEFORE
                same = (name.value, said)
                times[same] += 1
                often = f" ×{times[same]}" if times[same] > 1 else ""
                first = found[same].values if same in found else None
                values = first or {"role": role.role, "name": name.value, "said": said}
                found[same] = Evidence(kind, "before the failure ({role}, {name}): {said}" + often, values)
    return tuple(found.values())
