"""What C programs of histories call a vendor's driver functions, and how those differ from CUDA's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FD = "(void *)(intptr_t)fd"


class NotInC(Exception):
    """The history has an operation, or is of a backend, that cannot be written in C."""


@dataclass(frozen=True, slots=True)
class CDriver:
    """The C statements of histories have CUDA's functions. Symbols with a version are called, since CUDA 13's
    header redefines some plain names."""

    prefix: str
    """What the names of functions begin with."""
    allocate: str
    free: str
    copy: str
    begin: str
    """The statements that initialise the driver and make a context current."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """CUDA's symbol → the vendor's, if not the same name after its prefix."""
    pools_have_one_descriptor: bool = False
    """Whether each export of a pool returns the same descriptor, which stays open until the pool ends."""
    asks_version: str = ""
    imported: str = _FD
    """The argument with which a pool is imported, after ``asks_version``."""

    def symbol(self, of_cuda: str) -> str:
        if self.prefix == "cu":
            return of_cuda
        return self.renamed.get(of_cuda) or re.sub(r"^cu(.*?)(_v\d)?$", rf"{self.prefix}\1", of_cuda)


DRIVERS = {
    "cuda": CDriver(
        prefix="cu",
        allocate="cuMemAlloc_v2",
        free="cuMemFree_v2",
        copy='driver("cuMemcpy")((uint64_t)to, (uint64_t)from, nbytes)',
        begin="""
    void *context;
    driver("cuInit")(0);
    driver("cuDevicePrimaryCtxRetain")(&context, 0); driver("cuCtxSetCurrent")(context);""",
    ),
    "hip": CDriver(
        prefix="hip",
        allocate="hipMalloc",
        free="hipFree",
        copy='driver("hipMemcpy")(to, from, nbytes, 4)',
        begin="",
        renamed={
            "cuDeviceGetCount": "hipGetDeviceCount",
            "cuDriverGetVersion": "hipRuntimeGetVersion",
            "cuCtxSynchronize": "hipDeviceSynchronize",
            "cuMemAlloc_v2": "hipMalloc",
            "cuMemFree_v2": "hipFree",
            "cuMemAllocFromPoolAsync": "hipMallocFromPoolAsync",
            "cuMemFreeAsync": "hipFreeAsync",
        },
        pools_have_one_descriptor=True,
        asks_version="int version; cuDriverGetVersion(&version); ",
        imported=f"version < 70100000 ? (void *)&fd : {_FD}",
    ),
}
"""Backend → its driver."""


def driver_of(backend: str) -> CDriver:
    """The backend's driver. Raises `NotInC` if there is none in C."""
    if backend not in DRIVERS:
        raise NotInC(f"cannot write C code for {backend}")
    return DRIVERS[backend]
