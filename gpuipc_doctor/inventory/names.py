"""Every name that a fact of the inventory can have: the closed set to which known issues refer.

Beside these there is ``env:NAME`` for each environment variable that the package `environment` knows.
"""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "kernel": "Linux kernel",
    "boot-parameters": "the kernel's boot parameters that have to do with devices, DMA and memory",
    "kernel-dma-buf": "what the kernel was built with for dma-buf between devices",
    "iommu": "off, passthrough, translating, or on when it cannot be told which",
    "acs": "PCIe bridges whose access control sends traffic between devices through the root",
    "numa-balancing": "whether the kernel moves pages between NUMA nodes by itself",
    "ptrace-scope": "which processes may look into which (Yama); 0 is any of the same user",
    "seccomp": "whether system calls of this process are filtered, as containers do, and by how many filters",
    "memlock": "how much memory a process may lock",
    "dev-shm": "size of /dev/shm",
    "container": "what kind of container this is",
    "namespaces": "of pid, ipc, user and uts: the namespaces that are not the node's own",
    "nvidia-driver": "NVIDIA driver; two rows when kernel module and libraries are of different versions",
    "nvidia-module": "which of NVIDIA's kernel modules: open or proprietary",
    "libcuda": "the CUDA driver library that processes would load, of a compatibility package or not",
    "cuda-driver": "newest CUDA that the driver can run",
    "cuda-runtime": "CUDA runtime library",
    "mig": "whether GPUs are split into instances (MIG)",
    "compute-mode": "how many processes may use a GPU",
    "persistence": "whether the driver keeps idle GPUs initialised",
    "imex-channels": "channels of NVIDIA's IMEX here; without one no fabric handle is given",
    "imex-daemon": "whether the process nvidia-imex is seen, which connects the channels of nodes",
    "nvidia-peermem": "kernel module nvidia_peermem, or nv_peer_mem before it",
    "gdrcopy": "GDRCopy: kernel module gdrdrv and its library",
    "amdgpu": "AMD kernel driver; the one that is part of the kernel has no version of its own",
    "rocm": "ROCm release",
    "hip-driver": "HIP driver",
    "hip-runtime": "HIP runtime library",
    "intel-compute-runtime": "Intel compute runtime (Level Zero)",
    "gpu-model": "models of the GPUs that the kernel driver lists",
    "xpmem": "kernel module xpmem",
    "kdreg2": "kernel module kdreg2, which tells libfabric of memory that was freed",
    "mpich": "MPICH",
    "cray-mpich": "Cray MPICH",
    "openmpi": "Open MPI",
    "intel-mpi": "Intel MPI",
    "mvapich": "MVAPICH",
    "other-mpi": "an MPI library of another family",
    "mpi4py": "why mpi4py has no MPI; the one that it has is a row of its family",
    "ucx": "UCX",
    "libfabric": "libfabric",
    "shs-libfabric": "libfabric of HPE's Slingshot host software",
    "libfabric-providers": "the providers that libfabric offers here",
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
"""By name, what it is. Their order is that of the inventory's rows.

``psm2`` and ``kokkos`` are not read: the one's library does not tell its version, the other is part of
applications.
"""
