"""Find the one GPU that differs from equal GPUs of its node: no site config is needed for that.

Only one GPU is called odd, and only if four or more are equal. On two sockets or with bridges, equal GPUs
reach each other differently by design, so what differs there is at most a warning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpuipc_doctor.api.health_rows import LINKS as EXPECTED
from gpuipc_doctor.model import Device, Evidence, Finding

FEWEST = 4
"""Minimum number of equal GPUs among which one is called odd."""

LINKS = "active NVLinks"
"""Name of the trait that is the number of a GPU's active NVLinks."""

BRIDGED = re.compile(r"PCIe|\bNVL\b|RTX|\b[ALT]\d{1,2}S?\b")
"""Names of GPUs on PCIe cards, of which only some may be linked, by bridges."""

CHECK_LINKS = (
    "check dmesg for Xid errors of NVLink and the GPU's cables or bridge; reset the GPU, else replace it"
)

Traits = Mapping[str, Mapping[str, str]]
"""Label of a device → trait → value, for example ``active NVLinks`` → ``18``."""


def odd_gpus(devices: Sequence[Device], traits: Traits) -> Iterator[Finding]:
    """Findings on GPUs that differ from the other GPUs of their name."""
    for name in dict.fromkeys(device.name for device in devices):
        equal = [device for device in devices if device.name == name]
        if len(equal) >= FEWEST:
            yield from _lost_peers(equal)
            yield from _different(equal, traits)


def off_bus(addresses: Sequence[str]) -> Iterator[Finding]:
    """The FAIL for GPUs that answer no more; ``addresses``: on the PCI bus."""
    if addresses:
        says = "{addresses} answers no more on the PCI bus: its configuration reads as ff; not tested"
        yield Finding.fail(
            "off-bus",
            says,
            remedy="power the node off and on; if the GPU is lost again, reseat or replace it",
            addresses=list(addresses),
        )


def _lost_peers(equal: Sequence[Device]) -> Iterator[Finding]:
    """Findings on the GPU without which all equal GPUs have peer access to each other."""
    lost = {device: _without_access(device, equal) for device in equal}
    odd = [
        device
        for device in equal
        if lost[device] and all(set(lost[other]) <= {device} for other in equal if other is not device)
    ]
    if len(odd) == 1:
        (device,) = odd
        yield Finding.fail(
            "lost-peer-access",
            "{device} has no peer access to {lost}; the other {others} equal GPUs all have it to each other",
            remedy=CHECK_LINKS,
            device=device.label,
            lost=[other.label for other in lost[device]],
            others=len(equal) - 1,
        )
        return
    if len(odd) == 2:
        yield Finding.warn(
            "differs",
            "{device} have no peer access to each other; all other pairs of {equal} equal GPUs have it",
            remedy=CHECK_LINKS,
            device=[each.label for each in odd],
            equal=len(equal),
        )
        return
    alone = [device for device in equal if len(lost[device]) == len(equal) - 1]
    if len(alone) == 1:
        yield Finding.warn(
            "differs",
            "{device} has no peer access to any equal GPU; the other {others} have some",
            remedy=CHECK_LINKS,
            device=alone[0].label,
            others=len(equal) - 1,
        )


def _without_access(device: Device, equal: Sequence[Device]) -> list[Device]:
    return [
        other
        for other in equal
        if other is not device and not (other.label in device.peers and device.label in other.peers)
    ]


def _different(equal: Sequence[Device], traits: Traits) -> Iterator[Finding]:
    """Findings on the GPU with another value of a trait than all other equal GPUs."""
    sizes = {device.label: f"{device.total_bytes / 2**20:.0f} MiB" for device in equal}
    for trait in (
        "memory",
        *dict.fromkeys(trait for device in equal for trait in traits.get(device.label, ())),
    ):
        values = {
            device: sizes[device.label] if trait == "memory" else traits.get(device.label, {}).get(trait)
            for device in equal
        }
        (usual, times), *others = Counter(values.values()).most_common()
        odd = [device for device in equal if values[device] != usual]
        if usual is None or times != len(equal) - 1 or len(others) != 1 or values[odd[0]] is None:
            continue
        told = {
            "device": odd[0].label,
            "found": values[odd[0]],
            "usual": usual,
            "others": times,
            "trait": trait,
        }
        if trait == LINKS and int(values[odd[0]] or 0) > int(usual):
            continue  # the others need none: a pair is bridged
        if trait == LINKS and 0 < int(values[odd[0]] or 0) < EXPECTED.get(odd[0].name, 0):
            continue  # gpu-health reports it
        if trait == LINKS and not BRIDGED.search(odd[0].name):
            says = "{device} has {found} {trait}; the other {others} equal GPUs have {usual}"
            yield Finding.fail("lost-links", says, remedy=CHECK_LINKS, **told)
        else:
            says = "{device} differs from the other {others} equal GPUs: {trait} {found}, theirs {usual}"
            yield Finding.warn("differs", says, remedy=REMEDIES.get(trait, ""), **told)


REMEDIES = {
    LINKS: CHECK_LINKS,
    "NVLink speed": "check dmesg for Xid errors of NVLink; reset the GPU, which retrains its links",
    "xGMI links": "check dmesg for xGMI errors and the GPU's seat; reset the node, else replace the GPU",
    "memory partition": "set the same mode on all GPUs: amd-smi set --memory-partition",
    "PCIe link": "reseat the GPU; check the riser and the BIOS settings of its slot",
    "memory": "check dmesg for retired memory; if it is the same model, replace the GPU",
    "ECC": "set the same mode on all GPUs: nvidia-smi -e 1, then reset the GPU",
    "VBIOS": "update the firmware of the GPU or of its baseboard",
    "compute partition": "set the same mode on all GPUs: amd-smi set --compute-partition",
}
"""Trait → what to do if one GPU differs in it."""


def picture(devices: Sequence[Device], ways: Mapping[str, Mapping[str, str]]) -> list[Evidence]:
    """Lines of evidence that show how each GPU reaches the others; of fewer than four, if ways are known.

    ``ways``: label → label → the way, such as ``NV18`` or ``SYS``, if it is known; ``-``: no peer access. The
    values ``paths`` also have the ways of pairs without access.
    """
    if len(devices) < (2 if ways else FEWEST):
        return []

    def cell(device: Device, other: Device) -> str:
        if device is other:
            return "X"
        return ways.get(device.label, {}).get(other.label, "P2P") if other.label in device.peers else "-"

    says = "{device} reaches {others}: {ways}"
    others = [device.label for device in devices]
    return [
        Evidence.seen(
            says,
            device=device.label,
            others=others,
            ways=[cell(device, other) for other in devices],
            paths=[ways.get(device.label, {}).get(other, "") for other in others],
        )
        for device in devices
    ]
