"""From figures of GPUs to rows of the table: which key, with which values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuipc_doctor.api import Json
from gpuipc_doctor.api.health_rows import ENDING_XIDS, LINKS

SETTLED_S = 600.0
"""Seconds after loading the driver from which a registration with the fabric is stuck."""

NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
"""``nvmlGpuFabricState_t``; 0: not supported."""

ACTIONS = {
    1: "reset it (nvidia-smi -r)",
    2: "reboot the node",
    3: "end all peer-to-peer work with it",
    4: "end its work, then reset it (nvidia-smi -r)",
    5: "recover the IMEX domain",
    6: "reset its PCIe bus",
    7: "reboot the system",
}
"""``nvmlDeviceGpuRecoveryAction_t``; 0: none."""

CONFIGURATIONS = {
    2: "system GUID",
    3: "serial number of the chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware",
    7: "location",
    8: "state of the GPU",
}
"""``NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION``; 0: not supported, 1: none."""

MOST = {"generation": 9, "generations": 9, "lanes": 32, "slot": 32, "state": 3, "recovery": 7}
"""Figure → its largest credible value."""

Row = tuple[str, dict[str, Json]]
"""Key of a finding, and the values of its sentence."""


def rows(gpu: Mapping[str, Json], loaded_s: float | None, *, quick: bool) -> Iterator[Row]:
    """The faults of one GPU. ``quick``: the fabric will not be asked again."""
    action = gpu.get("recovery")
    if action:
        yield "recovery-required", {"action": ACTIONS.get(action, f"action {action}")}
    numbers = sorted({number for number, _ in gpu.get("xids", ()) if number in ENDING_XIDS})
    if numbers and action is None:
        yield "xid", {"numbers": numbers}
    pending, failed = gpu.get("remapped", (0, 0))
    if failed:
        yield "rows-failed", {}
    elif pending:
        yield "rows-pending", {}
    if count := gpu.get("uncorrected"):
        yield "uncorrected-ecc", {"count": count}
    if count := gpu.get("xgmi"):
        yield "xgmi-errors", {"count": count}
    if held := gpu.get("slowdown"):
        yield "clocks-held", {"reason": held}
    found, links = int(gpu.get("links", 0)), LINKS.get(gpu.get("name", ""), 0)
    if 0 < found < links:  # without any, this GPU is not connected: a virtual machine, MIG
        yield "links-down", {"found": found, "links": links}
    if pcie := gpu.get("pcie"):
        idle = (
            "copied" not in gpu and pcie["generation"] < pcie["generations"]
        )  # which may lower the width also
        yield from () if idle else of_link(pcie)
    if fabric := gpu.get("fabric"):
        yield from of_fabric(fabric, loaded_s, quick=quick)


def of_link(pcie: Mapping[str, int]) -> list[Row]:
    """The faults of a PCIe link that is not idle."""
    found: list[Row] = []
    if pcie["lanes"] < pcie["slot"]:
        found.append(("pcie-narrow", {"lanes": pcie["lanes"], "slot": pcie["slot"]}))
    if pcie["generation"] < pcie["generations"]:
        found.append(("pcie-slow", {name: pcie[name] for name in ("generation", "generations")}))
    return found


def of_fabric(fabric: Mapping[str, Json], loaded_s: float | None, *, quick: bool) -> Iterator[Row]:
    state, health = fabric["state"], fabric["health"]
    if state == NOT_STARTED:
        yield "fabric-not-started", {}
    if state == IN_PROGRESS and not quick and loaded_s is not None and loaded_s > SETTLED_S:
        yield "fabric-stuck", {"minutes": int(loaded_s // 60)}
    elif state == IN_PROGRESS:
        yield "fabric-in-progress", {}
    if state != COMPLETED:  # only then do status and health say anything
        return
    if fabric["status"]:
        yield "fabric-error", {"error": f"{fabric['error']} ({fabric['status']})"}
    degraded, recovering, unhealthy, timeout = ((health >> shift) & 3 == 1 for shift in (0, 2, 4, 6))
    if unhealthy:
        yield "fabric-route", {}
    if degraded:
        yield "fabric-degraded", {}
    if recovering or timeout:
        yield "fabric-recovering", {}
    if (number := health >> 8 & 0xF) > 1:
        yield "fabric-config", {"reason": CONFIGURATIONS.get(number, f"number {number}")}


def beyond_belief(gpu: Mapping[str, Json]) -> list[str]:
    """Figures that no GPU has."""
    parts = (gpu, pcie := gpu.get("pcie", {}), gpu.get("fabric", {}))
    large = [f"{name} {of[name]}" for of in parts for name, most in MOST.items() if of.get(name, 0) > most]
    return large + [f"{name} 0" for name, value in pcie.items() if not value]
