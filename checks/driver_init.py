"""Initialise each driver and list its devices: the first calls of every GPU program, which can hang.

Four or more equal GPUs are compared: one that differs from all others is a finding without any site config.
So is a GPU that no longer answers on the PCI bus, and one without free memory: other processes hold it
(`no-room`), or the driver lost it (`memory-lost`). Such a GPU is not tested.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Device, Finding, ProbeOutcome, SurveyCheck, Tier
from gpuipc_doctor.api.equal_gpus import odd_gpus, off_bus, picture
from gpuipc_doctor.api.leak_report import REINSTALL

DESCRIPTION = ("backend", "index", "uuid", "pci", "name", "total_bytes")
"""Device properties that are needed to plan checks."""


class DriverInit(SurveyCheck):
    id = "driver-init"
    title = "driver initialises and lists its devices"
    subject = None
    tier = Tier.PROLOG

    def judge(self, done: ProbeOutcome) -> Iterable[Finding]:
        seen = done.records["driver"]
        yield from off_bus(lost := seen.get("off_bus", []))
        if "unavailable" not in seen:
            names = [device["name"] for device in seen["devices"]]
            counts = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
            devices = [
                Device(
                    **{name: device[name] for name in DESCRIPTION}, peers=frozenset(device.get("peers", ()))
                )
                for device in seen["devices"]
            ]
            pairs = picture(devices, seen.get("ways", {}))
            yield Finding.ok("initialised", "{devices}", *pairs, devices=counts)
            yield from misdescribed(devices)
            told = [*names, *(value for _, value, _ in seen["facts"] if value)]
            yield from without_version(seen["facts"])
            yield from not_text([text for text in told if "\N{REPLACEMENT CHARACTER}" in text])
            answer = seen["on_bus"] - len(lost)
            yield from missing(len(names), answer, seen["hiding"], seen.get("mistakes", []))
            yield from not_shown(devices, seen.get("instances", 0))
            yield from odd_gpus(devices, seen.get("traits", {}))
        else:
            conclude = Finding.error if seen["broken"] or done.params["required"] else Finding.skip
            yield conclude("unavailable", "{reason}", remedy=seen["remedy"], reason=seen["unavailable"])


def misdescribed(devices: list[Device]) -> Iterable[Finding]:
    """Findings on devices with impossible sizes or identities; these devices are not tested."""
    for device in devices:
        if not device.has_credible_size:
            yield Finding.fail(
                "wrong-size",
                "the driver reports {total:bytes} of memory for {device}; not tested",
                remedy=REINSTALL,
                device=device.label,
                total=device.total_bytes,
            )
    for what, value in {"name": "name", "pci": "PCI address"}.items():
        if lacking := [device.label for device in devices if not getattr(device, what)]:
            yield Finding.warn(
                "not-described",
                "the driver reports no {what} for {devices}",
                remedy=REINSTALL,
                what=value,
                devices=lacking,
            )
    nameless = [device.label for device in devices if device.vendor.choice.by_uuid and not device.uuid]
    if len(nameless) > 1:
        yield Finding.warn(
            "no-uuid",
            "the driver reports uuids of zeros for {devices}: programs that choose GPUs by uuid confuse them",
            remedy=REINSTALL,
            devices=nameless,
        )
    for identity, alike in same(devices, "identity").items():
        yield Finding.fail(
            "same-identity",
            "the driver reports the same UUID for {devices}: {identity}; none of them was tested",
            remedy=REINSTALL,
            devices=[device.label for device in alike],
            identity=identity,
        )
    for pci, alike in same(devices, "pci").items():
        if len({device.identity for device in alike}) == len(alike):
            yield Finding.warn(
                "same-pci-address",
                "the driver reports the same PCI address for {devices}: {pci}",
                remedy="nothing to do for partitions of one GPU; for whole GPUs, reinstall the driver",
                devices=[device.label for device in alike],
                pci=pci,
            )


def same(devices: list[Device], what: str) -> dict[str, list[Device]]:
    """Identity or PCI address → the devices that have it."""
    alike: dict[str, list[Device]] = {}
    for device in devices:
        alike.setdefault(getattr(device, what), []).append(device)
    return {value: found for value, found in alike.items() if value and len(found) > 1}


def without_version(facts: list[list[str | None]]) -> Iterable[Finding]:
    """Warn if the driver reports no version. A version from NVML is not required, as NVML may be missing."""
    if lacking := [source for name, value, source in facts if value is None and name != "nvidia-driver"]:
        says = "the driver reports no version ({answers}): issues of certain versions cannot be identified"
        yield Finding.warn("no-version", says, remedy=REINSTALL, answers=lacking)


def not_text(texts: list[str]) -> Iterable[Finding]:
    """Warn about names and versions that are not valid UTF-8."""
    if texts:
        says = "the driver returned text that is not UTF-8: {texts}"
        yield Finding.warn("not-text", says, remedy=REINSTALL, texts=texts)


def missing(here: int, on_bus: int, hiding: list[str], mistakes: list[str]) -> Iterable[Finding]:
    """Findings on the node's GPUs that this process does not see."""
    if here >= on_bus:
        return
    counts = {"missing": on_bus - here, "on_bus": on_bus}
    if hiding:
        yield Finding.skip(
            "hidden",
            "{missing} of {on_bus} GPUs on the PCI bus not tested: "
            + "; ".join(["{hiding} hides them", *["{mistake}"] * bool(mistakes)]),
            remedy=f"unset {' and '.join(each.partition('=')[0] for each in hiding)} to test all GPUs",
            hiding=" ".join(hiding),
            **({"mistake": "; ".join(mistakes)} if mistakes else {}),
            **counts,
        )
    else:
        yield Finding.warn(
            "not-listed",
            "{missing} of {on_bus} GPUs on the PCI bus not tested: the driver does not list them",
            remedy="check dmesg for lost GPUs; in a container, check which GPUs it was given",
            **counts,
        )


def not_shown(devices: list[Device], given: int) -> Iterable[Finding]:
    """Warn about MIG instances that were given by name and that CUDA does not list beside the first
    (NVIDIA MIG user guide, "Device Enumeration")."""
    if devices and len(devices) < given:
        yield Finding.warn(
            "instances-not-shown",
            "of {given} MIG instances CUDA shows one to a process: {devices} is tested, {others} are not",
            remedy="run the check once for each: CUDA_VISIBLE_DEVICES=MIG-… gpuipc-doctor check",
            given=given,
            devices=[device.label for device in devices],
            others=given - len(devices),
        )


CHECK = DriverInit()
