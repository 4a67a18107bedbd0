"""Partial results, held by the guard while the checks run, and used if the checks never finish."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from gpuipc_doctor.prolog import decision, log
from gpuipc_doctor.prolog.decision import Concern, Decision, Kind
from gpuipc_doctor.prolog.guard import Answers, Channel
from gpuipc_doctor.site.policy import PrologConfig

if TYPE_CHECKING:  # importing it takes longer than a prolog with a stored result may
    from collections.abc import Sequence

    from gpuipc_doctor.model import Device, Json
    from gpuipc_doctor.report_types import Result


class KnownSoFar(NamedTuple):
    """The results so far."""

    policy: PrologConfig = PrologConfig()
    is_patient: bool = False
    """Whether there is enough time to tell a hang from slowness."""
    bad: tuple[Concern, ...] = ()
    """Concerns that are certain: no later result can remove them."""
    results: tuple[Json, ...] = ()
    """The results in the log's form, with running probes marked."""

    def written(self) -> Json:
        """The results in the form that `read` accepts."""
        bad = [(concern.kind.value, concern.text) for concern in self.bad]
        return {**self._asdict(), "policy": self.policy.written(), "bad": bad}

    @classmethod
    def read(cls, written: Json) -> KnownSoFar:
        bad = tuple(Concern(Kind(kind), text) for kind, text in written["bad"])
        policy = PrologConfig.read(written["policy"])
        return cls(policy, written["is_patient"], bad, tuple(written["results"]))

    def decide(self, kind: Kind, what: str) -> Decision:
        """The decision if no more results come; ``what`` is its reason."""
        if kind is Kind.UNKILLABLE and not self.is_patient:
            kind = Kind.BUDGET  # a driver that starts slowly cannot be killed meanwhile either
        return decision.decide([*self.bad, Concern(kind, f"{kind.word} {what}")], self.policy)

    @property
    def answers(self) -> Answers:
        """The decisions by kind, prepared for use when no process is left to call `decide`."""
        decided = {kind: self.decide(kind, "") for kind in (Kind.UNKILLABLE, Kind.ERROR, Kind.BUDGET)}
        return {
            kind.value: (one.exit_code, one.line if one.weighed[0].concern in self.bad else "")
            for kind, one in decided.items()
        }


class PartialResult:
    """Reports running probes and findings to the guard; the `schedule.Watcher` of the run."""

    def __init__(self, channel: Channel, known: KnownSoFar, devices: tuple[Device, ...]) -> None:
        self._channel = channel
        self._known = known
        self._devices = devices
        self._results: list[Result] = []
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()
        self._keep()

    def planned(self, checks: Sequence[str]) -> None: ...

    def started(self, key: str, text: str, deadline_s: float) -> None:
        with self._lock:
            self._running[key] = text
            self._tell_what_runs()
            self._keep()

    def finished(self, key: str) -> None:
        with self._lock:
            last = self._running.pop(key)
            if self._running:
                self._tell_what_runs()
            else:
                self._channel.doing(f"the result of {last} was judged")

    def concluded(self, result: Result) -> None:
        with self._lock:
            self._results.append(result)
            self._keep()

    def _tell_what_runs(self) -> None:
        self._channel.doing(f"{', '.join(list(self._running.values())[:3])} ran")

    def _keep(self) -> None:
        from gpuipc_doctor.prolog import concerns

        found = concerns.of_results(self._results, self._devices)
        bad = (*self._known.bad, *(concern for concern in found if concern.kind.is_known_bad))
        rows = [*map(log.row, self._results), *(_row(key, text) for key, text in self._running.items())]
        known = self._known._replace(bad=bad, results=tuple(rows))
        self._channel.keep(known.written(), known.answers)


def _row(key: str, text: str) -> dict[str, Json]:
    """The running probes, as a result in the log."""
    return {"check": key.split()[0], "status": "ERROR", "summary": f"{text} had not ended"}
