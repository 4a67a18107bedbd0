"""What is legal, and what no driver promises: a table by vendor, each row with its source.

The `model` asks it before each operation. A row that is ``illegal`` is never generated; one that is
``legal`` may be. Sources: NVIDIA's CUDA Driver API documentation, AMD's HIP documentation, and what an H200
(driver 580.159.04) and AMD's sources answer, as `backends.rules` has it in more detail.
"""

from __future__ import annotations

from dataclasses import dataclass

CUDA_MEM = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html"
CUDA_VA = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html"
CUDA_POOL = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html"
HIP_IPC = "https://rocm.docs.amd.com/projects/HIP/en/latest/doxygen/html/group___memory.html"
CLR = (
    "https://github.com/ROCm/rocm-systems/blob/01ad4049f1dc9eeacef423889f9d47681d294d36/projects/clr/"
    "hipamd/src/"
)
H200 = "seen on an H200, driver 580.159.04"

LEGAL, ILLEGAL, DECLARED = "legal", "illegal", "declared"
"""``declared``: no vendor promises it, applications rely on it: done by operations of their own only."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether one vendor's users may do it, and where that is written."""

    value: str
    source: str


RULES: dict[str, dict[str, Ruling]] = {
    "open an exporter's memory in a second context": {
        "cuda": Ruling(
            ILLEGAL,
            f"{CUDA_MEM}: handles of a device in a process may only be opened by one context per device of "
            f"another process; {H200}: CUDA_ERROR_INVALID_HANDLE, for another allocation of it, too",
        ),
        "hip": Ruling(LEGAL, f"{CLR}hip_context.cpp: all contexts of a device are one"),
    },
    "open in the exporting process": {
        "cuda": Ruling(ILLEGAL, f"{CUDA_MEM}; {H200}: CUDA_ERROR_INVALID_CONTEXT"),
        "hip": Ruling(
            ILLEGAL,
            f"{CLR}hip_memory.cpp: hipErrorInvalidContext; ROCm 5.2.3's runtime opens it (474 of 474 times, "
            "over the emulated kernel driver)",
        ),
    },
    "open a handle twice": {
        "cuda": Ruling(LEGAL, f"{CUDA_MEM}: a reference count, each open needs a close"),
        "hip": Ruling(LEGAL, f"{CLR}hip_memory.cpp: what is open already is retained"),
    },
    "free memory that is open elsewhere": {
        "cuda": Ruling(DECLARED, f"{CUDA_MEM}: undefined, before cuIpcCloseMemHandle has been called"),
        "hip": Ruling(ILLEGAL, f"{HIP_IPC}: undefined, before hipIpcCloseMemHandle has been called"),
    },
    "open small memory beside a stale mapping of small memory": {
        "cuda": Ruling(
            ILLEGAL,
            "seen on an H100, driver 580.159.04, 2026-11-23: CUDA_ERROR_ALREADY_MAPPED (208), where the new "
            "buffer has the freed one's place, and another size, in a segment that is still open",
        ),
        "hip": Ruling(ILLEGAL, f"{HIP_IPC}: undefined, as what is freed while it is open"),
    },
    "use a mapping of freed memory": {
        "cuda": Ruling(ILLEGAL, f"{CUDA_MEM}: undefined; it may be closed ({H200})"),
        "hip": Ruling(ILLEGAL, HIP_IPC),
    },
    "use a legacy mapping after the exporter's end": {
        "cuda": Ruling(ILLEGAL, f"{CUDA_MEM}: its memory is freed with it; it may be closed ({H200})"),
        "hip": Ruling(ILLEGAL, "no source speaks of it"),
    },
    "end a process whose memory is open elsewhere": {
        "cuda": Ruling(LEGAL, H200),
        "hip": Ruling(ILLEGAL, "no source speaks of an exporter that exits"),
    },
    "destroy a context ends what lives in it": {
        "cuda": Ruling(LEGAL, f"{CUDA_MEM}; {H200}"),
        "hip": Ruling(ILLEGAL, f"{CLR}hip_context.cpp: a reference is dropped, memory stays"),
    },
    "map physical memory whose handle was released": {
        "cuda": Ruling(ILLEGAL, f"{CUDA_VA}: undefined; {H200}: SIGSEGV"),
        "hip": Ruling(ILLEGAL, "no source speaks of it"),
    },
    "use imported physical memory after the exporter's end": {
        "cuda": Ruling(LEGAL, f"{CUDA_VA}: memory lives as long as a handle or mapping; {H200}"),
        "hip": Ruling(ILLEGAL, "no source speaks of it"),
    },
    "import a pool's pointer twice": {
        "cuda": Ruling(ILLEGAL, f"{H200}: not counted, one free ends both"),
        "hip": Ruling(ILLEGAL, "no source speaks of it"),
    },
    "free pool memory before its importers do": {
        "cuda": Ruling(ILLEGAL, f"{CUDA_POOL}: importers free it first"),
        "hip": Ruling(ILLEGAL, "as CUDA"),
    },
}
"""What is done → backend → ruling."""


def value(backend: str, case: str) -> str:
    """`LEGAL`, `ILLEGAL` or `DECLARED`; `KeyError` for a case that the table does not have."""
    return RULES[case][backend].value
