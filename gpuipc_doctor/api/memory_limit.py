"""How much device memory a role may take: the site's limit, passed from a check's plan to its roles.

`Bounded` enforces the limit on an allocator.
"""

from __future__ import annotations

from dataclasses import asdict

from gpuipc_doctor.api.allocator import Allocator, Block, Stream
from gpuipc_doctor.api.data_patterns import mib
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Json, MemoryShare


def share(memory: MemoryShare) -> dict[str, Json]:
    """Parameters of a probe whose roles call `share_of_free`."""
    return {"share": asdict(memory)}


def share_of_free(w: Worker) -> int:
    """Bytes of the device's free memory that this role may take."""
    return MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])


class Bounded:
    """An allocator limited to ``room`` bytes, as if the device had no more.

    If the library cannot limit itself, its cache is released before an allocation would exceed ``room``.
    """

    def __init__(self, w: Worker, allocator: Allocator, room: int) -> None:
        self._w = w
        self._allocator = allocator
        self._bound_by_library = allocator.bound(room)
        self.room = room
        self.refused = ""
        """Size of the refused allocation, and memory that was allocated at the time; empty if none was
        refused."""
        self.releases_s: list[float] = []
        """Duration in seconds of each allocation that first had to release the cache."""

    def alloc(self, nbytes: int, stream: Stream) -> Block | None:
        """A block, or None if it does not fit; after the first None, always None."""
        if self.refused:
            return None
        reserved, began = self._reserved, self._w.clock()
        block = self._alloc(nbytes, stream) if self._bound_by_library or self._makes_room(nbytes) else None
        allocated, now_reserved = self._allocator.held()
        if block is None:
            self.refused = (
                f"cannot allocate {mib(nbytes)}: {mib(allocated)} is allocated and {mib(now_reserved)} "
                f"reserved; the limit is {mib(self.room)}"
            )
        elif now_reserved < reserved:
            self.releases_s.append(self._w.clock() - began)
        return block

    def _makes_room(self, nbytes: int) -> bool:
        if self._reserved + nbytes > self.room:
            self._allocator.release()
        return self._reserved + nbytes <= self.room

    def _alloc(self, nbytes: int, stream: Stream) -> Block | None:
        try:
            return self._allocator.alloc(nbytes, stream)
        except DriverError as error:
            if not error.is_out_of_memory or self._w.gpu.memory_info()[0] < self.room:
                raise  # the device itself has no more
            return None

    @property
    def _reserved(self) -> int:
        return self._allocator.held()[1]
