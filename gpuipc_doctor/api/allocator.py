"""The protocol of array libraries' memory allocators.

``worker.allocators`` implements it, workers pass it to checks, and a check plans a `probe` of it. Each
library call is journalled under the name that the library has for it. An allocator out of memory raises
`DriverError` with ``is_out_of_memory``. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuipc_doctor.api.gpu import Buffer
from gpuipc_doctor.model import Device, Fact, Json
from gpuipc_doctor.probe_types import Probe, Role
from gpuipc_doctor.vendors import SUPPORTED

_LIBRARIES = {"MemoryPool": "CuPy", "MemoryAsyncPool": "CuPy"}
"""Allocator → its library, where the names differ. PyTorch has one kind of memory in a process."""

DEADLINE_S = 60.0
"""Seconds for one library operation: the first one loads kernels."""


def installed(inventory: Iterable[Fact], backend: str) -> tuple[tuple[str, ...], ...]:
    """The allocators of the array libraries found that can be tested on a backend's devices."""
    return tuple(
        SUPPORTED[backend].allocators[fact.name]
        for fact in inventory
        if fact.value is not None
        and fact.name in SUPPORTED[backend].allocators
        and backend == _built_for(fact)
    )


def modules(inventory: Iterable[Fact], backend: str) -> list[tuple[str, ...]]:
    """The modules that probes of these allocators import, by library."""
    names = (name for names in installed(inventory, backend) for name in names)
    return list(dict.fromkeys(filter(None, (_imports(name, backend) for name in names))))


def probe(
    name: str,
    device: Device,
    roles: Mapping[str, Role],
    *,
    exclusive: bool = True,
    concurrent: frozenset[str] = frozenset(),
    **params: Json,
) -> Probe:
    """A probe of this allocator. The first role uses it, in a process that loads no other library, and finds
    its name in the parameter ``allocator``."""
    params = {"allocator": name, **params}
    imports = _imports(name, device.backend)
    return Probe(
        name,
        roles,
        (device,),
        params,
        DEADLINE_S,
        exclusive=exclusive,
        by_process=exclusive,
        concurrent=concurrent,
        imports=imports,
        library=_LIBRARIES.get(name, name),
    )


def _imports(allocator: str, backend: str) -> tuple[str, ...]:
    """Modules to import before the workers start (`Probe.imports`).

    Empty where it is untested whether importing these libraries starts the driver.
    """
    modules = {
        "MemoryPool": "cupy",
        "MemoryAsyncPool": "cupy",
        "PyTorch": "torch",
        "PyTorch expandable": "gpuipc_doctor.worker.torch_expandable",
    }
    return (modules[allocator],) if SUPPORTED[backend].forks_after_import else ()


def _built_for(fact: Fact) -> str:
    """The backend for which a distribution is built, derived from its name: ``cupy_rocm_5_0``,
    ``torch-2.5.1+rocm6.2`` or ``torch-2.5.1+cpu``."""
    told = f"{fact.value} {fact.source}"
    named = (backend for backend, vendor in SUPPORTED.items() if vendor.wheels and vendor.wheels in told)
    unnamed = next(backend for backend, vendor in SUPPORTED.items() if not vendor.wheels)
    return "" if "+cpu" in told else next(named, unnamed)


class Stream(Protocol):
    """A queue of work on the device: work runs in order, and calls return at once."""

    def spin(self, seconds: float) -> None:
        """Keep the stream busy for about this many seconds with a kernel that does nothing."""

    def copy(self, to: Block, source: Block) -> None:
        """Copy all of ``source``, which has the size of ``to``."""

    def wait_for(self, other: Stream) -> None:
        """Make later work of this stream wait for the current work of ``other``."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""


class Block(Buffer, Protocol):
    """Memory of an allocator. ``free`` returns it to the allocator, which may reuse it at once.

    ``read`` and ``write`` ignore streams: synchronise first.
    """

    def used_by(self, stream: Stream) -> None:
        """Tell the allocator that ``stream`` also uses the block (PyTorch's ``record_stream``).

        Requires `Allocator.records_streams`.
        """


class Allocator(Protocol):
    """One allocator of one library on one device, with its own pool if the library allows it."""

    @property
    def kind(self) -> str:
        """``plain`` if the memory has IPC handles, else its kind in `Gpu.unexportable_kinds`."""

    @property
    def chosen_by(self) -> str:
        """The call or setting with which an application selects this allocator."""

    @property
    def records_streams(self) -> bool:
        """Whether the library can record which streams use a block."""

    @property
    def release_call(self) -> str:
        """Name of the library's function that ``release`` calls."""

    def stream(self) -> Stream:
        """A new stream that does not wait for the default stream."""

    def alloc(self, nbytes: int, stream: Stream) -> Block:
        """Uninitialised memory for use on ``stream``: new memory, or memory that was freed on that stream."""

    def held(self) -> tuple[int, int]:
        """(allocated, reserved) bytes: allocated by users, reserved from the driver."""

    def release(self) -> None:
        """Release all free memory to the driver, except memory that was freed on a stream that is still
        busy."""

    def bound(self, nbytes: int) -> bool:
        """Limit the bytes taken from the driver from now on, as if the device had no more.

        Call it before the first allocation. Returns False, without effect, if the library has no limit.
        """

    def leave(self) -> None:
        """Leave nothing to the process's next allocator of this library: release memory, lift the limit."""


def use_once(allocator: Allocator, stream: Stream, nbytes: int) -> None:
    """Use the library once, so that it loads what it needs before used memory is measured."""
    allocator.alloc(nbytes, stream).free()
    give_back(allocator, stream)


def give_back(allocator: Allocator, stream: Stream) -> None:
    """Release all free memory to the driver, including what was just freed on this stream."""
    stream.synchronize()
    allocator.release()
