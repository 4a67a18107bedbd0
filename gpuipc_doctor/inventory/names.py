"""Every name that a fact of the inventory can have: the closed set to which known issues refer."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "kernel": "Linux kernel",
    "nvidia-driver": "NVIDIA driver; two rows when kernel module and libraries are of different versions",
    "nvidia-module": "which of NVIDIA's kernel modules: open or proprietary",
    "cuda-driver": "newest CUDA that the driver can run",
    "cuda-runtime": "CUDA runtime library",
    "nvidia-peermem": "kernel module nvidia_peermem",
    "gdrcopy": "kernel module gdrdrv",
    "amdgpu": "AMD kernel driver; the one that is part of the kernel has no version of its own",
    "rocm": "ROCm release",
    "hip-runtime": "HIP runtime library",
    "intel-compute-runtime": "Intel compute runtime (Level Zero)",
    "gpu-model": "models of the GPUs that the kernel driver lists",
    "mpich": "MPICH",
    "cray-mpich": "Cray MPICH",
    "openmpi": "Open MPI",
    "intel-mpi": "Intel MPI",
    "mvapich": "MVAPICH",
    "ucx": "UCX",
    "libfabric": "libfabric",
    "shs-libfabric": "libfabric of HPE's Slingshot host software",
    "cxi-driver": "HPE Cassini driver",
    "psm2": "PSM2, Omni-Path's messaging library",
    "nccl": "NCCL",
    "rccl": "RCCL",
    "slurm": "Slurm",
    "pytorch": "PyTorch",
    "cupy": "CuPy",
    "kokkos": "Kokkos",
    "vllm": "vLLM",
}
"""By name, what it is. Their order is that of the inventory's rows. Not everything here is read yet."""
