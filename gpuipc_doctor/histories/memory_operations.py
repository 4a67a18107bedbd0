"""All operations of memory histories, and which of them a device cannot do, or should not."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import chain

from gpuipc_doctor.histories import buffer_operations as buffers
from gpuipc_doctor.histories import process_operations as processes
from gpuipc_doctor.histories import shared_operations as shared
from gpuipc_doctor.histories.memory_operation import MemoryOperation
from gpuipc_doctor.histories.memory_state import GRANULE
from gpuipc_doctor.vendors import SHARED_EVENTS

_ALL: tuple[type[MemoryOperation], ...] = (
    *(buffers.Allocate, buffers.Export, buffers.Open, buffers.Close, buffers.Free, buffers.FreeOpen),
    *(buffers.Write, buffers.Read, buffers.Copy),
    *(processes.EndContext, processes.CreateContext, processes.UseContext, processes.Kill),
    *(shared.Create, shared.Import, shared.CreateFabric, shared.ImportFabric),
    *(shared.Map, shared.Unmap, shared.Release),
    *(shared.CreatePool, shared.ImportPool, shared.AllocateFromPool, shared.ImportPointer),
    *(shared.FreeToPool, shared.Trim, shared.DestroyPool),
    *(buffers.ReadByKernel, buffers.WriteByKernel, buffers.CopyAcrossStreams, processes.Fork, processes.Idle),
    *(buffers.OpenInThread, buffers.CloseInThread, buffers.FreeInThread),
    *(buffers.WriteInThread, buffers.ReadInThread, buffers.Fill, buffers.Ask),
    *(shared.CreateEvent, shared.OpenEvent, shared.CopyAndRecord, shared.WaitEvent, shared.DestroyEvent),
    processes.Rest,
)

TYPES: Mapping[str, MemoryOperation] = {operation.do: operation() for operation in _ALL}
"""Name → operation, in an order on which the histories of seeds depend."""

SIMPLER = {do: operation.simpler for do, operation in TYPES.items() if operation.simpler}
"""Operation → a simpler one with the same effect."""

DECLARED = frozenset(do for do, operation in TYPES.items() if operation.declared)
"""Operations that break a rule in the driver's documentation, as applications do."""

RARE = {do: operation.rare for do, operation in TYPES.items() if operation.rare}
"""Operation that occurs less often in the acceptance tier → why."""

MACROS = {"share": 4.0, "recycle": 2.0}
"""Weights of the sequences that `generator` draws like operations; they need legacy IPC.

``share``: allocate, write, open and read memory. ``recycle``: free memory and give its users a new buffer of
the same size. With the macros, a fault that needs the reuse of a small segment was found within 1,500
operations; without the macros, it was not found in 60,000.
"""

LEAST_ROOM: dict[str, int] = {
    "vmm-ipc": 4 * GRANULE,
    "fabric-handles": 4 * GRANULE,
    "pool-ipc": 32 << 20,
}
"""Capability → bytes of device memory that its operations need: a few segments, and the 32 MiB block in which
a pool reserves memory (seen on an H200)."""

WAYS = ("legacy-ipc", "vmm-ipc", "fabric-handles", "pool-ipc")
"""Ways of sharing memory, by capability."""

FAMILIES: Mapping[str, frozenset[str]] = {
    family: frozenset(do for do, operation in TYPES.items() if family in operation.needs)
    | frozenset(MACROS if family == "legacy-ipc" else ())
    for family in ("contexts", *WAYS)
}
"""Capability → the operations that need it."""


def harmful(harms: Iterable[str]) -> frozenset[str]:
    """Operations to omit if these steps harm a device."""
    return frozenset(do for do, operation in TYPES.items() if operation.harms and operation.harms in harms)


EVENTS = frozenset(do for do in TYPES if do.endswith("-event")) | {"copy-and-record"}


def unavailable(capabilities: Container[str], lacks: Container[str] = ()) -> frozenset[str]:
    """Operations to omit because they need a capability that the device, or its vendor's API, lacks."""
    events = EVENTS if SHARED_EVENTS in lacks else frozenset()
    return events | without_families(family for family in FAMILIES if family not in capabilities)


def without_families(lacking: Iterable[str]) -> frozenset[str]:
    """The operations that belong to these families only."""
    kept = FAMILIES.keys() - set(lacking)
    needed = frozenset[str]().union(*(FAMILIES[family] for family in kept))
    return frozenset(chain.from_iterable(FAMILIES.values())) - needed


def without_room(room: int, without: frozenset[str]) -> list[str]:
    """Families of operations that need more memory, except families that are omitted anyway."""
    return [
        family
        for family, nbytes in LEAST_ROOM.items()
        if room < nbytes and not without_families([family]) <= without
    ]


def families(done: Mapping[str, int]) -> dict[str, int]:
    """Family → how many operations of it were performed, of those that no other family has."""
    counts = {family: sum(done.get(do, 0) for do in without_families([family])) for family in FAMILIES}
    return {family: times for family, times in counts.items() if times}
