"""Errors that count as a driver's refusal, and errors that the engine blames on the call."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import DriverError, unless_refused
from gpuipc_doctor.model import DriverFault


def raising(name: str) -> None:
    raise DriverError(DriverFault("call", 1, name))


@pytest.mark.parametrize(
    "name", ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidDevicePointer"]
)
def test_documented_refusal_counts_as_one(name: str) -> None:
    refused = unless_refused(lambda: raising(name))
    assert str(refused) == f"call returned {name} (1)"


@pytest.mark.parametrize("name", ["CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorUnknown"])
def test_other_errors_are_left_to_the_engine(name: str) -> None:
    with pytest.raises(DriverError):
        unless_refused(lambda: raising(name))


def test_result_without_a_refusal_is_returned() -> None:
    assert unless_refused(lambda: b"handle") == b"handle"


@pytest.mark.parametrize(
    ("name", "is_already_mapped", "is_not_permitted", "is_out_of_memory"),
    [
        ("CUDA_ERROR_ALREADY_MAPPED", True, False, False),
        ("hipErrorAlreadyMapped", True, False, False),
        ("CUDA_ERROR_NOT_PERMITTED", False, True, False),
        ("CUDA_ERROR_OUT_OF_MEMORY", False, False, True),
        ("hipErrorOutOfMemory", False, False, True),
        ("CUDA_ERROR_INVALID_VALUE", False, False, False),
    ],
)
def test_kinds_of_error_are_identified_by_name(
    name: str, is_already_mapped: bool, is_not_permitted: bool, is_out_of_memory: bool
) -> None:
    error = DriverError(DriverFault("call", 1, name))
    asked = (error.is_already_mapped, error.is_not_permitted, error.is_out_of_memory)
    assert asked == (is_already_mapped, is_not_permitted, is_out_of_memory)
