"""``gpuipc-doctor memory``: device memory by process, once or continuously.

`sampling` runs in a worker, because NVML and the kernel's files can hang; `watching` runs that worker and
passes on its samples; `usage_trend` computes growth; `memory_content` presents the result. No GPU context is
created, so watching uses no device memory.
"""
