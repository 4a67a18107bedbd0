"""What is known of a job's ranks, by what they do: the facts by which `verdict` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuipc_doctor.collective.judge import Judgement
from gpuipc_doctor.collective.judge import judge as judge_collectives
from gpuipc_doctor.job import gpu_waits
from gpuipc_doctor.job.document import Cause, Verdict
from gpuipc_doctor.job.gpu_waits import Evidence
from gpuipc_doctor.job.process_facts import SOCKET_READS, STILL, without_line
from gpuipc_doctor.job.waits import Activity, Kind, is_poll

_FOR_PARTNERS = (Kind.RECEIVES, Kind.SENDS, Kind.PROGRESSES)
"""Activities of ranks that may wait for each other while other ranks make progress. A rank in a collective is
not among them: it waits for the ranks that make progress."""

_IN_COLLECTIVES = (Kind.COLLECTIVE, Kind.STARTS, Kind.ENDS, Kind.JOINS)


@dataclass(frozen=True)
class RankFacts:
    """Ranks by their activities.

    ``size``: number of ranks, if known. ``messages``: whether messages moved between the last snapshots; None
    if unknown.
    """

    activities: Mapping[int, Activity]
    size: int | None
    messages: bool | None
    evidence: Evidence

    def doing(self, *kinds: Kind) -> list[int]:
        return [rank for rank, activity in sorted(self.activities.items()) if activity.kind in kinds]

    @cached_property
    def ended(self) -> list[int]:
        """Ranks that are absent, then those that have ended."""
        absent = set(range(self.size or 0)) - self.activities.keys()
        return [*sorted(absent), *self.doing(Kind.ENDED)]

    @cached_property
    def waiting(self) -> list[int]:
        """Ranks that wait for other ranks."""
        return self.doing(*(kind for kind in Kind if kind.waits_for_ranks))

    @cached_property
    def on_gpus(self) -> list[int]:
        """Ranks that wait for their GPUs."""
        return self.doing(Kind.DEVICE)

    @cached_property
    def all_waiting(self) -> list[int]:
        return sorted([*self.waiting, *self.on_gpus])

    @cached_property
    def moved(self) -> list[int]:
        return self.doing(Kind.MOVES)

    @cached_property
    def outside(self) -> list[int]:
        """Ranks that neither wait nor are in MPI."""
        return self.doing(*(kind for kind in Kind if kind.is_outside))

    @cached_property
    def unknown(self) -> list[int]:
        return self.doing(Kind.UNKNOWN)

    @cached_property
    def idle_beside_moving(self) -> list[int]:
        """Ranks that wait for none of the ranks that made progress, as far as can be seen."""
        calls = self._operations_in(self.doing(Kind.COLLECTIVE))
        if len(calls) > 1 or self.outside:
            return self.waiting
        return [rank for rank in self.waiting if self.activities[rank].kind in _FOR_PARTNERS]

    # -- ranks outside MPI, for which others wait ---------------------------------------------------------

    @cached_property
    def polling(self) -> list[int]:
        return [rank for rank in self.outside if is_poll(self.activities[rank].operation)]

    @cached_property
    def late(self) -> list[int]:
        """The ranks outside MPI. Those that poll may also be waiting, so they are late only if there are no
        others; so are those that work elsewhere."""
        late = [rank for rank in self.outside if rank not in self.polling] or self.outside
        return [rank for rank in late if not self.activities[rank].works] or late

    @property
    def late_work(self) -> bool:
        """Whether all late ranks work for themselves: they may arrive."""
        return all(self.activities[rank].works for rank in self.late)

    @property
    def late_may_advance(self) -> bool:
        return all(self.activities[rank].kind.may_advance for rank in self.late)

    @cached_property
    def at_socket(self) -> list[int]:
        """Ranks that sleep in a read from a network socket."""
        asleep = self.doing(Kind.SLEEPS)
        return [rank for rank in asleep if {*self.activities[rank].path[-1:]} & {*SOCKET_READS}]

    @property
    def all_asleep(self) -> bool:
        """Whether every rank sleeps, and none is known to have woken up between the snapshots."""
        activities = self.activities.values()
        return all(each.kind is Kind.SLEEPS and each.reason.endswith(STILL) for each in activities)

    # -- ranks that wait for their GPUs -------------------------------------------------------------------

    @cached_property
    def wait_only_for_gpus(self) -> bool:
        """Whether ranks wait for their GPUs, beside no wait in MPI."""
        others = (self.activities[rank] for rank in self.all_waiting if rank not in self.on_gpus)
        return bool(self.on_gpus) and not any(
            each.operation.startswith(("MPI_", "an MPI")) for each in others
        )

    @property
    def culprits(self) -> list[int]:
        """The ranks that did not call a collective in which others wait."""
        return find_culprits(self.collectives)

    @property
    def culprits_wait(self) -> set[Kind]:
        """Kinds of the culprits' own waits for ranks; empty if one of them waits for none."""
        kinds = {self.activities[rank].kind for rank in self.culprits if rank in self.activities}
        return kinds if kinds and all(kind.waits_for_ranks for kind in kinds) else set()

    @property
    def culprits_work(self) -> bool:
        here = [self.activities[rank] for rank in self.culprits if rank in self.activities]
        return bool(here) and all(activity.works for activity in here)

    @cached_property
    def collectives(self) -> Judgement | None:
        """The first conclusion from the ranks' collectives that names a culprit."""
        calls = self.evidence.calls
        members: dict[str, set[int]] = {}
        for call in calls:
            members.setdefault(call.group, set()).add(call.rank)
        for judgement in judge_collectives(calls, members):
            if find_culprits(judgement):
                return judgement
        return None

    # -- ranks that all wait in MPI -----------------------------------------------------------------------

    @cached_property
    def in_collectives(self) -> list[int]:
        return self.doing(*_IN_COLLECTIVES)

    @cached_property
    def for_partners(self) -> list[int]:
        """Ranks that wait for one other rank, not in a collective."""
        return [rank for rank in self.waiting if rank not in self.in_collectives]

    @cached_property
    def calls(self) -> set[tuple[Kind, str]]:
        """The calls in which ranks wait."""
        found = (self.activities[rank] for rank in self.waiting)
        return {(activity.kind, activity.operation) for activity in found}

    @property
    def in_one_collective(self) -> bool:
        return len(self.calls) == 1 and all(kind is Kind.COLLECTIVE for kind, _ in self.calls)

    @property
    def kinds(self) -> set[Kind]:
        """Kinds of the waits for ranks."""
        return {self.activities[rank].kind for rank in self.waiting}

    @property
    def carrying(self) -> list[int]:
        """Waiting ranks whose connections carry data: a long collective does not end between snapshots."""
        return [rank for rank in self.waiting if self.activities[rank].works]

    @cached_property
    def forks(self) -> dict[int, str]:
        """Ranks that called their collective at another place than the first rank → both places. Stacks that
        begin elsewhere are truncated."""
        ways = gpu_waits.ways_of(self.activities, self.waiting)
        first = ways[self.waiting[0]]
        found = {}
        for rank in self.waiting[1:]:
            pairs = zip(ways[rank], first, strict=False)
            own, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            if own and (own != ways[rank][0] or without_line(own) == without_line(other)):
                found[rank] = f"rank {rank} waits in {own}, rank {self.waiting[0]} in {other}"
        return found

    @property
    def wait_in_python(self) -> bool:
        paths = (self.activities[rank].path for rank in self.waiting)
        return any(".py:" in frame for path in paths for frame in path)

    @cached_property
    def partner_calls(self) -> set[str]:
        return self._operations_in(self.for_partners)

    @property
    def may_send(self) -> bool:
        """Whether a rank sends, or may wait for something other than a message from a partner."""
        return bool(self.doing(Kind.SENDS)) or any(map(_may_wait_for_others, self.partner_calls))

    @property
    def operations(self) -> set[str]:
        """Operations in which ranks wait."""
        return self._operations_in(self.waiting)

    @cached_property
    def minority(self) -> list[int]:
        """Ranks in other collectives of PyTorch than most ranks; none if there is no majority.

        Of MPI's collectives, the one that most ranks have called may be the one too early.
        """
        counts = Counter(self.activities[rank].operation for rank in self.waiting)
        (usual, number), *_ = counts.most_common(1)
        if 2 * number <= len(self.waiting) or any(call.startswith("MPI_") for call in counts):
            return []
        return [rank for rank in self.waiting if self.activities[rank].operation != usual]

    def _operations_in(self, ranks: Sequence[int]) -> set[str]:
        return {self.activities[rank].operation for rank in ranks}

    # -- a verdict on these ranks -------------------------------------------------------------------------

    def name_operations(self, ranks: Sequence[int]) -> str:
        """Operations of these ranks, most frequent first."""
        operations = (self.activities[rank].operation for rank in ranks)
        counts = Counter(operation for operation in operations if operation)
        return ", ".join(operation for operation, _ in counts.most_common(3))

    def verdict(
        self,
        cause: Cause,
        blamed: Sequence[int] = (),
        waiting: Sequence[int] = (),
        reasons: tuple[str, ...] | None = None,
    ) -> Verdict:
        """The verdict with the operations of the ranks. ``reasons``: by default, those of the blamed."""
        waiting = [rank for rank in waiting if rank not in blamed]
        present = [rank for rank in blamed if rank in self.activities]
        own = tuple(dict.fromkeys(self.activities[rank].reason for rank in present))
        return Verdict(
            cause=cause,
            blamed=tuple(blamed),
            waiting=tuple(waiting),
            operation=self.name_operations(present),
            waits_in=self.name_operations(waiting),
            reasons=own if reasons is None else reasons,
        )


def find_culprits(judgement: Judgement | None) -> list[int]:
    """The culprits whose rank is known."""
    return [rank for rank in judgement.culprits if rank >= 0] if judgement else []


def _may_wait_for_others(call: str) -> bool:
    return call.startswith(("MPI_Win", "an MPI")) or call == "MPI_Wait"
