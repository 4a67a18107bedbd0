"""Known gaps in an MPI library's support of device memory, which are left out of histories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuipc_doctor.histories.group_cases import (
    ATOMIC,
    COLLECTIVES,
    NONBLOCKING,
    ONE_SIDED,
    SENDRECV_REPLACE,
    base,
)
from gpuipc_doctor.histories.message_memories import POOL, STRADDLING, VMM
from gpuipc_doctor.histories.used_calls import USES, WAYS
from gpuipc_doctor.probe_types import MpiStack

DERIVED = "derived types"
SELF = "messages of a rank to itself"

_LACKS: Mapping[str, tuple[str, ...]] = {
    # 2021.17 with I_MPI_OFFLOAD=1 prints "check_for_device_buffer(): Non-contigious datatypes support for
    # offloaded buffers has not been implemented yet". MPI_Sendrecv that sends device memory and receives a
    # derived type in host memory ends in "Abort(1): Internal error" (seen on a simulated driver).
    "intel-mpi": (DERIVED,),
}
"""Family of an MPI library → unsupported features."""

_LACKS_OVER_UCX: Mapping[str, tuple[str, ...]] = {
    # Each ended the sender by SIGSEGV: MPICH 5.0.2 on two H200s and on an H100, Open MPI 5.0.11 on an H100,
    # both over UCX 1.22.0, 2026-11-26.
    "mpich": (DERIVED, SELF),
    "openmpi": (DERIVED,),
}
"""Family → features that fail if the library was built without GPU support and UCX moves device memory."""


def lacks(family: str, *, over_ucx: bool) -> tuple[str, ...]:
    """Features that this MPI does not support in device memory; empty if none is known.

    ``over_ucx``: whether UCX moves the MPI's device memory, because the MPI was built without GPU support.
    """
    return (_LACKS_OVER_UCX if over_ucx else {}).get(family, ()) or _LACKS.get(family, ())


GROUP_CALLS = (*COLLECTIVES, *NONBLOCKING, *ONE_SIDED, *ATOMIC)

_REDUCTIONS = tuple(
    call for call in (*COLLECTIVES, *NONBLOCKING) if re.search("reduce|scan", call, re.IGNORECASE)
)

_BY_THE_LIBRARY = tuple(
    {use.call: 0 for use in USES if use.call not in (*GROUP_CALLS, *WAYS, "MPI_Sendrecv")}
)
"""Calls of the table in which the library itself may copy or add: persistent, non-blocking, of neighbours,
with a request, and MPI_Pack."""


def unsupported_calls(mpi: MpiStack, backend: str) -> Sequence[str]:
    """Calls of all ranks that this library does not support on device memory, by its documentation.

    A library without a GPU path takes only simulated device memory, which is host memory to it: then none.
    Sources, read on 2026-11-27: docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/cuda.html; for 4.x
    www.open-mpi.org/faq/?category=runcuda; github.com/pmodels/mpich/wiki/GPU-Support-Matrix-(3.4.x). A
    library built without CUDA over a UCX with CUDA copies and adds as in host memory: SIGSEGV in MPI_Alltoall
    (open-mpi/ompi#9906, easybuilders/easybuild-easyconfigs#14801), MPI_Put (pmodels/mpich#4832) and
    MPI_Sendrecv_replace (Open MPI 5.0.11 on two H200s).
    """
    if not mpi.has_gpu_path:
        return ()
    if mpi.ucx and mpi.family in ("openmpi", "mpich"):
        copying = (SENDRECV_REPLACE, *_BY_THE_LIBRARY, "MPI_Bsend", "MPI_Ibsend")
        return (*(call for call in GROUP_CALLS if call != "MPI_Bcast"), *copying)
    if mpi.family == "openmpi":
        return (*NONBLOCKING, *ATOMIC, "MPI_Accumulate", "MPI_Get_accumulate", *_BY_THE_LIBRARY)
    if mpi.family == "mpich" and backend == "hip" and mpi.version.startswith("3.4."):
        lacks = (*_REDUCTIONS, *ONE_SIDED, *ATOMIC)
        return (*lacks, *(call for call in _BY_THE_LIBRARY if base(call) in lacks))
    return ()


def untried_table(mpi: MpiStack) -> str:
    """Why the table of calls (`used_calls`) is not made with this library; empty if it is.

    Intel MPI 2021.17, on a simulated NVIDIA driver, 2026-11-29: MPI_Mrecv and the MPI_Wait after MPI_Rput end
    in SIGSEGV, the latter also in host memory; MPI_Ialltoallv hangs, MPI_Neighbor_allgather delivers half
    of the data; after MPI_Send other calls fail. On a GPU nobody has tried.
    """
    return "rarer calls were not verified with Intel MPI" if mpi.family == "intel-mpi" else ""


def unsupported_memory(mpi: MpiStack, backend: str) -> Sequence[str]:
    """Kinds of device memory that this library cannot share, by its driver's documentation.

    Intel MPI shares all device memory by cuIpcGetMemHandle: 2021.17 names no other exporting call. NVIDIA
    documents that call for memory of cuMemAlloc only; memory of pools and VMM has calls of its own.

    UCX shares memory of AMD GPUs by ROCr's IPC handles, as hipIpcGetMemHandle returns them; AMD documents
    that call for memory of hipMalloc (rocm.docs.amd.com, hipfort's hipIpcGetMemHandle). MPI_Sendrecv of
    64 KiB of VMM memory never returned: MPICH 5.0.2 over UCX 1.23.0 on ROCm 6, emulated kernel driver,
    2026-11-27.
    """
    if mpi.has_gpu_path and mpi.ucx and backend == "hip":
        return VMM, STRADDLING
    if mpi.has_gpu_path and mpi.family == "intel-mpi" and backend == "cuda":
        return POOL, VMM, STRADDLING
    return ()


def calls_in_histories(mpi: MpiStack, backend: str) -> list[str]:
    """Calls of all ranks for histories: those that this library supports.

    Intel MPI 2021.17 ignores MPI_Alltoall in place and reduces too little in MPI_Reduce_scatter_block in
    place, which `mpi-collectives` reports: in histories they would hide all else.
    """
    without = [*unsupported_calls(mpi, backend)]
    if mpi.family == "intel-mpi" and mpi.has_gpu_path:
        without += ["MPI_Alltoall", "MPI_Reduce_scatter_block"]
    return [call for call in GROUP_CALLS if call not in without]
