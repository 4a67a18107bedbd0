"""``gpuipc-doctor memory``: device memory by process, once or continuously.

`sampling` runs in a worker, because NVML and the kernel's files can hang; `watching` runs that worker and
passes on its samples; `history` computes growth; `memory_content` presents it. No GPU context is created, so
watching uses no device memory.
"""
