"""Which NCCL or RCCL is tested."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuipc_doctor.model import Fact
from gpuipc_doctor.node import collective_libraries
from gpuipc_doctor.probe_types import CollectiveLibrary, CollectiveStack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "usr/lib64/libnccl.so.2.20.5",
        "opt/nvidia/hpc_sdk/Linux_x86_64/24.7/comm_libs/nccl/lib/libnccl.so.2",
        "opt/nvidia/hpc_sdk/Linux_x86_64/25.11/comm_libs/nccl/lib/libnccl.so.2",
        "opt/rocm/lib/librccl.so.1",
        "site/nvidia/nccl/lib/libnccl.so.2",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "site/nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    (tmp_path / "usr/lib64/libnccl.so.2").symlink_to("libnccl.so.2.20.5")
    return tmp_path


def names(root: Path, backend: str = "cuda", **more: object) -> list[str]:
    found = collective_libraries.find(str(root), {}, (backend,), **more)  # type: ignore[arg-type]
    return [str(library) for library in found.of(backend)]


def test_wheel_comes_first_then_the_newest_sdk_then_the_system(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/site"])
    sdk = "/opt/nvidia/hpc_sdk/Linux_x86_64/{}/comm_libs/nccl/lib/libnccl.so.2 (NVIDIA HPC SDK)"
    assert names(root) == [
        "/site/nvidia/nccl/lib/libnccl.so.2 (2.28.9, PyTorch's wheel)",
        sdk.format("25.11"),
        sdk.format("24.7"),
        "/usr/lib64/libnccl.so.2 (2.20.5, default)",
    ]


def test_named_library_belongs_to_the_vendor_whose_name_it_has(root: Path) -> None:
    found = collective_libraries.find(str(root), {}, ("cuda", "hip"), [("/ours/librccl.so.1", "--nccl-lib")])
    assert found.of("hip")[0].file == "/ours/librccl.so.1"
    assert found.of("cuda")[0].via != "--nccl-lib"


def test_node_without_library_says_where_it_was_searched(tmp_path: Path) -> None:
    found = collective_libraries.find(str(tmp_path), {}, ("cuda",))
    assert found.found == ()
    assert "/opt/rocm*" in found.searched


def test_version_of_another_nccl_on_the_node_is_no_fact_of_the_tested_one() -> None:
    first = CollectiveLibrary("cuda", "/venv/libnccl.so.2", "/venv/libnccl.so.2", "2.28.9", "PyTorch")
    facts = (Fact("nccl", "2.26.2", "/usr"), Fact("nccl", "2.28.9", "/venv"), Fact("ucx", "1.18.1", "/usr"))
    found = collective_libraries.in_use(facts, CollectiveStack((first,)))
    assert [(fact.name, fact.value) for fact in found] == [("ucx", "1.18.1"), ("nccl", "2.28.9")]
    assert collective_libraries.in_use(facts, CollectiveStack()) == facts
