"""Tests of check collective-data: findings from recorded results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuipc_doctor.api import Context, Device, Finding, Tier
from gpuipc_doctor.model import Status
from gpuipc_doctor.probe_types import CollectiveLibrary, CollectiveStack
from gpuipc_doctor.report.sentences import evidence, summary
from tests.checks.collective_records import FOUR, PARAMS, ranks
from tests.checks.judging import ONE, check, conclude


def judged(records: dict[str, Any], **params: Any) -> Finding:
    (finding,) = conclude("collective-data", records, FOUR, **{**PARAMS, **params})
    return finding


ALWAYS = {"always": True, "words": [], "least": 0}


def wrong(*failed: tuple[str, int]) -> dict[str, Any]:
    entries = [
        {"case": f"{operation} of {nbytes} B", "says": "1 of 8 B wrong", "operation": operation}
        for operation, nbytes in failed
    ]
    return {"failed": entries, "failures": len(entries), "needs": ALWAYS}


def test_pass_says_how_much_was_compared_over_which_transport() -> None:
    finding = judged(ranks())
    assert finding.status is Status.PASS
    assert summary(finding) == (
        "NCCL 2.28.9: 137 collectives of 4 ranks correct, 792 MiB compared, over 24 channels P2P/CUMEM"
    )


def test_other_libraries_and_a_missing_call_are_evidence() -> None:
    finding = judged(ranks({"lacks": ["ncclCommSplit"]}), others=["/opt/libnccl.so.2 (2.20.5)"])
    assert finding.status is Status.PASS
    lines = evidence(finding)
    assert "not tested: this version has no ncclCommSplit" in lines
    assert "other libraries, not tested: /opt/libnccl.so.2 (2.20.5)" in lines


def test_fp8_that_is_refused_is_told_by_the_call() -> None:
    """Before Hopper the GPU has none, whatever the library's version."""
    refused = "ncclAllReduce returned ncclInvalidArgument (4)"
    assert f"not tested: reductions of fp8: {refused}" in evidence(judged(ranks({"refused": refused})))


def test_wrong_data_names_operation_rank_and_what_it_needs() -> None:
    needs = {"always": True, "words": ["in place", "of bfloat16"], "least": 65536}
    failed = wrong(("all-reduce", 65536), ("all-reduce", 1 << 20))
    finding = judged(ranks({"needs": needs}, failed))
    assert (finding.status, finding.key) == (Status.FAIL, "wrong-data")
    assert summary(finding) == (
        "all-reduce returned wrong data in place, of bfloat16, from 65536 B on: 2 of 548 results, "
        "over 24 channels P2P/CUMEM"
    )
    assert evidence(finding)[0] == "rank 1 (cuda:1): all-reduce of 65536 B: 1 of 8 B wrong"
    assert "ranks with correct data: rank 0 (cuda:0), rank 2 (cuda:2), rank 3 (cuda:3)" in evidence(finding)


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ({**ALWAYS, "words": ["in a split communicator"]}, "wrong data in a split communicator: 1 of"),
        (ALWAYS, "wrong data: 1 of"),
        ({**ALWAYS, "always": False}, "wrong data at times: 1 of"),
    ],
)
def test_only_what_was_tried_without_is_said(needs: dict[str, Any], says: str) -> None:
    finding = judged(ranks({**wrong(("reduce", 4)), "needs": needs}))
    assert says in summary(finding)


def test_ranks_with_different_transports_are_evidence() -> None:
    finding = judged(ranks({"channels": {"SHM/direct/direct": 2}}))
    assert "channels differ by rank: 2 channels SHM/direct/direct, 24 channels P2P/CUMEM" in evidence(finding)


def test_one_gpu_alone_is_said() -> None:
    (finding,) = conclude("collective-data", ranks(number=1), ONE, **PARAMS)
    assert "collectives of one rank correct" in summary(finding)


LIBRARY = CollectiveLibrary("cuda", "/usr/lib64/libnccl.so.2", "/usr/lib64/libnccl.so.2", "2.28.9", "default")

INSTANCE = replace(ONE[0], uuid="MIG-5c07", name="NVIDIA A100-SXM4-40GB MIG 3g.20gb")


@pytest.mark.parametrize(
    ("devices", "library", "key", "says"),
    [
        (FOUR, None, "no-library", "no NCCL found on this node"),
        ((INSTANCE,), LIBRARY, "mig", "NCCL does not work between the instances of a GPU (MIG)"),
        ((*ONE, INSTANCE), LIBRARY, "mig", "NCCL does not work between the instances of a GPU (MIG)"),
        ((INSTANCE,), None, "mig", "NCCL does not work between the instances of a GPU (MIG)"),
    ],
)
def test_node_that_cannot_run_collectives_is_skipped(
    devices: tuple[Device, ...], library: CollectiveLibrary | None, key: str, says: str
) -> None:
    stack = CollectiveStack((library,) if library else (), "/usr/lib64")
    for each in ("collective-data", "collective-start", "collective-speed"):
        (finding,) = check(each).probes(Context(devices, collectives=stack, tier=Tier.SOAK))
        assert isinstance(finding, Finding)
        assert (finding.status, finding.key, summary(finding)) == (Status.SKIP, key, says)
