"""What each vendor documents for a case in which vendors differ, or might: the table behind ``Gpu.expects``.

A value is one of a few words (`VALUES`). ``unspecified`` means that no source says: a check then records
what it sees and concludes nothing from it. The values of one driver do not bind others: a check that meets
the opposite of a *measured* value warns rather than fails unless data were wrong.

CUDA's column was measured, row by row, on an H200 (driver 580.159.04, CUDA 13.0, open kernel module,
2026-11-20); `tests/conformance` holds every row as a test that also runs on a real GPU. HIP's column was
read in the sources of AMD's runtime (ROCm/rocm-systems, ``projects/clr``, as of 2026), its tests and its
documentation. ``hip-5``, ``hip-6`` and ``hip-7`` are for runtimes of that generation, where they were seen to
differ: on Debian's builds, over an emulated kernel driver (`tests/kfd`), not on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

UNSPECIFIED = "unspecified"

VALUES = frozenset(
    {
        "succeeds",
        "refused",
        "counted",
        "separate",
        "base",
        "interior",
        "same",
        "differs",
        "ends",
        "stays",
        "crashes",
    }
)
"""``counted``: success, the same address, one close per open. ``separate``: success, another address for
each open, closed by itself. ``base`` and ``interior``: which address an
interior pointer's handle opens to. ``same`` and ``differs``: two handles compared. ``ends`` and ``stays``:
what becomes of an open mapping."""

CUDA_MEM = (
    "cuIpcOpenMemHandle, https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html: handles of a "
    "device in a process may only be opened by one context per device of another process"
)
SEEN = "seen on HIP {} over an emulated kernel driver, 2026-11-23"
ROCM_5, ROCM_6, ROCM_7 = (SEEN.format(release) for release in ("5.2.3", "6.4.3", "7.2.4"))
H200 = "measured on H200, driver 580.159.04, CUDA 13.0, 2026-11-20"
_CLR = "https://github.com/ROCm/rocm-systems/blob/01ad4049f1dc9eeacef423889f9d47681d294d36/projects/clr/"
HIP_MEMORY = _CLR + "hipamd/src/hip_memory.cpp"
HIP_CONTEXT = _CLR + "hipamd/src/hip_context.cpp"
ROCCLR_DEVICE = _CLR + "rocclr/device/device.cpp"
HIP_HEADER = (
    "https://rocm.docs.amd.com/projects/hipfort/en/latest/doxygen/html/"
    "interfacehipfort_1_1hipipcopenmemhandle.html"
)
HIP_TESTS = (
    "https://github.com/ROCm/rocm-systems/blob/48a47e21bd54a1a1b71ab4a6d2f1033390a4a222/"
    "projects/hip-tests/catch/multiproc/hipIpcMemAccessTest.cc"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One vendor's answer to one case: a word of `VALUES` or `UNSPECIFIED`, and where it is written."""

    value: str
    source: str


def _none(why: str) -> Rule:
    return Rule(UNSPECIFIED, why)


CASES: dict[str, dict[str, Rule]] = {
    # Exporting
    "export-twice": {
        "cuda": Rule("same", H200),
        "hip": _none("the handle is hsa_amd_ipc_memory_create's, called anew for each export"),
    },
    "export-after-reuse": {  # free, allocate the same size at the same address, export again
        "cuda": Rule("differs", H200),
        "hip": _none("no source compares handles"),
    },
    "export-part-after-reuse": {  # the same with small allocations, in a segment that lives on
        "cuda": Rule("same", "seen on H100, driver 580.159.04, 2026-11-24"),
        "hip": _none("no source compares handles"),
    },
    "export-interior-pointer": {
        "cuda": Rule("base", H200),
        "hip": Rule("interior", f"IpcCreate stores the offset, IpcBuffer adds it: {ROCCLR_DEVICE}"),
        "hip-5": Rule("base", ROCM_5),
        "hip-6": Rule("base", ROCM_6),
        "hip-7": Rule("base", ROCM_7),
    },
    "export-imported-pointer": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none(f"IpcCreate does not look at where the memory is from: {ROCCLR_DEVICE}"),
    },
    "export-async-pool": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none("a pool without VMM hands out memory that IpcCreate accepts"),
    },
    "export-managed": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none("left to hsa_amd_ipc_memory_create"),
    },
    "export-pinned-host": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none("left to hsa_amd_ipc_memory_create"),
    },
    "export-vmm": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"IpcCreate, hipErrorInvalidValue: {ROCCLR_DEVICE}"),
    },
    # Opening
    "open-own-process": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_CONTEXT"),
        "hip": Rule("refused", f"hipIpcOpenMemHandle, hipErrorInvalidContext: {HIP_MEMORY}"),
        "hip-5": Rule("succeeds", ROCM_5),
    },
    "open-twice": {
        "cuda": Rule("counted", H200),
        "hip": Rule("counted", f"hipIpcOpenMemHandle retains what it already opened: {HIP_MEMORY}"),
        "hip-5": Rule("separate", ROCM_5),
        "hip-6": Rule("separate", ROCM_6),
    },
    "open-in-second-context": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_HANDLE"),
        "hip": Rule("counted", f"hipCtxCreate hands out the one context of the device: {HIP_CONTEXT}"),
        "hip-5": Rule("separate", ROCM_5),
        "hip-6": Rule("separate", ROCM_6),
    },
    "open-another-in-second-context": {  # another allocation of the same exporter on the same device
        "cuda": Rule("refused", f"{CUDA_MEM}; seen on H200, driver 580.159.04, 2026-11-23: INVALID_HANDLE"),
        "hip": Rule("succeeds", f"hipCtxCreate hands out the one context of the device: {HIP_CONTEXT}"),
    },
    "open-over-stale-part": {  # small allocations of one segment and of two sizes, the first freed while open
        "cuda": Rule("refused", "seen on H100, driver 580.159.04, 2026-11-23: CUDA_ERROR_ALREADY_MAPPED"),
        "hip": _none(f"freeing before the importer closed is undefined behaviour: {HIP_HEADER}"),
    },
    "open-flags-zero": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipIpcOpenMemHandle, hipErrorInvalidValue: {HIP_MEMORY}"),
        "hip-5": Rule("succeeds", ROCM_5 + ": flags must be 0"),
    },
    "open-zero-handle": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipIpcOpenMemHandle, size 0 is hipErrorInvalidValue: {HIP_MEMORY}"),
    },
    "open-random-handle": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipErrorInvalidValue or hipErrorInvalidDevicePointer: {HIP_TESTS}"),
        "hip-5": Rule("crashes", ROCM_5 + ": SIGSEGV"),
    },
    "open-tampered-handle": {  # one bit of byte 40 flipped
        "cuda": Rule("succeeds", H200),
        "hip": _none("no source says how much of a handle is looked at"),
    },
    "open-stale-handle": {  # old allocation freed, same address allocated anew, both handles opened
        "cuda": Rule("succeeds", H200 + ": only the data can tell"),
        "hip": _none(f"freeing before the importer closed is undefined behaviour: {HIP_HEADER}"),
    },
    "open-freed-still-mapped": {
        "cuda": Rule("succeeds", H200),
        "hip": _none(f"freeing before the importer closed is undefined behaviour: {HIP_HEADER}"),
    },
    "open-freed-everywhere": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none(f"freeing before the importer closed is undefined behaviour: {HIP_HEADER}"),
    },
    "open-after-exporter-exit": {  # every mapping of its memory is closed, too
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_HANDLE"),
        "hip": _none("no source speaks of an exporter that exits"),
    },
    "open-on-peer-device": {
        "cuda": Rule("succeeds", H200 + ", NVLink"),
        "hip": Rule("succeeds", f"where hipDeviceCanAccessPeer says so: {HIP_TESTS}"),
    },
    "open-without-seeing-the-exporters-device": {
        "cuda": Rule("succeeds", H200 + ": CUDA_VISIBLE_DEVICES=1 opens GPU 0's memory"),
        "hip": _none(f"refused when the exporter's ordinal is not below the importer's count: {HIP_MEMORY}"),
    },
    # Mappings
    "mapping-when-its-context-is-destroyed": {
        "cuda": Rule("ends", H200),
        "hip": Rule("stays", f"hipCtxDestroy drops a reference, nothing else: {HIP_CONTEXT}"),
    },
    "mapping-when-the-primary-context-is-reset": {
        "cuda": Rule("ends", H200),
        "hip": Rule("stays", f"hipDevicePrimaryCtxReset does nothing and succeeds: {HIP_CONTEXT}"),
    },
    "mapping-when-the-exporter-frees": {
        "cuda": Rule("stays", H200 + ": memory comes back at the last close"),
        "hip": _none(f"undefined behaviour: {HIP_HEADER}"),
    },
    "mapping-when-the-exporter-exits": {
        "cuda": Rule("stays", H200),
        "hip": _none("no source speaks of an exporter that exits"),
    },
    "free-imported-pointer": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": _none("no source speaks of it"),
    },
    "close-once-too-often": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipIpcCloseMemHandle, hipErrorInvalidValue: {HIP_MEMORY}"),
    },
    "close-own-allocation": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipIpcCloseMemHandle, hipErrorInvalidValue: {HIP_MEMORY}"),
    },
    "close-unknown-pointer": {
        "cuda": Rule("refused", H200 + ": CUDA_ERROR_INVALID_VALUE"),
        "hip": Rule("refused", f"hipIpcCloseMemHandle, hipErrorInvalidValue: {HIP_MEMORY}"),
    },
}
"""Case → backend, or generation of a backend → rule."""


def rule(backend: str, case: str, generation: int = 0) -> Rule:
    """The rule of ``case`` for ``backend``, in this generation of its runtime where that differs.

    Raises `KeyError` for a case that the table does not have.
    """
    rules = CASES[case]
    return rules.get(f"{backend}-{generation}", rules[backend])


def expects(backend: str, case: str, generation: int = 0) -> str:
    """The value of that rule."""
    return rule(backend, case, generation).value
