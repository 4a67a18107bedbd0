"""Tests of check ipc-dmabuf: findings from recorded results; the role runs on simulated nodes."""

from __future__ import annotations

from typing import Any

import pytest

from gpuipc_doctor.checks import ipc_dmabuf
from gpuipc_doctor.checks.ipc_dmabuf import CONTROL
from gpuipc_doctor.model import Finding, Status
from gpuipc_doctor.report import sentences
from tests.checks.judging import conclude, each_round, metered

LOST = 4 * 37 << 20
REGISTER, OPEN, CANNOT = "ibv_reg_dmabuf_mr", "ibv_open_device", ipc_dmabuf.CANNOT
MMAP = "mmap: Unknown error 524"


def judged(*, lost: dict[str, int] | None = None, descriptors: int = 0, **of: Any) -> list[Finding]:
    seen = {"claimed": True, "refused": "", "unread": "", "vmm": "", "adapters": {}, "wrong": [], **of}
    loop = each_round("export", ipc_dmabuf.ROUNDS, descriptors=descriptors.__mul__)
    return conclude("ipc-dmabuf", {"allocator": {**seen, **loop, **metered(lost or {})}})


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({}, "PASS exported"),
        ({"unread": MMAP}, "PASS exported"),
        ({"vmm": "it is refused"}, "PASS exported"),
        ({"claimed": None}, "PASS exported"),  # a driver that is too old to say
        ({"claimed": False}, "WARN not-stated"),
        ({"claimed": False, "refused": "no"}, "SKIP refused"),
        ({"claimed": None, "refused": "no"}, "SKIP refused"),
        ({"wrong": ["a part of it, at 0: 3 B wrong"]}, "FAIL wrong-data"),
        ({"lost": {"exported memory was freed": LOST}}, "FAIL not-returned"),
        ({"lost": {"exported VMM memory was freed": LOST}}, "FAIL not-returned"),
        ({"descriptors": 1}, "FAIL descriptors-left"),
        ({"adapters": {"mlx5_0": []}}, "PASS registered, PASS exported"),
        ({"adapters": {"mlx5_0": [], "rxe0": [REGISTER, CANNOT]}}, "PASS registered, PASS exported"),
        ({"adapters": {"rxe0": [REGISTER, CANNOT]}}, "SKIP adapter-cannot, PASS exported"),
        ({"adapters": {"mlx5_0": [OPEN, "Permission denied"]}}, "SKIP adapter-cannot, PASS exported"),
        (
            {"adapters": {"mlx5_0": [], "mlx5_1": [REGISTER, "Invalid argument"]}},
            "WARN not-registered, PASS exported",
        ),
    ],
)
def test_each_thing_seen_has_its_conclusion(seen: dict[str, Any], expected: str) -> None:
    found = [f"{finding.status.value} {finding.key}" for finding in judged(**seen)]
    assert ", ".join(found) == expected


@pytest.mark.parametrize("unread", ["", MMAP])
def test_pass_says_whether_data_was_read(unread: str) -> None:
    (finding,) = judged(unread=unread)
    says = f"was not read: {MMAP}" if unread else "was read"
    assert sentences.summary(finding) == f"1000 exports left nothing behind; their data {says}"
    assert "no RDMA adapter here: memory was not registered with one" in sentences.evidence(finding)


def test_loss_of_the_control_is_named() -> None:
    lost = {f"{CONTROL} was freed": LOST, "exported VMM memory was freed": LOST}
    found = judged(lost=lost)
    assert {finding.status for finding in found} == {Status.FAIL}
    assert any("that was not exported" in sentences.summary(finding) for finding in found)


def test_evidence_names_what_was_refused_and_each_adapter() -> None:
    (healthy,), (refused,) = judged(), judged(vmm="error 801")
    assert "VMM memory is refused: error 801" in sentences.evidence(refused)
    assert not [line for line in sentences.evidence(healthy) if "VMM" in line]
    registered, _ = judged(adapters={"mlx5_0": [], "mlx5_1": [REGISTER, CANNOT]})
    assert [*sentences.evidence(registered)] == ["mlx5_0: registered", f"mlx5_1: {REGISTER} {CANNOT}"]
