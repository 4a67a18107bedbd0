"""Wait until a device is idle before a probe watches its memory.

Memory of an earlier probe's processes may be released seconds after their end. A baseline that includes such
memory is too high and hides a loss. So a probe starts watching only when usage is back at its level before
the run, or when so much time has passed that missing memory counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor import surveys
from gpuipc_doctor.api import NOISE_BYTES
from gpuipc_doctor.api.leak_report import SETTLE_S
from gpuipc_doctor.api.meter import PATIENCE_S
from gpuipc_doctor.model import Device
from gpuipc_doctor.probe_types import Baseline, Probe, ProbeOutcome
from gpuipc_doctor.run.planner import PlannedProbe
from gpuipc_doctor.run.tours import Tour
from gpuipc_doctor.supervise.session import Session

_UNKNOWN = Baseline(None, PATIENCE_S)

NOBODY_BYTES = 6 << 20
"""Change of the memory that no process holds to ignore: the share of one context (H200: 5.5 to 8.8 MiB)."""

Nobodys = tuple[int, frozenset[int]]
"""Bytes of a device that no process holds, and the pids of those that hold some."""


@dataclass
class IdleDevices:
    """Waits until devices are as idle as before the run's first probe."""

    session: Session
    _baselines: dict[Device, Baseline] = field(default_factory=dict)
    _seen_from_outside: set[Device] = field(default_factory=set)
    """Devices whose memory usage can be read by a process that does not use these devices."""
    _nobodys: dict[Device, Nobodys] = field(default_factory=dict)
    """Of devices whose driver tells memory by process, before the first probe."""

    def learn(self, probes: Sequence[PlannedProbe], until: float) -> None:
        """Record the used memory of the devices that these probes will measure, before any of them runs."""
        watched = dict.fromkeys(device for planned in probes for device in _watched(planned))
        new = [device for device in watched if device not in self._baselines]
        for backend in dict.fromkeys(device.backend for device in new):
            devices = [device for device in new if device.backend == backend]
            deadline_s = min(planned.probe.deadline_s for planned in probes if _watched(planned))
            self._look(devices, "anybody", deadline_s, until)

    def tells_by_process(self, planned: PlannedProbe) -> bool:
        """Whether the driver told what each process holds of the probe's devices."""
        return self._nobodys.keys() >= set(planned.probe.devices)

    def lost(self, devices: Iterable[Device], until: float) -> dict[Device, int | str]:
        """Bytes of these devices that no process holds now and that were not nobody's before the first probe,
        or why the two cannot be compared.

        Users that came only add to what is nobody's; one that went may hide a loss.
        """
        lost = dict[Device, int | str]()
        for device in devices:
            was, users = self._nobodys[device]
            now = self._look_at_nobodys(device, "the end", until)
            if now and now[0] > was + NOBODY_BYTES and now[1] == users:
                used, now = now[0], self._look_at_nobodys(device, "the end, again", until)
                if now == (used, users):
                    lost[device] = used - was
                    continue
            if not now:
                lost[device] = "the driver does not report it now"
            elif now[0] > was + NOBODY_BYTES or not now[1] >= users:
                came_or_went = now[1] != users
                lost[device] = "other processes came or went" if came_or_went else "it changes by itself"
        return lost

    def _look_at_nobodys(self, device: Device, before: str, until: float) -> Nobodys | None:
        self._nobodys.pop(device, None)
        self._look([device], before, PATIENCE_S, until)
        return self._nobodys.get(device)

    def waits_itself(self, planned: PlannedProbe | Tour) -> bool:
        """Whether the probe waits for idle devices itself. To do so, its first role must read their memory
        usage without using them."""
        watched = _watched(planned)
        return (
            any(self._baselines[device].used is not None for device in watched)
            and self._seen_from_outside.issuperset(watched)
            and not planned.probe.launch
        )

    def baselines(self, planned: PlannedProbe | Tour) -> tuple[Baseline, ...]:
        """The idle level to wait for."""
        return tuple(self._baselines[device] for device in _watched(planned))

    def before(self, planned: PlannedProbe | Tour, until: float) -> None:
        """Wait until the probe's devices are idle, unless the probe does so itself."""
        if any(each.used is not None for each in self.baselines(planned)):
            named = f"{planned.check.id} {planned.number}"
            self._look(_watched(planned), named, planned.probe.deadline_s, until)

    def after(self, planned: PlannedProbe, outcome: ProbeOutcome) -> None:
        """Record the last state, idle or not, in which the probe's first role saw each device for which it
        waited. For others a tour has contexts on them."""
        first = outcome.roles.get(next(iter(planned.probe.roles)))
        if self.waits_itself(planned) and first and first.baselines:
            seen = zip(planned.probe.devices, first.baselines, strict=True)
            self._note((device, used) for device, used in seen if used is not None)

    def _look(self, devices: Sequence[Device], before: str, deadline_s: float, until: float) -> None:
        """Have a process wait until these devices are idle, and record their used memory."""
        probe = Probe(
            f"quiet before {before}",
            {"onlooker": surveys.read_baselines},
            tuple(devices),
            {"baselines": [self._baselines.get(device, _UNKNOWN) for device in devices]},
            deadline_s,
        )
        outcome = self.session.run(surveys.DRIVERS, surveys.FILE, probe, until=until)
        if not outcome.completed and len(devices) > 1:  # an error on one device must not affect the others
            for device in devices:
                self._look([device], before, deadline_s, until)
            return
        found = outcome.records["onlooker"] if outcome.completed else {}
        if found.get("outside"):
            self._seen_from_outside.update(devices)
        self._note(zip(devices, found.get("used") or [None] * len(devices), strict=True))
        nobodys = zip(devices, found.get("nobodys", ()), strict=False)
        self._nobodys |= {device: (told[0], frozenset(told[1])) for device, told in nobodys if told}

    def _note(self, found: Iterable[tuple[Device, int | None]]) -> None:
        for device, used in found:
            self._baselines[device] = _from_now_on(self._baselines.get(device), used)


def _from_now_on(baseline: Baseline | None, used: int | None) -> Baseline:
    """The new idle level of a device that had ``used`` bytes in use after the wait."""
    if baseline is None:
        return Baseline(used, PATIENCE_S)
    if used is None or baseline.used is None:
        return _UNKNOWN
    if used > baseline.used + NOISE_BYTES:
        return Baseline(used, SETTLE_S)
    return baseline._replace(used=min(used, baseline.used))


def _watched(planned: PlannedProbe | Tour) -> tuple[Device, ...]:
    return planned.probe.devices if planned.probe.exclusive else ()
