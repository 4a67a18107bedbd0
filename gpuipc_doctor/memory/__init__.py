"""``gpuipc-doctor memory``: who holds how much device memory, once or as it goes.

`sampling` runs in a worker, for NVML can hang, and so can the kernel's files; `watching` runs that worker and
hands on what it tells; `history` knows what grows; `memory_content` shows it. No context is made on any GPU,
so watching takes no device memory.
"""
