"""The operations in device memory that an MPI library lacks depend on what transports that memory."""

from __future__ import annotations

import pytest

from gpuipc_doctor.histories.mpi_library_limits import DERIVED, SELF, lacks


@pytest.mark.parametrize(
    ("family", "over_ucx", "expected"),
    [
        pytest.param("mpich", True, (DERIVED, SELF), id="mpich-over-ucx"),
        pytest.param("openmpi", True, (DERIVED,), id="openmpi-over-ucx"),
        pytest.param("mpich", False, (), id="mpich-built-with-cuda"),
        pytest.param("intel-mpi", False, (DERIVED,), id="intel-mpi"),
        pytest.param("cray-mpich", False, (), id="cray-mpich"),
    ],
)
def test_unsupported_operations(family: str, over_ucx: bool, expected: tuple[str, ...]) -> None:
    assert lacks(family, over_ucx=over_ucx) == expected
