"""The settings that switch off one transport each, to find which one is at fault.

Source: NCCL's documentation of its environment variables,
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; RCCL reads the same ones.
"""

from __future__ import annotations

from gpuipc_doctor.probe_types import Workaround

CONTROLS = (
    Workaround(
        {"NCCL_NVLS_ENABLE": "0"}, "without multicast over NVLink", part="multicast over NVLink (NVLS)"
    ),
    Workaround({"NCCL_CUMEM_ENABLE": "0"}, "by legacy IPC instead of CUMEM", part="CUMEM"),
    Workaround({"NCCL_P2P_DISABLE": "1"}, "through host memory instead of peer-to-peer", part="peer-to-peer"),
    Workaround({"NCCL_SHM_DISABLE": "1"}, "without shared memory of the host", part="shared memory"),
)
"""Settings, each tried alone, and what then carries the data."""

PEER_DEFAULTS = (
    Workaround({"NCCL_P2P_DISABLE": "0"}, "peer-to-peer where the library finds it possible"),
    Workaround({"NCCL_P2P_LEVEL": "SYS"}, "peer-to-peer between any two GPUs of the node"),
)
"""Variables that keep GPUs from peer-to-peer; each is tried where it has another value."""
