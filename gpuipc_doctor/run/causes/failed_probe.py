"""What a failed probe shows, by which an explainer decides whether its cause can explain the failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from gpuipc_doctor.api.driver_errors import OUT_OF_MEMORY
from gpuipc_doctor.log_lines import CHATTER, how_telling
from gpuipc_doctor.model import Trial
from gpuipc_doctor.probe_types import Ending, Observed, RoleOutcome
from gpuipc_doctor.run.results import Entry
from gpuipc_doctor.supervise.evidence import EXPLANATION

_AT_FAULT = (
    Ending.DRIVER_ERROR,
    Ending.EXCEPTION,
    Ending.UNAVAILABLE,
    Ending.CRASHED,
    Ending.HUNG,
    Ending.NOT_STARTED,
    Ending.UNRECORDED,
)
"""Endings of roles that failed themselves. The others were ended by this tool or lost their partner."""

_SAYS_WHY = re.compile(
    r"no space|read-only|denied|not permitted|unavailable|cannot|can.t |unable|no (?:such|route|usable|data)|"
    r"unreachable|refused|timed out|not found|known|unexpected|invalid",
    re.IGNORECASE,
)
_MESSAGE = re.compile(
    r"ncclCommInit|MPI_(?:I?[bsr]?send|I?recv|I?barrier|I?bcast|I?all|I?reduce|I?gather|I?scatter|I?e?x?scan|"
    r"R?put|R?get$|R?get_acc|R?acc|fetch|compare|win_)",
    re.IGNORECASE,
)
"""Calls after which ranks have reached each other."""


def labels_of(entry: Entry) -> set[str]:
    return {device.label for device in entry.planned.probe.devices}


def _roles(entry: Entry) -> Iterable[RoleOutcome]:
    return entry.outcome.roles.values() if entry.outcome else ()


def blamed(entry: Entry) -> RoleOutcome | None:
    return entry.outcome.roles.get(entry.outcome.blamed or "") if entry.outcome else None


def own_words(entry: Entry) -> list[str]:
    """What the failed roles said of their failure: lines that report an error, a launcher's explanation,
    exceptions, native frames. Not their whole logs."""
    said = []
    logs = [role.log_tail for role in _roles(entry) if role.ending in _AT_FAULT]
    if entry.outcome and entry.outcome.launcher:
        logs.append(entry.outcome.launcher.log_tail)
    for log in logs:
        said += [line for line in log if (how_telling(line) or _SAYS_WHY.search(line))]
        if explained := EXPLANATION.search("\n".join(log)):
            said += explained[0].splitlines()
    for role in _roles(entry):
        if role.ending in _AT_FAULT:
            said += [role.exception, *role.native_stack, role.observed.get(Observed.WARNED.value, "")]
    return [line for line in said if line and not CHATTER.search(line)]


def says(expression: str) -> Callable[[Entry], bool]:
    """Whether the failed roles' `own_words` have a match of the expression."""
    pattern = re.compile(expression)
    return lambda entry: any(map(pattern.search, own_words(entry)))


def is_of_ranks(entry: Entry) -> bool:
    """Whether the probe's roles are ranks, of MPI or of NCCL."""
    probe = entry.planned.probe
    return probe.launch is not None or all(role.startswith("rank ") for role in probe.roles)


def is_of_collectives(entry: Entry) -> bool:
    return is_of_ranks(entry) and entry.planned.probe.launch is None


def is_before_messages(entry: Entry) -> bool:
    """Whether the ranks failed before they had reached each other: after that, what only the start needs
    cannot have failed."""
    role = blamed(entry)
    done = [calls.operation for calls in role.calls] if role else []
    if role and role.occurrence > 1:
        done.append(role.operation)
    return is_of_ranks(entry) and not any(map(_MESSAGE.match, done))


def is_untried(entry: Entry) -> bool:
    """Whether no trial without a setting helped: then what only makes a failure likely may be its cause."""
    return Trial.HELPS not in entry.without.values()


def lacks_room(expression: str) -> Callable[[Entry], bool]:
    """Whether a probe failed as one does without room for its files: its words say so; or at the start of
    ranks, by SIGBUS or without a word."""

    def explains(entry: Entry) -> bool:
        role = blamed(entry)
        has_bus_error = bool(role and role.signal == "SIGBUS")
        is_likely = has_bus_error or (not own_words(entry) and is_untried(entry))
        return says(expression)(entry) or (is_before_messages(entry) and is_likely)

    return explains


def has(*endings: Ending) -> Callable[[Entry], bool]:
    """Whether a role of the probe ended in one of these ways."""
    return lambda entry: any(role.ending in endings for role in _roles(entry))


def is_of_driver_start(entry: Entry) -> bool:
    faults = [role.fault for role in _roles(entry) if role.fault]
    return any(fault.call.endswith("Init") for fault in faults)


def ran_out_of_host_memory(entry: Entry) -> bool:
    return any(
        (role.fault and (role.fault.name in OUT_OF_MEMORY or "OPERATING_SYSTEM" in role.fault.name))
        or "MemoryError" in role.exception
        for role in _roles(entry)
    ) and not any(finding.key == "out-of-memory" for finding in entry.standing)


def was_killed(entry: Entry) -> bool:
    """Whether the blamed role was killed, but not by this tool, which ends roles that hang. Launchers kill
    the other ranks."""
    role = blamed(entry)
    return bool(role and role.ending is Ending.CRASHED and role.signal == "SIGKILL")


CONCERNS: Mapping[str, Callable[[Entry], bool]] = {
    "nccl": is_of_collectives,
    "pytorch": is_of_collectives,
    "rocm": lambda entry: any("rocm" in device.vendor.facts for device in entry.planned.probe.devices),
    "nvidia-driver": lambda entry: True,
    # without the only such variable no probe can run: see `limits.between_gpus`
    "cuda-driver": lambda entry: False,
}
"""Library → whether a probe uses it; other libraries are MPI's."""

ENDED: Mapping[str, Callable[[Entry], bool]] = {
    "crash": has(Ending.CRASHED),
    "hang": has(Ending.HUNG),
    "data": lambda entry: bool(entry.outcome and entry.outcome.completed),
    "start": is_of_driver_start,
}
"""What an unsafe setting may lead to → whether a probe ended like that."""
