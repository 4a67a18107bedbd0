"""Have a device quiet before a probe watches its memory.

Memory that an earlier probe's processes held may come back seconds after their end. A baseline that counts
it in is too high by as much, and hides as much of a loss. So nobody begins to watch before no more is in use
than before the run's first probe, or so much time is over that what is not back counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuipc_doctor.api import NOISE_BYTES, PATIENCE_S, SETTLE_S, loader
from gpuipc_doctor.model import Device, Probe
from gpuipc_doctor.run import planner
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.supervise.session import Session


@dataclass
class Rest:
    """Bytes of a device that are in use when nobody of this run uses it; None where nobody can tell."""

    used: int | None
    patience_s: float = PATIENCE_S


@dataclass
class QuietDevices:
    """Waits for devices to be as they were before the run's first probe."""

    session: Session
    _rests: dict[Device, Rest] = field(default_factory=dict)

    def learn(self, probes: Iterable[PlannedProbe], until: float) -> None:
        """Note what is in use on the devices that these probes will watch, before any probe runs there."""
        for planned in probes:
            for device in planned.probe.devices:
                if planned.probe.exclusive and device not in self._rests:
                    self._rests[device] = Rest(self._look(device, Rest(None), planned, until))

    def wait(self, planned: PlannedProbe, until: float) -> None:
        """Wait until the devices are quiet that this probe will watch.

        Where one does not become so, it is taken as it is from then on.
        """
        for device in planned.probe.devices if planned.probe.exclusive else ():
            rest = self._rests[device]
            if rest.used is None:
                continue
            used = self._look(device, rest, planned, until)
            if used is not None and used > rest.used + NOISE_BYTES:
                self._rests[device] = Rest(used, SETTLE_S)
            else:
                rest.used = used and min(used, rest.used)

    def _look(self, device: Device, rest: Rest, before: PlannedProbe, until: float) -> int | None:
        """The bytes in use once a device is at rest, or nobody waits for it any longer."""
        file = planner.built_in(planner.DISCOVERY)
        probe = Probe(
            f"quiet before {before.check.id} {before.number}",
            {"onlooker": loader.role(file, "wait_for_quiet")},
            (device,),
            {"used": rest.used, "patience": rest.patience_s},
            before.probe.deadline_s,
        )
        outcome = self.session.run(planner.DISCOVERY, file, probe, until=until)
        return int(outcome.records["onlooker"]["used"]) if outcome.completed else None
