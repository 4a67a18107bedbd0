"""What a node refuses by design is a SKIP with its reason; the same error elsewhere is a FAIL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Command

UNCHECKED = "CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK"
SINCE = "since CUDA 13.5 the driver refuses it where the IOMMU or ACS redirects PCIe traffic"

GVISOR = '/proc/version: "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016"'
LINUX = '/proc/version: "Linux version 6.8.0-60-generic #63-Ubuntu SMP"'
IOMMU = '/sys/class/iommu/dmar0/dev: "", /sys/kernel/iommu_groups/0/type: "DMA\\n"'


def profile(count: int, faults: str, files: str = "", more: str = "") -> str:
    devices = (
        f"[{{backend: cuda, name: NVIDIA RTX A6000, memory: 48 GiB, count: {count}, nvml: {{links: 0}}}}]"
    )
    return f"extends: healthy-cuda\ndevices: {devices}\nfaults: [{faults}]\nfiles: {{{files}}}\n{more}"


REFUSED = "{call: ipc-open, peer: true, do: error, error: INVALID_VALUE}"
MANY = "{call: ipc-open, peer: true, device: %s, do: error, error: TOO_MANY_PEERS}"
WRONG = "{call: ipc-open, peer: true, do: corrupt-page}"
LOST = "peers: {cuda: none}\n"
R620 = 'versions: {nvidia-driver: 620.70.06, cuda-driver: "13.5"}\n'
R570 = 'versions: {nvidia-driver: 570.86.15, cuda-driver: "12.8"}\n'

NODES: dict[str, tuple[str, str, str, str, str]] = {
    # node: (profile, value of the variable, status of ipc-peer, what it says, what it does not say)
    "peers beyond eight": (profile(10, MANY % 9), "", "SKIP", "9 peers, of which the driver admits 8", "bug"),
    "peers within eight": (profile(2, MANY % 1), "", "FAIL", "CUDA_ERROR_TOO_MANY_PEERS", "admits"),
    "gVisor": (profile(2, REFUSED, GVISOR), "", "SKIP", "a sandbox that passes no peer mappings", "bug"),
    "Linux": (profile(2, REFUSED, LINUX), "", "FAIL", "CUDA_ERROR_INVALID_VALUE", "sandbox"),
    "gVisor, wrong data": (profile(2, WRONG, GVISOR), "", "FAIL", "wrong data", "sandbox"),
    "IOMMU": (profile(2, WRONG, IOMMU), "", "FAIL", "IOMMU, which translates", "ACS"),
    "neither": (profile(2, WRONG), "", "FAIL", "wrong data", "IOMMU"),
    "620, IOMMU": (profile(2, WRONG, IOMMU, R620), "", "SKIP", SINCE, "FAIL"),
    "620, IOMMU, unchecked": (profile(2, WRONG, IOMMU, R620), "1", "FAIL", f"{UNCHECKED}=1", "since CUDA"),
    "620, no peers at all": (profile(2, "", IOMMU, R620 + LOST), "", "SKIP", "no peer access", "since CUDA"),
    "620": (profile(2, "", "", R620), "", "PASS", "verified", "IOMMU"),
    "570, IOMMU, unchecked": (profile(2, WRONG, IOMMU, R570), "1", "FAIL", "IOMMU, which", f"{UNCHECKED}=1"),
    "570, no peers at all": (profile(2, "", IOMMU, R570 + LOST), "", "SKIP", "no peer access", "since CUDA"),
}


@pytest.mark.cuda
@pytest.mark.parametrize("node", NODES)
def test_refusal_by_design_is_told_from_a_fault(node: str, doctor: Command, tmp_path: Path) -> None:
    text, unchecked, status, says, never = NODES[node]
    file, report = tmp_path / "node.yaml", tmp_path / "report.json"
    file.write_text(f"description: '{node}'\n{text}")
    environ = {UNCHECKED: unchecked} if unchecked else {}
    arguments = ("check", "ipc-peer", "--simulate", str(file), "--output", str(report))
    ended = doctor(*arguments, env=environ)
    found = [
        each["finding"] for each in json.loads(report.read_text())["results"] if each["check"] == "ipc-peer"
    ]
    assert status in {finding["status"] for finding in found}
    assert {finding["status"] for finding in found} <= {status, "PASS"}
    assert says in json.dumps(found, ensure_ascii=False) or says in " ".join(ended.stdout.split())
    assert never not in json.dumps([finding["summary"] for finding in found]) + str(
        [finding["remedy"] for finding in found]
    )


@pytest.mark.cuda
def test_compare_tells_why_peer_access_was_lost(doctor: Command, tmp_path: Path) -> None:
    for driver in ("570-passthrough", "620-iommu"):
        arguments = ("check", "ipc-peer", "--simulate", f"peers-{driver}")
        doctor(*arguments, "--output", str(tmp_path / f"{driver}.json"))
    compared = doctor(
        "compare", *(str(tmp_path / f"{name}.json") for name in ("570-passthrough", "620-iommu"))
    )
    words = " ".join(compared.stdout.split())
    assert "PASS SKIP no longer tested" in words
    assert SINCE in words
