"""Known gaps in an MPI library's support of device memory, which are left out of histories."""

from __future__ import annotations

from collections.abc import Mapping

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
