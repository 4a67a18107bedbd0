"""Every fact names where it was read, and what was not found names where it was looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuipc_doctor import inventory
from gpuipc_doctor.cli.inventory import table
from gpuipc_doctor.model import Fact
from gpuipc_doctor.simulator.node import claimed_files
from gpuipc_doctor.simulator.profile import load
from tests import golden

NVRM = "/proc/driver/nvidia/version"
GPUS = "/proc/driver/nvidia/gpus"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U16)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  460.32.03  Sun Dec 27 19:00:34 UTC 2020\n"
    "GCC version:  gcc version 8.3.1 20191121 (Red Hat 8.3.1-5) (GCC)\n"
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The files of a node with two H200."""
    plant(tmp_path, "/proc/sys/kernel/osrelease", "5.14.21-150500.55.49_13.0.56-cray_shasta_c\n")
    plant(tmp_path, NVRM, OPEN)
    plant(tmp_path, "/sys/module/nvidia/version", "580.159.04\n")
    for bus in ("0000:19:00.0", "0000:3b:00.0"):
        plant(
            tmp_path,
            f"/proc/driver/nvidia/gpus/{bus}/information",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\n",
        )
    return tmp_path


def plant(root: Path, path: str, text: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def rows(root: Path, name: str, *driver_facts: Fact) -> list[tuple[str | None, str]]:
    return [
        (fact.value, fact.source) for fact in inventory.read(str(root), driver_facts) if fact.name == name
    ]


def test_a_node_as_a_user_reads_it(node: Path) -> None:
    from_drivers = (
        Fact("nvidia-driver", "580.159.04", "NVML"),
        Fact("cuda-driver", "13.0", "cuDriverGetVersion"),
    )
    golden.check("inventory/h200.txt", table(inventory.read(str(node), from_drivers)) + "\n")


def test_sources_that_agree_are_named_together(node: Path) -> None:
    files = f"{NVRM}; /sys/module/nvidia/version"
    assert rows(node, "nvidia-driver") == [("580.159.04", files)]
    nvml = Fact("nvidia-driver", "580.159.04", "NVML")
    assert rows(node, "nvidia-driver", nvml) == [("580.159.04", f"NVML; {files}")]


def test_a_kernel_module_under_other_libraries_keeps_a_row_of_its_own(node: Path) -> None:
    nvml = Fact("nvidia-driver", "590.44.01", "NVML")
    assert rows(node, "nvidia-driver", nvml) == [
        ("590.44.01", "NVML"),
        ("580.159.04", f"{NVRM}; /sys/module/nvidia/version"),
    ]


def test_what_a_driver_could_not_say_is_read_from_files(node: Path) -> None:
    silent = Fact("nvidia-driver", None, "NVML: nvmlInit returned NVML_ERROR_DRIVER_NOT_LOADED")
    assert rows(node, "nvidia-driver", silent) == rows(node, "nvidia-driver")


@pytest.mark.parametrize(
    ("text", "version", "module"),
    [
        (OPEN, "580.159.04", "open"),
        (PROPRIETARY, "460.32.03", "proprietary"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build\n",
            "540.4.0",
            "open",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Wed Aug 17\n", "384.81", "proprietary"),
    ],
)
def test_both_kernel_modules_are_told_apart(tmp_path: Path, text: str, version: str, module: str) -> None:
    plant(tmp_path, NVRM, text)
    assert rows(tmp_path, "nvidia-driver") == [(version, NVRM)]
    assert rows(tmp_path, "nvidia-module") == [(module, NVRM)]


def test_an_amd_node(tmp_path: Path) -> None:
    plant(tmp_path, "/opt/rocm/.info/version", "7.2.4.0-93-97f5574fe2\n")
    plant(tmp_path, "/sys/module/amdgpu/version", "6.16.13\n")
    assert rows(tmp_path, "rocm") == [("7.2.4.0-93-97f5574fe2", "/opt/rocm/.info/version")]
    assert rows(tmp_path, "amdgpu") == [("6.16.13", "/sys/module/amdgpu/version")]


@pytest.mark.parametrize(
    ("profile", "found"),
    [
        ("nvidia-460.32.03", {"nvidia-driver": "460.32.03", "gpu-model": "2 × Tesla V100-PCIE-16GB"}),
        ("healthy-hip", {"rocm": "7.2.0"}),
    ],
)
def test_a_simulated_node_is_read_like_a_real_one(
    tmp_path: Path, profile: str, found: dict[str, str]
) -> None:
    for path, text in claimed_files(load(profile)).items():
        plant(tmp_path, path, text)
    facts = {fact.name: fact.value for fact in inventory.read(str(tmp_path))}
    assert {name: facts[name] for name in found} == found


def test_different_models_are_counted(node: Path) -> None:
    plant(node, f"{GPUS}/0000:5e:00.0/information", "Model: \t\t NVIDIA A2\n")
    assert rows(node, "gpu-model") == [
        ("2 × NVIDIA H200, NVIDIA A2", "/proc/driver/nvidia/gpus/*/information")
    ]


def test_what_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    plant(tmp_path, NVRM, "no such words\n")
    plant(tmp_path, "/sys/module/amdgpu/version/is-a-directory", "")
    assert {(f.name, f.value, f.source) for f in inventory.read(str(tmp_path))} == {
        ("kernel", None, "no /proc/sys/kernel/osrelease"),
        ("nvidia-driver", None, f"not stated in {NVRM}; no /sys/module/nvidia/version"),
        ("nvidia-module", None, f"not stated in {NVRM}"),
        ("amdgpu", None, "/sys/module/amdgpu/version: Is a directory"),
        ("rocm", None, "no /opt/rocm/.info/version"),
        ("gpu-model", None, f"no {GPUS}/*/information"),
    }


def test_this_machine_has_the_kernel_that_it_says() -> None:
    assert rows(Path("/"), "kernel") == [(os.uname().release, "/proc/sys/kernel/osrelease")]


@given(st.binary())
def test_whatever_a_file_holds_becomes_one_printable_line(raw: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as root:
        for path in (NVRM, "/sys/module/nvidia/version", f"{GPUS}/0/information"):
            plant(Path(root), path, raw)
        for fact in inventory.read(root):
            assert fact.value is None or (fact.value.isprintable() and fact.value.strip() == fact.value != "")


def test_the_names_are_a_closed_set_in_the_order_of_the_rows(node: Path) -> None:
    facts = inventory.read(str(node), [Fact("hip-runtime", "7.2.53211", "hipRuntimeGetVersion")])
    names = list(dict.fromkeys(fact.name for fact in facts))
    assert names == sorted(names, key=list(inventory.NAMES).index)
