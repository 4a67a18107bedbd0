"""What files tell of GPUs' health: amdgpu's counters, Xids in the kernel's log, the driver's age, IMEX."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from gpuipc_doctor.api import Json
from gpuipc_doctor.worker import health_figures

AMD = ["hip:0", "hip", "GPU-1", "0000:c1:00.0"]
LOADED = "6,2,60000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n"


def read(root: Path, files: dict[str, str], *gpus: list[str]) -> dict[str, Json]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return health_figures.read(nullcontext, str(root), gpus)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("ue: 2\nce: 40\n", {"uncorrected": 2}),
        ("ue: 0\nce: 0\n", {"uncorrected": 0}),
        ("garbage", {}),
        ("", {}),
    ],
)
def test_counters_of_amdgpu_are_read_and_garbage_is_unknown(
    tmp_path: Path, text: str, figures: dict[str, int]
) -> None:
    told = read(tmp_path, {f"sys/bus/pci/devices/{AMD[3]}/ras/umc_err_count": text}, AMD)
    assert told["gpus"] == {"hip:0": figures}
    assert (told["why"], told["log"], told["loaded_s"]) == ("", None, None)


@pytest.mark.parametrize(
    ("log", "uptime", "seconds"),
    [(LOADED, "360.50 100.0\n", 300.5), (LOADED, "", None), ("", "360.50 1.0\n", None)],
)
def test_age_of_the_driver_is_that_of_its_line_in_the_log(
    tmp_path: Path, log: str, uptime: str, seconds: float | None
) -> None:
    assert read(tmp_path, {"dev/kmsg": log, "proc/uptime": uptime}, AMD)["loaded_s"] == seconds


def test_age_of_the_driver_is_at_least_that_of_its_directory(tmp_path: Path) -> None:
    told = read(tmp_path, {"sys/module/nvidia/version": "580.159.04\n"}, AMD)
    assert 0 <= told["loaded_s"] < 60


def test_nodes_of_the_imex_domain_are_counted_without_comments(tmp_path: Path) -> None:
    told = read(tmp_path, {"etc/nvidia-imex/nodes_config.cfg": "# nodes\n10.0.0.1\n\n10.0.0.2\n"}, AMD)
    assert told["imex_nodes"] == 2


def test_missing_library_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_figures, "Nvml", missing)
    told = read(tmp_path, {}, ["cuda:0", "cuda", "GPU-0", "0000:01:00.0"])
    assert (told["gpus"], told["why"]) == ({}, "libnvidia-ml.so.1: no such file")


def missing(_: object) -> None:
    raise OSError("libnvidia-ml.so.1: no such file")
