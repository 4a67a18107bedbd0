"""What the check ipc-vmm-release concludes from what its roles recorded; of its ledger, see unit/api."""

from __future__ import annotations

import pytest

from gpuipc_doctor.api import Finding
from gpuipc_doctor.model import Status
from tests.checks.judging import MIB, conclude, ledger

ROUNDS, NBYTES = 64, 38 * MIB


def release(
    missing: int = 0,
    descriptors: int = 0,
    addresses: int = 0,
    open_descriptors: int = 1,
    open_addresses: int = NBYTES,
) -> list[Finding]:
    importer = {
        "open": {"descriptors": open_descriptors, "addresses": open_addresses},
        "left": {"descriptors": descriptors, "addresses": addresses},
    }
    exporter = ledger({"many imports": missing})
    return conclude("ipc-vmm-release", {"exporter": exporter, "importer": importer})


@pytest.mark.parametrize(
    ("left", "status", "key"),
    [
        ({}, Status.PASS, "returned"),
        ({"missing": NBYTES}, Status.FAIL, "not-returned"),
        ({"missing": ROUNDS * NBYTES}, Status.FAIL, "not-returned"),
        ({"missing": 17 * MIB}, Status.ERROR, "others-use-device"),
        ({"descriptors": ROUNDS}, Status.FAIL, "descriptors-left"),
        ({"descriptors": 2}, Status.PASS, "returned"),  # the interpreter's own
        ({"addresses": ROUNDS * NBYTES}, Status.FAIL, "addresses-left"),
        ({"addresses": NBYTES}, Status.PASS, "returned"),  # an allocator's own
        ({"open_descriptors": 0}, Status.ERROR, "process-does-not-follow"),
        ({"open_addresses": 0, "addresses": ROUNDS * NBYTES}, Status.ERROR, "process-does-not-follow"),
    ],
)
def test_what_a_loop_left(left: dict[str, int], status: Status, key: str) -> None:
    (finding,) = release(**left)
    assert (finding.status, finding.key) == (status, key)


def test_all_that_was_left_is_told() -> None:
    keys = [finding.key for finding in release(NBYTES, ROUNDS, ROUNDS * NBYTES)]
    assert keys == ["not-returned", "descriptors-left", "addresses-left"]
