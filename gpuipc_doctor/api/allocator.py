"""What stands between applications and the driver: the protocol of array libraries' memory allocators.

``allocators`` implements it, workers hand it to checks, and a check plans a `probe` of it. Whatever reaches
the library is *armed* under the library's own name for it. An allocator that finds no memory raises
`DriverError` with ``is_out_of_memory``. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpuipc_doctor.api.gpu import Buffer
from gpuipc_doctor.model import Device, Fact, Json, Probe, Role

_OF = {
    ("cupy", "cuda"): ("MemoryPool", "MemoryAsyncPool"),
    ("cupy", "hip"): ("MemoryPool",),
    ("pytorch", "cuda"): ("PyTorch",),
    ("pytorch", "hip"): ("PyTorch",),
}
"""Fact of the inventory, and backend → the allocators that this library has for it.

CuPy's second pool is refused on HIP (``is_async_alloc_supported`` in cupy/cuda/memory.pyx, 14.2).
"""


DEADLINE_S = 60.0
"""For one operation of a library's, in seconds: the first ones load its kernels."""


def installed(inventory: Iterable[Fact], backend: str) -> tuple[tuple[str, ...], ...]:
    """The allocators that can be tested on a backend's devices, of each array library that was found."""
    return tuple(
        _OF[fact.name, backend]
        for fact in inventory
        if fact.value is not None and backend in _built_for(fact) and (fact.name, backend) in _OF
    )


def probe(
    name: str,
    device: Device,
    roles: Mapping[str, Role],
    *,
    exclusive: bool = True,
    concurrent: frozenset[str] = frozenset(),
    **params: Json,
) -> Probe:
    """A probe of this allocator, which its roles find in the parameter ``allocator``."""
    params = {"allocator": name, **params}
    imports = _imports(name, device.backend)
    return Probe(
        name,
        roles,
        (device,),
        params,
        DEADLINE_S,
        exclusive=exclusive,
        concurrent=concurrent,
        imports=imports,
    )


def _imports(allocator: str, backend: str) -> tuple[str, ...]:
    """What may be imported before the workers start (`Probe.imports`).

    Nothing on HIP, where nobody has tried whether the libraries leave the driver alone until they are used.
    """
    modules = {
        "MemoryPool": "cupy",
        "MemoryAsyncPool": "cupy",
        "PyTorch": "torch",
        "PyTorch expandable": "gpuipc_doctor.allocators.torch_expandable",
    }
    return (modules[allocator],) if backend == "cuda" else ()


def _built_for(fact: Fact) -> str:
    """As distributions say: ``cupy_rocm_5_0``, ``torch-2.5.1+rocm6.2``, ``torch-2.5.1+cpu``."""
    told = f"{fact.value} {fact.source}"
    return "" if "+cpu" in told else "hip" if "rocm" in told else "cuda"


class Stream(Protocol):
    """A queue of work on the device: what is put into it is done in turn, and the calls return at once."""

    def spin(self, seconds: float) -> None:
        """Keep the stream busy for about so long, by a kernel that does nothing else."""

    def copy(self, to: Block, source: Block) -> None:
        """Copy all of ``source``, which has the size of ``to``."""

    def wait_for(self, other: Stream) -> None:
        """Let what is put here from now on wait for all that is in ``other`` by now (an event)."""

    def synchronize(self) -> None:
        """Wait until all is done."""


class Block(Buffer, Protocol):
    """Memory of an allocator. ``free`` gives it back to the allocator, which may hand it out again at once.

    ``read`` and ``write`` know nothing of streams: synchronise first.
    """

    def used_by(self, stream: Stream) -> None:
        """Tell the allocator that ``stream`` uses it, too (PyTorch's ``record_stream``).

        Only where `Allocator.records_streams`.
        """


class Allocator(Protocol):
    """One allocator of one library on one device, with a pool of its own where the library allows it."""

    @property
    def kind(self) -> str:
        """What legacy IPC makes of its memory: ``plain``, or a kind of `Gpu.unexportable_kinds`."""

    @property
    def chosen_by(self) -> str:
        """The call or the setting that has an application use it, as it is written."""

    @property
    def records_streams(self) -> bool:
        """Whether its blocks can be told which streams use them."""

    @property
    def release_call(self) -> str:
        """What ``release`` is called in the library."""

    def stream(self) -> Stream:
        """A new stream, which waits for no other unless it is told to."""

    def alloc(self, nbytes: int, stream: Stream) -> Block:
        """Memory for use on ``stream``: uninitialised, and new or out of what was freed there."""

    def held(self) -> tuple[int, int]:
        """(allocated, reserved) bytes: what is handed out, and what was taken from the driver for it."""

    def release(self) -> None:
        """Have it give back to the driver what is not allocated, nor freed on a stream that is still busy."""

    def bound(self, nbytes: int) -> bool:
        """From now on, take no more than this from the driver, as if the device had no more.

        Called before the first allocation. False, and nothing is bound, where the library cannot do that.
        """


def use_once(allocator: Allocator, stream: Stream, nbytes: int) -> None:
    """Have the library load what it loads at first use, before anybody watches."""
    allocator.alloc(nbytes, stream).free()
    give_back(allocator, stream)


def give_back(allocator: Allocator, stream: Stream) -> None:
    """Have it give back all that is free, what was freed on this stream a moment ago, too."""
    stream.synchronize()
    allocator.release()
