"""Have a worker's driver make no more than its probe needs, for what a start costs grows with it.

That is the GPUs which the probe is about, and of the queues between host and GPU the one which a single
stream uses. On an H200 (driver 580.159.04) a process with a context takes 0.09 s of a driver that serves one
process at a time, and 0.21 s with the eight queues that a context has by default.

NVIDIA GPUs are named by uuid, which stays right whatever the user's own ``CUDA_VISIBLE_DEVICES`` had
renumbered. HIP numbers devices after ``ROCR_VISIBLE_DEVICES`` has been applied, so there an index within
the user's own ``HIP_VISIBLE_DEVICES`` is passed on.
Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation
techniques". What HIP's ``GPU_MAX_HW_QUEUES`` would save, nobody has tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuipc_doctor.model import Device

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def hides_gpus(environment: Mapping[str, str]) -> bool:
    """Whether who starts the tool, a batch system for one, chose among the node's GPUs."""
    return any(name in environment for name in _HIDING)


def visible_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for a worker that needs ``devices``, which are all of one backend."""
    if not devices:
        return {}
    if devices[0].backend == "cuda":
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}
    chosen = environment.get("HIP_VISIBLE_DEVICES")
    numbers = chosen.split(",") if chosen else None
    return {
        "HIP_VISIBLE_DEVICES": ",".join(
            numbers[device.index] if numbers else str(device.index) for device in devices
        )
    }


def one_queue(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, str]:
    """The variable to set for a worker whose streams need not run at the same time, unless the user has."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    chosen = name in environment or all(device.backend != "cuda" for device in devices)
    return {} if chosen else {name: "1"}
