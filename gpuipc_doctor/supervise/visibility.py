"""Show a worker only the GPUs that its probe is about: start-up costs grow with every visible GPU.

NVIDIA GPUs are named by uuid, which stays right whatever the user's own ``CUDA_VISIBLE_DEVICES`` had
renumbered. HIP numbers devices after ``ROCR_VISIBLE_DEVICES`` has been applied, so there an index within
the user's own ``HIP_VISIBLE_DEVICES`` is passed on.
Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation
techniques".
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
