"""NVIDIA's GPUs, from the kernel driver's list and from NVML, the management library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuipc_doctor.api import DriverError, Worker
from gpuipc_doctor.files.node_files import Tree, gpus_on_bus, shown
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Fact
from gpuipc_doctor.node.file_facts import models
from gpuipc_doctor.node.gpus import of_each
from gpuipc_doctor.node.survey_records import FactRow, record
from gpuipc_doctor.node.survey_room import rooms
from gpuipc_doctor.present.text import ranges
from gpuipc_doctor.vendors import SUPPORTED

if TYPE_CHECKING:
    from gpuipc_doctor.worker.nvml import Nvml


def nvidia(w: Worker) -> None:
    """Record the GPUs' models from ``/proc``, then their modes from NVML. Both may hang in the driver."""
    tree = Tree(Path(w.params["root"]))
    where = "/proc/driver/nvidia/gpus/*/information"
    found = []
    for file in tree.glob(where):
        with w.armed(f"read {file}"):
            try:
                model = re.search(r"^Model:(.*)", tree.text(file), re.MULTILINE)
            except OSError:  # the GPU disappeared after it was listed
                continue
        found.append(model[1] if model else "unknown model")
    fact = models("gpu-model", found, where)
    record(w, (fact.name, fact.value, fact.source))
    for told in _modes(w):
        record(w, told)
    if w.params["rooms"]:
        w.record(rooms=rooms(w))
    for fact in _identity(w):
        record(w, (fact.name, fact.value, fact.source))


def _identity(w: Worker) -> Iterator[Fact]:
    """What a ticket for a GPU or link that is replaced must name, where NVML reports it."""
    from gpuipc_doctor.worker.nvml import Nvml

    with suppress(OSError, DriverError):
        nvml = Nvml(w.armed)
        devices = [nvml.by_index(index) for index in range(nvml.count())]
        addresses = [nvml.pci(device) for device in devices]
        for name, function, read, form in (
            ("gpu-serials", "nvmlDeviceGetSerial", nvml.serial, ""),
            ("gpu-part-numbers", "nvmlDeviceGetBoardPartNumber", nvml.part_number, ""),
            ("nvlink-peers", "nvmlDeviceGetNvLinkRemotePciInfo", _peers(nvml), ".+"),
        ):
            told = ((pci, read(device)) for pci, device in zip(addresses, devices, strict=True))
            yield from of_each(name, told, function, form)


def _peers(nvml: Nvml) -> Callable[[Any], str]:
    def read(device: Any) -> str:
        links = by_key((peer, link) for link, peer in nvml.link_peers(device).items())
        return ", ".join(f"links {ranges(those)} to {peer}" for peer, those in links.items())

    return read


_MODES: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "mig": ("nvmlDeviceGetMigMode", {0: "off", 1: "on"}),
    "compute-mode": (
        "nvmlDeviceGetComputeMode",
        {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"},
    ),
    "persistence": ("nvmlDeviceGetPersistenceMode", {0: "off", 1: "on"}),
}
"""Fact → (NVML's function, meanings of its result; of MIG's, of the first of two), from nvml.h."""


def _modes(w: Worker) -> Iterator[FactRow]:
    from gpuipc_doctor.worker.nvml import Nvml

    try:
        nvml = Nvml(w.armed)
        devices = [nvml.by_index(index) for index in range(nvml.count())]
    except (OSError, DriverError) as error:
        yield from ((fact, None, _why(error)) for fact in _MODES)
        return
    for fact, (function, words) in _MODES.items():
        modes: dict[str, list[str]] = {}
        wrong = f"{function}: no GPU"
        for index, device in enumerate(devices):
            try:
                found = nvml.call(function, device)
            except DriverError as error:
                wrong = _why(error)
            else:
                mode = found[0] if isinstance(found, list) else found
                modes.setdefault(words.get(mode, str(mode)), []).append(str(index))
        if len(modes) == 1:
            yield fact, next(iter(modes)), function
        elif modes:
            parts = (f"{mode} on {', '.join(indices)}" for mode, indices in modes.items())
            yield fact, "; ".join(parts), function
        else:
            yield fact, None, wrong


def _why(error: OSError | DriverError) -> str:
    return f"{error.fault.call}: {error.fault.name}" if isinstance(error, DriverError) else shown(str(error))


# -- PCI Express: whether bridges let devices communicate directly instead of through the root -------------


_ACS = 0x000D
_REDIRECT = 0x0C
"""Bits of the ACS control register: P2P Request Redirect and P2P Completion Redirect (PCI Express base
specification, "Access Control Services")."""


def bridges(w: Worker) -> None:
    tree = Tree(Path(w.params["root"]))
    where = "/sys/bus/pci/devices/*/config"
    for fact in _slots(tree):
        record(w, (fact.name, fact.value, fact.source))
    have, redirect, short = 0, [], False
    for file in tree.glob(where):
        device = file.split("/")[-2]
        if not tree.line(f"/sys/bus/pci/devices/{device}/class").startswith("0x0604"):
            continue
        with w.armed(f"read {file}"):
            try:
                space = tree.raw(file)
            except OSError:
                short = True
                continue
        short |= len(space) <= 64
        control = acs_control(space)
        have += control is not None
        if control is not None and control & _REDIRECT:
            redirect.append(device)
    if redirect:
        some = ", ".join(redirect[:3]) + (", …" if len(redirect) > 3 else "")
        record(w, ("acs", f"redirects traffic at {len(redirect)} of {have} bridges", f"{where} ({some})"))
    elif have:
        record(w, ("acs", "off", f"{where} ({have} bridges)"))
    else:
        why = f"only root can read {where}" if short else f"no bridge with ACS in {where}"
        record(w, ("acs", None, why))


def _slots(tree: Tree) -> Iterator[Fact]:
    """The slots that hold a GPU; a slot's address has no function: ``0000:65:00`` (Linux, pci/slot.c)."""
    where = "/sys/bus/pci/slots/*/address"
    slots = {tree.line(file): shown(file.split("/")[-2]) for file in tree.glob(where)}
    buses = (gpus_on_bus(tree.root, vendor.pci) for vendor in SUPPORTED.values() if slots)
    found = [device.name for devices in buses for device in devices]
    yield from of_each("gpu-slots", ((pci, slots.get(pci[:-2], "")) for pci in found), where, r"\S+")


def acs_control(space: bytes) -> int | None:
    """The ACS control register in a PCI Express configuration space; None if the device has none."""
    at, seen = 0x100, 0
    while 0x100 <= at <= len(space) - 8 and seen < 64:
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at, seen = header >> 20, seen + 1
    return None
