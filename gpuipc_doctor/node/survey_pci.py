"""PCI Express: whether bridges let devices communicate directly instead of through the root."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.node.survey_records import record

_ACS = 0x000D
_REDIRECT = 0x0C
"""Bits of the ACS control register: P2P Request Redirect and P2P Completion Redirect (PCI Express base
specification, "Access Control Services")."""


def bridges(w: Worker) -> None:
    tree = Tree(Path(w.params["root"]))
    where = "/sys/bus/pci/devices/*/config"
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


def acs_control(space: bytes) -> int | None:
    """The ACS control register in a PCI Express configuration space; None if the device has none."""
    at, seen = 0x100, 0
    while 0x100 <= at <= len(space) - 8 and seen < 64:
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at, seen = header >> 20, seen + 1
    return None
