"""The ranks of a launch as one of them sees them: who it is, and what the others say."""

from __future__ import annotations

from gpuipc_doctor.api import Collectives, Communicator, Json, Worker

FIRST = "rank 0"


class AllRanks:
    """This rank among all roles of a launch, which talk over sockets: the first role with each of the others.

    A role's name ends with the number of its rank. ``others``: the roles with which the first one talks.
    """

    def __init__(self, w: Worker) -> None:
        self.w = w
        self.size: int = w.params["ranks"]
        self.rank = int(w.role.rpartition(" ")[2])
        self.is_first = w.role == FIRST
        self.others = list(w.peers) if self.size > 1 else []

    def all_say(self, mine: Json) -> list[Json]:
        """What every role passes, in the order of roles. Every role calls it."""
        if self.size == 1:
            return [mine]
        if not self.is_first:
            self.w.peer.send(mine)
            said: list[Json] = self.w.peer.recv()
            return said
        said = [mine, *(peer.recv() for peer in self.others)]
        for peer in self.others:
            peer.send(said)
        return said

    def begin(self, library: Collectives) -> Communicator:
        """A new communicator of all ranks."""
        unique_id = self.all_say(library.unique_id() if self.is_first else None)[0]
        return library.init(self.size, unique_id, self.rank)
