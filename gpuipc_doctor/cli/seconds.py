"""Seconds measured on H200s (benchmarks/README.md), which `--help` and the progress display say."""

CHECK_ALL_S = {1: 12, 2: 23, 4: 50, 8: 126}
"""Number of GPUs → seconds of `check --all`; README and docs repeat them, which a test compares."""

PROBE_S = {
    "allocator-growth": 0.8,
    "allocator-pressure": 0.6,
    "allocator-stream-reuse": 1.3,
    "collective-data": 4.1,
    "fabric-small-message": 3.4,
    "ipc-concurrent": 1.1,
    "ipc-histories": 4.1,
    "ipc-vmm-release": 1.5,
    "mpi-cache-growth": 4.2,
    "mpi-collectives": 3.2,
    "mpi-first-touch": 3.3,
    "mpi-histories": 5.3,
    "mpi-stale-buffer": 3.6,
}
"""Check → seconds of one of its probes on two H200s, driver 580.159.04, 2026-11-27."""

OTHERS_PROBE_S = 0.4
"""Seconds of a probe of any other check there."""
