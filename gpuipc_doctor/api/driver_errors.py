"""What a driver's call that does not return success means: the error, and which kind it is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.vendors import SUPPORTED

Made = TypeVar("Made")

_ERRORS = tuple(vendor.errors for vendor in SUPPORTED.values())

ALREADY_MAPPED = frozenset().union(*(errors.already_mapped for errors in _ERRORS))
"""The driver's error if another mapping overlaps the requested one."""

REFUSALS = ALREADY_MAPPED.union(*(errors.refused for errors in _ERRORS))
"""Errors with which a healthy driver refuses to export or open a handle.

``INVALID_*`` are documented for ``cuIpcGetMemHandle``, ``cuIpcOpenMemHandle`` and their HIP counterparts (see
``worker.backends.rules``). ``NOT_SUPPORTED`` means that the feature is missing; for ``ALREADY_MAPPED`` see
MPICH's pull request 7862. ``OUT_OF_MEMORY`` and ``MAP_FAILED`` are documented, but indicate a fault.
"""

NOT_PERMITTED = frozenset().union(*(errors.not_permitted for errors in _ERRORS))
"""Errors for a missing permission. Fabric handles, for example, need an IMEX channel."""

NOT_SUPPORTED = frozenset().union(*(errors.not_supported for errors in _ERRORS))
"""Errors for a feature that the driver or this kind of GPU lacks."""

TOO_MANY_PEERS = frozenset().union(*(errors.too_many_peers for errors in _ERRORS))
MOST_PEERS = 8
"""Peers that a GPU can have at a time if no NVSwitch connects them (CUDA programming guide, "Peer-to-Peer
Memory Access")."""

WITH_FEWER_PEERS = (
    "nothing to repair; give a job at most nine of these GPUs, or set NCCL_P2P_DISABLE=1 for it"
)

OPENS_MEMORY = re.compile("|".join(vendor.calls.opens_memory for vendor in SUPPORTED.values()))
"""Calls that map memory of another process or GPU."""

OUT_OF_MEMORY = frozenset(errors.out_of_memory for errors in _ERRORS)
"""Errors for exhausted memory."""

CONTEXT_CREATIONS = frozenset().union(*(vendor.calls.create_context for vendor in SUPPORTED.values()))
TEST_CONTEXTS = 2
"""Contexts that a test has on a GPU: the exporter's and the importer's."""

CONTEXT_BYTES = 640 << 20
"""Free bytes from which a context of an H200 (518 MiB) with 64 MiB of data can be created. With less, the
call returns ``CUDA_ERROR_OUT_OF_MEMORY``, or at times ``CUDA_ERROR_UNKNOWN`` (driver 580.159.04)."""


def room_for(contexts: int, total_bytes: int) -> int:
    """Free bytes that contexts need on a GPU of this size (0: unknown). Small GPUs have small contexts."""
    return contexts * min(CONTEXT_BYTES, total_bytes // 32 or CONTEXT_BYTES)


INITIALISATIONS = frozenset(vendor.calls.initialise for vendor in SUPPORTED.values())
"""The driver's calls that initialise it."""


class DriverError(Exception):
    """A driver call did not return success. ``fault`` has the call, its code and the code's name."""

    def __init__(self, fault: DriverFault, occurrence: int = 0) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.occurrence = occurrence
        """Number of the call among the process's calls of this function, from 1; 0 if unknown."""

    @property
    def is_refusal(self) -> bool:
        """Whether the driver refused the call rather than failed."""
        return self.fault.name in REFUSALS

    @property
    def is_already_mapped(self) -> bool:
        """Whether the driver refused a mapping because of another open mapping."""
        return self.fault.name in ALREADY_MAPPED

    @property
    def is_not_permitted(self) -> bool:
        return self.fault.name in NOT_PERMITTED

    @property
    def is_not_supported(self) -> bool:
        return self.fault.name in NOT_SUPPORTED

    @property
    def is_out_of_memory(self) -> bool:
        return self.fault.name in OUT_OF_MEMORY

    @property
    def may_be_out_of_memory(self) -> bool:
        """Whether little free memory may be the reason, although the error does not say so."""
        return any(self.fault.name in errors.vague for errors in _ERRORS)


class NotAlone(Exception):
    """This cannot be told while other probes run on the device: the engine repeats the probe alone."""


def unless_refused(call: Callable[[], Made]) -> Made | DriverError:
    """Result of a call, or the driver's refusal; other errors are raised."""
    try:
        return call()
    except DriverError as error:
        if not error.is_refusal:
            raise
        return error


class BackendUnavailable(Exception):
    """This backend cannot be used here. ``reason`` says why, ``remedy`` what to do.

    ``broken``: the node has GPUs of this backend, so the result is an ERROR rather than a SKIP. ``off_bus``:
    PCI addresses of those that answer no more.
    """

    def __init__(
        self, reason: str, remedy: str, *, broken: bool = False, off_bus: Sequence[str] = ()
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.broken = broken
        self.off_bus = off_bus


class KernelsUnavailable(Exception):
    """The kernels cannot be compiled, loaded or launched here; the message is the driver's reason."""
