"""Known differences of AMD runtime releases from this suite.

Documented differences between vendors are cases of `gpuipc_doctor.worker.backends.rules`. Each difference
here was seen on one release, Debian's build over the emulated kernel driver, not on a GPU. A reason states
the observation, and whether the cause is only inferred or unknown."""

from __future__ import annotations

_LEAKS_EXPORTS = "ROCm 7.2.4 does not release exported memory when it is freed (ROCm/hip#3886)"
_VM_HEAP = (
    "ROCm 7.2.4 takes a pool's memory from a heap of virtual memory and keeps it there (EnableVmHeap of "
    "hip_mempool_impl.hpp); with DEBUG_HIP_MEM_POOL_VMHEAP=0 the test passes"
)
_KEEPS_IMPORTS = "ROCm 6.4.3 issues no FREE_MEMORY_OF_GPU for VMM memory that it imported by IMPORT_DMABUF"
_NEEDS_EXPORTER = (
    "ROCm {} returns OutOfMemory for the pointer of a pool whose exporter is gone; cause not known"
)

_AS_LATER = "ROCm 5.7.1 refuses it, as 6.4.3 does; generation 5's answer is that of 5.2.3"

SEEN = {
    ("rocm-5.7", "test_open_its_own_handle"): _AS_LATER,
    ("rocm-5.7", "test_open_bytes_that_are_not_a_handle[open-random-handle]"): _AS_LATER,
    ("hip-6", "test_a_descriptor_alone_pins_memory"): _KEEPS_IMPORTS,
    ("hip-6", "test_many_rounds_leave_nothing"): _KEEPS_IMPORTS,
    ("hip-6", "test_another_gpus_memory"): (
        "ROCm 6.4.3 reads imported VMM memory with the exporter's GPU, which has a page fault: the importer "
        "had granted access to its own GPU only; that it is the same on a real GPU is inferred"
    ),
    ("hip-6", "test_the_exporter_is_gone"): _NEEDS_EXPORTER.format("6.4.3"),
    ("hip-7", "test_export_memory_of_another_kind"): (
        "ROCm 7.2.4 as Debian builds it aborts in IPCCreate of runtime.cpp: an assertion about the offset of "
        "VMM memory comes before the error is read, which a build without assertions would return"
    ),
    ("hip-7", "test_the_exporter_is_gone"): _NEEDS_EXPORTER.format("7.2.4"),
    ("hip-7", "test_importer_killed_with_mappings_open"): _LEAKS_EXPORTS,
    ("hip-7", "test_without_a_threshold_memory_is_released_at_the_next_synchronisation"): _VM_HEAP,
    ("hip-7", "test_pool_keeps_memory_up_to_its_threshold_until_trimmed"): _VM_HEAP,
}
"""(generation or release, test or test[case]) → the observation, with its release."""
