"""Used memory as growth of buffers: from a rank's readings, and from the records of both ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuipc_doctor.api import Meter, ProbeOutcome, Reading, leak_report
from gpuipc_doctor.api.buffer_growth import FEWEST, BufferGrowth, Outcome, share_no_address
from gpuipc_doctor.api.slopes import last_third

from ._mpi_cache_growth_buffers import SMALL


@dataclass(frozen=True, slots=True)
class DeviceGrowth:
    """Growth of the memory of one device: the device of ``role``, or of both ranks."""

    done: ProbeOutcome
    place: int
    """Index of the device."""
    role: str
    growth: BufferGrowth

    @property
    def where(self) -> str:
        return f"on the {self.role}'s device" if len(self.done.devices) > 1 else "on the device of both ranks"

    @property
    def outcome(self) -> Outcome:
        params = self.done.params
        return self.growth.outcome(params["small"], params["bounded_to"] or 0, decides=params["decides"])

    @property
    def bound(self) -> float | None:
        """Bytes of a bounded cache; None if no bound was seen, or not all buffers were sent."""
        return self.growth.displacement.bound if self.growth.is_complete(self.done.params["small"]) else None


def growth_so_far(
    meter: Meter,
    sizes: Sequence[int],
    used: Sequence[Reading],
    control: Sequence[Reading],
) -> BufferGrowth:
    """Growth until now."""
    idle = meter.idle
    steady, quiet = (
        idle.without([reading.nbytes for reading in each], [reading.at for reading in each])
        for each in (used, control)
    )
    seconds = (used[-1].at - used[0].at) * len(last_third(steady)) / len(used)
    return BufferGrowth(sizes, steady, quiet, doubt=idle.change_within(seconds)[1])


def is_lost(held: Sequence[Sequence[int | None]]) -> bool:
    """Whether ever more belongs to no process, which may also be the work of other probes."""
    nobodys = [nbytes for nbytes in held[-1] if nbytes is not None]
    return len(nobodys) >= FEWEST and BufferGrowth([1], nobodys, [0.0] * FEWEST).rate.grows


def measure_devices(done: ProbeOutcome) -> list[DeviceGrowth]:
    """Growth of each device. If both ranks share a device, both have the same growth."""
    roles = list(done.records)[: len(done.devices)]
    return [DeviceGrowth(done, place, role, measure(done, place, role)) for place, role in enumerate(roles)]


def measure(done: ProbeOutcome, place: int, role: str) -> BufferGrowth:
    """Growth of the device at this ``place``, from the records of ``role``."""
    record, ranks = done.records[role], done.records.values()
    idle = leak_report(done.roles[role]).idle
    used = idle.without([*record["used"], *record.get("then", [])], record.get("at", []))
    control = idle.without(record["control"], record.get("control_at", []))
    doubt = idle.change_within(record["seconds"] * len(last_third(record["used"])))[1]
    large, small = len(record["used"]), done.params["small"]
    follow = [(rank["follow"], rank["freed"]) for rank in ranks if "follow" in rank]
    return BufferGrowth(
        record["sizes"],
        used[:large],
        control,
        small=used[large:][:small],
        each=SMALL,
        late=used[large:][small:],
        apart=all(share_no_address(buffers, freed) for buffers, freed in follow),
        pace=max(1.0, record["seconds"] / record["seconds_control"]),
        doubt=doubt,
    )
