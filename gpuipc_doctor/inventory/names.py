"""All possible names of facts: the closed set to which known issues refer.

In addition there is ``env:NAME`` for each environment variable known to the package `environment`.
"""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "os": "distribution",
    "cpu": "processor and its architecture",
    "kernel": "Linux kernel",
    "boot-parameters": "kernel boot parameters for devices, DMA and memory",
    "kernel-dma-buf": "kernel options for dma-buf between devices",
    "iommu": "mode of the IOMMU: off, passthrough or translating; on: the mode is unknown",
    "acs": "PCIe bridges that send traffic between devices through the root (access control, ACS)",
    "numa-balancing": "whether the kernel migrates pages between NUMA nodes (automatic NUMA balancing)",
    "ptrace-scope": "which processes a process may trace (Yama); 0: all of the same user",
    "perf-event-paranoid": "whether users may sample processes (perf); above 2: only root",
    "seccomp": "system call filters of this process (seccomp), as containers set them",
    "memlock": "how much memory a process may lock",
    "dev-shm": "size of /dev/shm",
    "container": "kind of container",
    "namespaces": "pid, ipc, user and uts namespaces that differ from the node's",
    "nvidia-driver": "NVIDIA driver; two rows if kernel module and libraries have different versions",
    "nvidia-module": "NVIDIA's kernel module: open or proprietary",
    "libcuda": "CUDA driver library that processes load, possibly from a compatibility package",
    "cuda-driver": "newest CUDA that the driver can run",
    "cuda-runtime": "CUDA runtime library",
    "mig": "whether GPUs are split into instances (MIG)",
    "compute-mode": "how many processes may use a GPU",
    "persistence": "whether the driver keeps idle GPUs initialised",
    "imex-channels": "NVIDIA's IMEX channels; without one, no fabric handles",
    "imex-daemon": "whether nvidia-imex, the daemon for IMEX channels, is running",
    "nvidia-peermem": "kernel module nvidia_peermem, or its predecessor nv_peer_mem",
    "gdrcopy": "GDRCopy: kernel module gdrdrv and its library",
    "amdgpu": "AMD kernel driver; as part of the kernel it has no version of its own",
    "rocm": "ROCm release",
    "hip-driver": "HIP driver",
    "hip-runtime": "HIP runtime library",
    "intel-compute-runtime": "Intel compute runtime (Level Zero)",
    "gpu-model": "models of the GPUs that the kernel driver lists",
    "xpmem": "kernel module xpmem",
    "kdreg2": "kernel module kdreg2, which reports freed memory to libfabric",
    "mpich": "MPICH",
    "cray-mpich": "Cray MPICH",
    "openmpi": "Open MPI",
    "intel-mpi": "Intel MPI",
    "mvapich": "MVAPICH",
    "other-mpi": "an MPI library of another family",
    "mpi4py": "why mpi4py finds no MPI; if it finds one, that MPI has its own row",
    "ucx": "UCX",
    "libfabric": "libfabric",
    "shs-libfabric": "libfabric of HPE's Slingshot host software",
    "libfabric-providers": "providers that libfabric lists",
    "shs": "release of HPE's Slingshot host software",
    "cxi-driver": "HPE Cassini driver",
    "cxi-devices": "HPE Cassini network interfaces",
    "mlnx-ofed": "NVIDIA's (Mellanox') OFED",
    "psm2": "PSM2, Omni-Path's messaging library",
    "nccl": "NCCL",
    "rccl": "RCCL",
    "slurm": "Slurm",
    "pytorch": "PyTorch",
    "cupy": "CuPy",
    "kokkos": "Kokkos",
    "vllm": "vLLM",
}
"""Name → description, in the order of the inventory's rows.

``psm2`` and ``kokkos`` are not read: the library psm2 does not report its version, and kokkos is part of
applications.
"""
