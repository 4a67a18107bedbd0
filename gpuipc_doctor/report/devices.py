"""Match the devices of two reports, since GPUs may be renumbered."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuipc_doctor.model import Device


class DeviceChange(enum.Enum):
    """The change of a device between two reports."""

    SAME = "same"
    RENUMBERED = "renumbered"
    REPLACED = "replaced"
    GONE = "gone"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Match:
    """A device in each report; None if missing."""

    before: Device | None
    after: Device | None
    fate: DeviceChange


def match(before: Sequence[Device], after: Sequence[Device]) -> tuple[Match, ...]:
    """Match the devices of both reports by uuid, which survives renumbering, else by label.

    A uuid that occurs twice in one report identifies no device.
    """
    uuids_before, by_uuid = _by_uuid(before), _by_uuid(after)
    partners = {device: by_uuid[uuid] for uuid, device in uuids_before.items() if uuid in by_uuid}
    taken = set(partners.values())
    by_label = {device.label: device for device in after if device not in taken}
    for device in before:
        if device not in partners and (found := by_label.pop(device.label, None)):
            partners[device] = found
    matched = set(partners.values())
    return (
        *(Match(device, partners.get(device), _change(device, partners.get(device))) for device in before),
        *(Match(None, device, DeviceChange.NEW) for device in after if device not in matched),
    )


def _change(before: Device, after: Device | None) -> DeviceChange:
    if after is None:
        return DeviceChange.GONE
    if before.uuid != after.uuid:
        return DeviceChange.REPLACED
    return DeviceChange.SAME if before.label == after.label else DeviceChange.RENUMBERED


def _by_uuid(devices: Sequence[Device]) -> dict[str, Device]:
    times = Counter(device.uuid for device in devices)
    return {device.uuid: device for device in devices if device.uuid and times[device.uuid] == 1}


def labels_now(matches: Sequence[Match]) -> dict[str, str | None]:
    """Label before → label of the same device after; None if missing."""
    return {
        match.before.label: match.after.label if match.after else None for match in matches if match.before
    }
