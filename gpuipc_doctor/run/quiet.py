"""Have a device quiet before a probe watches its memory.

Memory that an earlier probe's processes held may come back seconds after their end. A baseline that counts
it in is too high by as much, and hides as much of a loss. So nobody begins to watch before no more is in use
than before the run's first probe, or so much time is over that what is not back counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuipc_doctor.api import NOISE_BYTES, PATIENCE_S, SETTLE_S, loader
from gpuipc_doctor.model import Device, Probe
from gpuipc_doctor.run import planner
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.supervise.session import Session


@dataclass(frozen=True, slots=True)
class Rest:
    """Bytes of a device that are in use when nobody of this run uses it; None where nobody can tell."""

    used: int | None
    patience_s: float = PATIENCE_S

    def after(self, used: int | None) -> Rest:
        """What counts as rest from now on, where so much was in use after the wait."""
        if used is None or self.used is None:
            return Rest(None)
        return (
            Rest(used, SETTLE_S)
            if used > self.used + NOISE_BYTES
            else replace(self, used=min(used, self.used))
        )


@dataclass
class QuietDevices:
    """Waits for devices to be as they were before the run's first probe."""

    session: Session
    _rests: dict[Device, Rest] = field(default_factory=dict)

    def learn(self, probes: Iterable[PlannedProbe], until: float) -> None:
        """Note what is in use on the devices that these probes will watch, before any probe runs there."""
        for planned in probes:
            new = [device for device in _watched(planned) if device not in self._rests]
            for device, used in zip(new, self._look(new, planned, until), strict=True):
                self._rests[device] = Rest(used)

    def wait(self, planned: PlannedProbe, until: float) -> None:
        """Wait until the devices are quiet that this probe will watch.

        Where one does not become so, it is taken as it is from then on.
        """
        known = [device for device in _watched(planned) if self._rests[device].used is not None]
        for device, used in zip(known, self._look(known, planned, until), strict=True):
            self._rests[device] = self._rests[device].after(used)

    def _look(self, devices: Sequence[Device], before: PlannedProbe, until: float) -> Sequence[int | None]:
        """The bytes in use on each device once it is at rest, or nobody waits for it any longer."""
        if not devices:
            return ()
        file = planner.built_in(planner.DISCOVERY)
        rests = [self._rests.get(device, Rest(None)) for device in devices]
        probe = Probe(
            f"quiet before {before.check.id} {before.number}",
            {"onlooker": loader.role(file, "wait_for_quiet")},
            tuple(devices),
            {"used": [rest.used for rest in rests], "patience": [rest.patience_s for rest in rests]},
            before.probe.deadline_s,
        )
        outcome = self.session.run(planner.DISCOVERY, file, probe, until=until)
        used: Sequence[int] = outcome.records["onlooker"]["used"] if outcome.completed else ()
        return used or [None] * len(devices)


def _watched(planned: PlannedProbe) -> tuple[Device, ...]:
    return planned.probe.devices if planned.probe.exclusive else ()
