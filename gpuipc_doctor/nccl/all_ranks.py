"""The ranks of a launch as one of them sees them: who it is, and what the others say."""

from __future__ import annotations

from gpuipc_doctor.api import Collectives, Communicator, Json, Worker


class Crew:
    """This rank among all ranks, which talk over sockets: rank 0 with each of the others."""

    def __init__(self, w: Worker) -> None:
        self.w = w
        self.size: int = w.params["ranks"]
        self.rank = int(w.role.rpartition(" ")[2])

    def all_say(self, mine: Json) -> list[Json]:
        """What every rank passes, by rank. Every rank calls it."""
        if self.size == 1:
            return [mine]
        if self.rank:
            self.w.peer.send(mine)
            said: list[Json] = self.w.peer.recv()
            return said
        said = [mine, *(peer.recv() for peer in self.w.peers)]
        for peer in self.w.peers:
            peer.send(said)
        return said

    def begin(self, library: Collectives) -> Communicator:
        """A new communicator of all ranks."""
        unique_id = self.all_say(library.unique_id() if self.rank == 0 else None)[0]
        return library.init(self.size, unique_id, self.rank)
