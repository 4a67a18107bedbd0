"""How much of a device's memory a role may take: the site's share, from a check's plan to its roles.

An allocator that would take more is held to it: see `Bounded`.
"""

from __future__ import annotations

from dataclasses import asdict

from gpuipc_doctor.api.allocator import Allocator, Block, Stream
from gpuipc_doctor.api.gpu import DriverError
from gpuipc_doctor.api.patterns import mib
from gpuipc_doctor.api.worker import Worker
from gpuipc_doctor.model import Json, MemoryShare


def share(memory: MemoryShare) -> dict[str, Json]:
    """What goes to the ``params`` of a probe whose roles ask for their `share_of_free`."""
    return {"share": asdict(memory)}


def share_of_free(w: Worker) -> int:
    """Bytes of what this role's device has free that it may take."""
    return MemoryShare(**w.params["share"]).of(w.gpu.memory_info()[0])


class Bounded:
    """An allocator that takes no more than ``room`` bytes, as if the device had no more.

    Where the library has no such bound, it is told to give back what it keeps whenever it would take more.
    """

    def __init__(self, w: Worker, allocator: Allocator, room: int) -> None:
        self._w = w
        self._allocator = allocator
        self._bound_by_library = allocator.bound(room)
        self.room = room
        self.refused = ""
        """What there was no room for, and what was held then."""
        self.releases_s: list[float] = []
        """Seconds that each allocation took for which something was given back."""

    def alloc(self, nbytes: int, stream: Stream) -> Block | None:
        """A block; None where there is no room for it, and from then on."""
        if self.refused:
            return None
        reserved, began = self._reserved, self._w.clock()
        block = self._alloc(nbytes, stream) if self._bound_by_library or self._makes_room(nbytes) else None
        allocated, now_reserved = self._allocator.held()
        if block is None:
            self.refused = (
                f"asked for {mib(nbytes)} with {mib(allocated)} allocated and {mib(now_reserved)} reserved, "
                f"of {mib(self.room)} that it may take"
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
                raise  # it is the device that has no more
            return None

    @property
    def _reserved(self) -> int:
        return self._allocator.held()[1]
