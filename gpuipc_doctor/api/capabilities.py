"""What a GPU and its driver can do, and what to use instead of what they lack."""

from __future__ import annotations

import re
from collections.abc import Collection

CAPABILITIES = frozenset(
    {"legacy-ipc", "multi-process", "contexts", "memory-pools", "vmm-ipc", "pool-ipc", "fabric-handles"}
)
"""Device capabilities, as listed in a check's ``requires``.

``legacy-ipc``: `cuIpcGetMemHandle` or `hipIpcGetMemHandle` and related calls work; between two devices only
with peer access (`Device.peers`). ``multi-process``: several processes may use the device at a time (no
exclusive compute mode). ``contexts``: a process may create several contexts. ``memory-pools``: stream-ordered
allocation from own pools (`cuMemAllocFromPoolAsync`, `hipMallocFromPoolAsync`). ``vmm-ipc``: physical memory
(`cuMemCreate`, `hipMemCreate`) can be exported as a descriptor. ``pool-ipc``: pools can be exported as a
descriptor. ``fabric-handles``: the device claims support for fabric handles; an H200 does so even if it
refuses them without an IMEX channel.
"""

_CAPABILITY_OF_CALL = (
    ("Ipc", "legacy-ipc"),
    ("MemPoolExport|MemPoolImport", "pool-ipc"),
    ("MemPool|Async", "memory-pools"),
    ("Mem(Create|Export|Import)", "vmm-ipc"),
)


def lacking(call: str) -> list[str]:
    """The capability of `CAPABILITIES` that a GPU lacks if it does not support a driver's function."""
    return [name for functions, name in _CAPABILITY_OF_CALL if re.search(functions, call)][:1]


WITHOUT_GPU_IPC = (
    "nothing to repair; run MPI and NCCL without GPU IPC: NCCL_P2P_DISABLE=1, UCX_TLS=^cuda_ipc, "
    "MPICH_GPU_IPC_ENABLED=0"
)
"""What to do on a node whose GPUs have no IPC by design."""

_INSTEAD = {
    "multi-process": "nvidia-smi -c 0; or let jobs share the GPU through MPS",
    "legacy-ipc": WITHOUT_GPU_IPC,
    "vmm-ipc": "nothing to repair; set NCCL_CUMEM_ENABLE=0, and no expandable segments in PyTorch",
    "memory-pools": "nothing to repair; jobs allocate with cudaMalloc or hipMalloc",
    "pool-ipc": "nothing to repair; jobs share memory of cudaMalloc or hipMalloc, not of pools",
    "fabric-handles": "nothing to repair; only NVLink between nodes needs them: NCCL_MNNVL_ENABLE=0",
}


def words_of_lack(lacking: Collection[str], mode: str = "") -> str:
    """What a device cannot do, and how that was recognised. ``mode``: its compute mode, if known."""
    if "multi-process" in lacking:
        mode = mode or "exclusive or prohibited (CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is not 0)"
        return f"admits no second process: its compute mode is {mode}"
    return f"lacks {', '.join(sorted(lacking))}, as its driver states"


def instead_of(lacking: Collection[str]) -> str:
    """What to use without these capabilities."""
    return next((text for name, text in _INSTEAD.items() if name in lacking), "use another GPU or driver")
