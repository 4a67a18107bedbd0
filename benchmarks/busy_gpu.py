"""Keep the first visible NVIDIA GPU busy with kernels until this process is ended.

    CUDA_VISIBLE_DEVICES=3 python benchmarks/busy_gpu.py [MIB]

It prints a line when the first kernel has run. Each kernel adds to MIB mebibytes of device memory (default
64) for some milliseconds. Needs cuda-bindings.
"""

from __future__ import annotations

import sys
from ctypes import c_uint32, c_uint64
from pathlib import Path
from typing import Any

from cuda.bindings import driver

KERNELS = Path(__file__).parents[1] / "gpuipc_doctor/worker/backends/kernels.ptx"
TIMES, BLOCKS, THREADS = 32, 1056, 256
TYPES = (c_uint64, c_uint64, c_uint64, c_uint32, c_uint32, c_uint32, c_uint32)


def call(name: str, *arguments: Any) -> Any:
    """The result of a driver call. Exits with a message if it fails."""
    code, *values = getattr(driver, name)(*arguments)
    if code:
        sys.exit(f"busy_gpu: {name} returned {code.name}")
    return values[0] if values else None


def main() -> None:
    nbytes = int(sys.argv[1] if len(sys.argv) > 1 else 64) << 20
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    module = call("cuModuleLoadData", KERNELS.read_bytes() + b"\0")
    add = call("cuModuleGetFunction", module, b"gpuipc_add")
    memory = call("cuMemAlloc", nbytes)
    values = (int(memory), nbytes // 4, 0, 1, TIMES, 0, 0)
    is_first = True
    while True:
        for _ in range(4):  # the next one is queued while one runs
            call("cuLaunchKernel", add, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, (values, TYPES), 0)
        call("cuCtxSynchronize")
        if is_first:
            print("busy", flush=True)
            is_first = False


if __name__ == "__main__":
    main()
