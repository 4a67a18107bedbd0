"""Have a device quiet before a probe watches its memory.

Memory that an earlier probe's processes held may come back seconds after their end. A baseline that counts
it in is too high by as much, and hides as much of a loss. So nobody begins to watch before no more is in use
than before the run's first probe, or so much time is over that what is not back counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuipc_doctor.api import NOISE_BYTES, PATIENCE_S, SETTLE_S, loader
from gpuipc_doctor.model import AtRest, Device, Probe, ProbeOutcome
from gpuipc_doctor.run import planner
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.supervise.session import Session

_UNKNOWN = AtRest(None, PATIENCE_S)


@dataclass
class QuietDevices:
    """Has devices be as they were before the run's first probe."""

    session: Session
    _at_rest: dict[Device, AtRest] = field(default_factory=dict)
    _seen_from_outside: set[Device] = field(default_factory=set)
    """Devices whose memory a process can see without using them."""

    def learn(self, probes: Sequence[PlannedProbe], until: float) -> None:
        """Note what is in use on the devices that these probes will watch, before any probe runs there."""
        watched = dict.fromkeys(device for planned in probes for device in _watched(planned))
        new = [device for device in watched if device not in self._at_rest]
        for backend in dict.fromkeys(device.backend for device in new):
            devices = [device for device in new if device.backend == backend]
            deadline_s = min(planned.probe.deadline_s for planned in probes if _watched(planned))
            self._look(devices, "anybody", deadline_s, until)

    def before(self, planned: PlannedProbe, until: float) -> Probe:
        """The probe, which begins once the devices are quiet that it will watch.

        Its first role waits for that, if it sees them without using them, and the others then wait for it;
        else a process of its own does, now.
        """
        probe, watched = planned.probe, _watched(planned)
        if all(self._at_rest[device].used is None for device in watched):
            return probe
        if self._seen_from_outside.issuperset(watched) and not probe.launch:
            return replace(probe, at_rest=tuple(self._at_rest[device] for device in watched))
        self._look(watched, f"{planned.check.id} {planned.number}", probe.deadline_s, until)
        return probe

    def after(self, probe: Probe, outcome: ProbeOutcome) -> None:
        """Take each device as the probe's first role found it, also where it did not become quiet."""
        first = outcome.records.get(next(iter(probe.roles)), {})
        if probe.at_rest and "at_rest" in first:
            self._note(zip(probe.devices, first["at_rest"], strict=True))

    def _look(self, devices: Sequence[Device], before: str, deadline_s: float, until: float) -> None:
        """Have a process wait for these devices to be at rest, and take them as it found them."""
        file = planner.built_in(planner.DISCOVERY)
        probe = Probe(
            f"quiet before {before}",
            {"onlooker": loader.role(file, "look_at_rest")},
            tuple(devices),
            {"at_rest": [self._at_rest.get(device, _UNKNOWN) for device in devices]},
            deadline_s,
        )
        outcome = self.session.run(planner.DISCOVERY, file, probe, until=until)
        if not outcome.completed and len(devices) > 1:  # what is wrong with one says nothing of the others
            for device in devices:
                self._look([device], before, deadline_s, until)
            return
        found = outcome.records["onlooker"] if outcome.completed else {}
        if found.get("outside"):
            self._seen_from_outside.update(devices)
        self._note(zip(devices, found.get("used") or [None] * len(devices), strict=True))

    def _note(self, found: Iterable[tuple[Device, int | None]]) -> None:
        for device, used in found:
            self._at_rest[device] = _from_now_on(self._at_rest.get(device), used)


def _from_now_on(at_rest: AtRest | None, used: int | None) -> AtRest:
    """What counts as rest, where so much was in use after the wait for it."""
    if at_rest is None:
        return AtRest(used, PATIENCE_S)
    if used is None or at_rest.used is None:
        return _UNKNOWN
    if used > at_rest.used + NOISE_BYTES:
        return AtRest(used, SETTLE_S)
    return at_rest._replace(used=min(used, at_rest.used))


def _watched(planned: PlannedProbe) -> tuple[Device, ...]:
    return planned.probe.devices if planned.probe.exclusive else ()
