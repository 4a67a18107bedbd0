"""Documented gaps in an MPI library's support of device memory, which are left out of histories."""

from __future__ import annotations

from collections.abc import Mapping

DERIVED = "derived types"

LACKS: Mapping[str, str] = {
    # 2021.17 with I_MPI_OFFLOAD=1 prints "check_for_device_buffer(): Non-contigious datatypes support for
    # offloaded buffers has not been implemented yet". MPI_Sendrecv that sends device memory and receives a
    # derived type in host memory ends in "Abort(1): Internal error" (seen on a simulated driver).
    "intel-mpi": DERIVED,
}
"""Family of an MPI library → the unsupported feature."""
