"""Figures of the GPUs' health, without a context: NVML's, amdgpu's, and Xids in the kernel's log."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.files.node_files import Tree, quietly
from gpuipc_doctor.model import Json
from gpuipc_doctor.node import kernel_log
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker.nvml import LOST, NOT_FOUND, Nvml

_COUNTERS = {"uncorrected": "umc_err_count", "xgmi": "xgmi_wafl_err_count"}
"""Figure → the file with its count since amdgpu was loaded (Linux, Documentation/gpu/amdgpu/ras.rst)."""


def read(arm: Arm, root: str, gpus: Sequence[Sequence[str]], after: int = -1) -> dict[str, Json]:
    """``gpus``: label, backend, uuid and PCI address of each; empty: all that NVML lists, because a driver
    whose fabric is not ready lists none. ``after``: number of a record of the kernel's log; older Xids are
    left out.

    ``gpus`` of the result: label → figures, see `Nvml.health`. ``lost`` and ``silent``: label → why NVML does
    not answer for it. ``why``: why it does not answer at all. ``loaded_s``: least seconds since NVIDIA's
    driver was loaded; None if unknown. ``log``: number of the last record of the kernel's log; None if it
    cannot be read. ``imex_nodes``: number of nodes in IMEX's configuration.
    """
    tree = Tree(Path(root))
    with arm("read /dev/kmsg"):
        xids, loaded_s, log_end = kernel_log.of_nvidia(tree.path("/dev/kmsg"), after)
    told: dict[str, Json] = {"gpus": {}, "lost": {}, "silent": {}, "why": "", "log": log_end}
    for label, _, _, pci in (gpu for gpu in gpus if not SUPPORTED[gpu[1]].manages):
        told["gpus"][label] = dict(_of_amdgpu(tree, pci))
    asked = [gpu for gpu in gpus if SUPPORTED[gpu[1]].manages]
    if asked or not gpus:
        try:
            nvml = Nvml(arm)
            for label, pci, found in _nvidia(nvml, asked):
                if isinstance(found, DriverError):
                    of = "lost" if found.fault.code in LOST else "silent"
                    if found.fault.code == NOT_FOUND:  # a GPU or MIG instance that NVML lists by another name
                        told["why"] = str(found.fault)
                    else:
                        told[of][label] = str(found.fault)
                    continue
                here = {"xids": log} if (log := xids.get(pci.lower().partition(".")[0])) else {}
                told["gpus"][label] = {**found, **here}
        except (OSError, DriverError) as error:
            told["why"] = str(error.fault if isinstance(error, DriverError) else error)
    config = tree.path("/etc/nvidia-imex/nodes_config.cfg")
    nodes = [line for line in quietly(config).splitlines() if line.strip() and not line.startswith("#")]
    return told | {"loaded_s": _since(tree, loaded_s), "imex_nodes": len(nodes)}


def _nvidia(
    nvml: Nvml, asked: Sequence[Sequence[str]]
) -> Iterator[tuple[str, str, dict[str, Json] | DriverError]]:
    """(label, PCI address, figures or why there are none) of each GPU."""
    numbers: Sequence[Any] = asked or range(nvml.count())
    for one in numbers:
        label, pci = (one[0], one[3]) if asked else (f"GPU {one}", "")
        try:
            by_name = asked and (nvml.by_uuid(one[2]) if one[2] else nvml.by_pci(pci))
            device = by_name or nvml.by_index(one)
            pci = pci or nvml.pci(device)
            yield label, pci, {"name": nvml.name(device), "pci": pci, **nvml.health(device)}
        except DriverError as error:
            yield label, pci, error


def _of_amdgpu(tree: Tree, pci: str) -> Iterator[tuple[str, Json]]:
    for figure, file in _COUNTERS.items():
        with suppress(OSError):
            text = tree.text(f"/sys/bus/pci/devices/{pci}/ras/{file}")
            if found := re.search(r"^ue: (\d+)$", text, re.MULTILINE):
                yield figure, int(found[1])
    replays = tree.line(f"/sys/bus/pci/devices/{pci}/pcie_replay_count")  # amdgpu, amdgpu_device.c
    if replays.isdecimal():
        yield "counters", {"pcie-replay": [int(replays)]}


def _since(tree: Tree, loaded_s: float | None) -> float | None:
    """Least seconds since the driver was loaded. Linux may make a directory of /sys anew, never before it."""
    up = tree.line("/proc/uptime").partition(" ")[0]
    if loaded_s is not None and re.fullmatch(r"\d+(\.\d+)?", up):
        return float(up) - loaded_s
    try:
        return time.time() - tree.path("/sys/module/nvidia").stat().st_mtime
    except OSError:
        return None
