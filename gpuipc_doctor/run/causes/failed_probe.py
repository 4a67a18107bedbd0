"""What a failed probe shows, by which an explainer decides whether its cause can explain the failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from gpuipc_doctor.api.driver_errors import OUT_OF_MEMORY
from gpuipc_doctor.model import Ending, RoleOutcome
from gpuipc_doctor.run.results import Entry


def labels_of(entry: Entry) -> set[str]:
    return {device.label for device in entry.planned.probe.devices}


def _roles(entry: Entry) -> Iterable[RoleOutcome]:
    return entry.outcome.roles.values() if entry.outcome else ()


def is_of_ranks(entry: Entry) -> bool:
    """Whether the probe's roles are ranks, of MPI or of NCCL."""
    probe = entry.planned.probe
    return probe.launch is not None or all(role.startswith("rank ") for role in probe.roles)


def is_of_ranks_in_a_message(entry: Entry) -> bool:
    blamed = entry.outcome and entry.outcome.blamed and entry.outcome.roles[entry.outcome.blamed]
    return bool(is_of_ranks(entry) and blamed and blamed.operation)


def is_of_collectives(entry: Entry) -> bool:
    return is_of_ranks(entry) and entry.planned.probe.launch is None


def has(ending: Ending) -> Callable[[Entry], bool]:
    """Whether a role of the probe ended in this way."""
    return lambda entry: any(role.ending is ending for role in _roles(entry))


def is_of_driver_start(entry: Entry) -> bool:
    faults = [role.fault for role in _roles(entry) if role.fault]
    return any(fault.call.endswith("Init") for fault in faults)


def is_start_up(entry: Entry) -> bool:
    ended = {role.ending for role in _roles(entry)}
    return is_of_ranks(entry) or bool(ended & {Ending.NOT_STARTED, Ending.UNRECORDED})


def ran_out_of_memory(entry: Entry) -> bool:
    return any(
        (role.fault and (role.fault.name in OUT_OF_MEMORY or "OPERATING_SYSTEM" in role.fault.name))
        or "MemoryError" in role.exception
        or role.ending in (Ending.NOT_STARTED, Ending.CRASHED)
        for role in _roles(entry)
    )


def was_killed(entry: Entry) -> bool:
    return any(role.signal == "SIGKILL" for role in _roles(entry))


def mentions(expression: str) -> Callable[[Entry], bool]:
    """Whether what a role or its launcher printed, or its exception, has a match of the expression."""
    pattern = re.compile(expression)

    def explains(entry: Entry) -> bool:
        launcher = entry.outcome.launcher if entry.outcome else None
        said = [
            line for role in _roles(entry) for line in (*role.log_tail, *role.native_stack, role.exception)
        ]
        return any(map(pattern.search, (*said, *(launcher.log_tail if launcher else ()))))

    return explains


CONCERNS: Mapping[str, Callable[[Entry], bool]] = {
    "nccl": is_of_collectives,
    "pytorch": is_of_collectives,
    "rocm": lambda entry: any(device.backend == "hip" for device in entry.planned.probe.devices),
    "nvidia-driver": lambda entry: True,
    "cuda-driver": lambda entry: len(labels_of(entry)) > 1,  # its only such variable is about peers
}
"""Library → whether a probe uses it; other libraries are MPI's."""

ENDED: Mapping[str, Callable[[Entry], bool]] = {
    "crash": has(Ending.CRASHED),
    "hang": has(Ending.HUNG),
    "data": lambda entry: bool(entry.outcome and entry.outcome.completed),
    "start": is_of_driver_start,
}
"""What an unsafe setting may lead to → whether a probe ended like that."""
