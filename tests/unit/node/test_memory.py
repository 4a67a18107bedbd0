"""Samples of device memory: growth, output, log, and parsing of the kernel's files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jsonschema
import pytest

from gpuipc_doctor.node import memory_content
from gpuipc_doctor.node.memory_sysfs import Amdgpu
from gpuipc_doctor.node.memory_usage import GpuUse, History, ProcessUse, Sample
from gpuipc_doctor.present.terminal import table
from gpuipc_doctor.report import json_documents
from gpuipc_doctor.vendors import AMD
from tests import golden

GIB, MIB = 1 << 30, 1 << 20
NOON = 1795176000.0

H200 = 143771 * MIB
"""As reported by NVML and `nvidia-smi`: the 141 GB of the name are not GiB."""


def sample(number: int = 0) -> Sample:
    """Samples at intervals of 2 s; a training job leaks, and some growth belongs to no known process."""
    leaking = 40 * GIB + number * 9 * MIB
    return Sample(
        NOON + 2 * number,
        (
            GpuUse(
                "cuda:0",
                "0000:65:00.0",
                "NVIDIA H200",
                leaking + 3 * GIB,
                H200,
                (ProcessUse(41213, "python3", leaking), ProcessUse(41377, "ucx_perftest\x1b[31m", 520 * MIB)),
            ),
            GpuUse("cuda:1", "0000:75:00.0", "NVIDIA H200", 512 * MIB, H200, None),
            GpuUse("cuda:2", "", "", trouble="nvmlDeviceGetMemoryInfo_v2 returned GPU is lost (15)"),
            GpuUse("cuda:3", "000f:01:00.0", "NVIDIA GB10", None, None, (ProcessUse(512, "vllm", GIB),)),
            GpuUse("hip:0", "0000:c1:00.0", "", GIB, 128 * GIB, (ProcessUse(99, "", None),)),
        ),
    )


@pytest.fixture
def watched() -> History:
    history = History()
    for number in range(31):
        history.add(sample(number))
    return history


def test_few_jumps_are_no_growth() -> None:
    history = History()
    for number in range(30):
        used = GIB + (512 * MIB if number in (7, 8, 20) else 0)
        history.add(Sample(NOON + number, (GpuUse("cuda:0", "", "", used, 2 * GIB),)))
    assert history.growth(("cuda:0", 0)) == 0.0


def test_table(watched: History) -> None:
    rows = list(memory_content.rows(sample(31), watched.growth))
    golden.check("memory/watch.txt", table(rows, memory_content.HEADERS, wrapped=1) + "\n")


def test_lines(watched: History) -> None:
    text = "\n".join(memory_content.lines(sample(31), watched.growth)) + "\n"
    golden.check("memory/lines.txt", re.sub(r"\d{4}-\d\d-\d\dT\S+", "2026-11-20T12:01:02+00:00", text))


def test_sample_survives_a_json_round_trip() -> None:
    assert json_documents.load(Sample, json.loads(json.dumps(asdict(sample())))) == sample()


def test_log_line_matches_its_schema(watched: History) -> None:
    schema = json.loads(memory_content.SCHEMA.read_text())
    line = json.loads(memory_content.log_line(sample(31), watched.growth, host="node01", simulated=""))
    jsonschema.validate(line, schema)
    first, _, lost, shared, amd = line["gpus"]
    assert first["growth_bytes_per_minute"] == pytest.approx(270 * MIB)
    assert first["processes"][1]["used_bytes"] == 520 * MIB
    assert (lost["used_bytes"], lost["total_bytes"], lost["processes"]) == (None, None, None)
    assert (shared["used_bytes"], shared["total_bytes"], shared["trouble"]) == (None, None, "")
    assert shared["processes"][0]["used_bytes"] == GIB
    assert amd["processes"] == [{"pid": 99, "name": "", "used_bytes": None, "growth_bytes_per_minute": None}]
    for wrong in ({"format": 1}, {"gpus": []}, {"gpus": [{**first, "used_bytes": -1}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**line, **wrong}, schema)


# -- AMD's files ------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], None]:
    def one(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return one


@pytest.fixture
def worker() -> Any:
    worker = MagicMock()
    worker.armed.side_effect = lambda _operation: contextlib.nullcontext()
    return worker


def test_amd_gpus_are_read_from_the_kernels_files(
    write: Callable[[str, str], None], worker: Any, tmp_path: Path
) -> None:
    device, nobody = "sys/bus/pci/devices/0000:c1:00.0", 1 << 23  # Linux numbers no process so high
    for name, text in {
        f"{device}/vendor": "0x1002",
        f"{device}/class": "0x120000",
        f"{device}/mem_info_vram_total": "137438953472",
        f"{device}/mem_info_vram_used": "1073741824",
        "sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de",
        "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "domain 0\nlocation_id 0",
        "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "51543",
        "sys/class/kfd/kfd/topology/nodes/1/properties": "domain 0\nlocation_id 49408",
        f"sys/class/kfd/kfd/proc/{nobody}/vram_51543": "536870912",
        f"sys/class/kfd/kfd/proc/{nobody}/vram_666": "1",
    }.items():
        write(name, f"{text}\n")
    assert Amdgpu(worker, tmp_path, AMD).read() == [
        GpuUse("hip:0", "0000:c1:00.0", "", GIB, 128 * GIB, (ProcessUse(nobody, "", 512 * MIB),))
    ]


def test_apu_without_memory_of_its_own_has_no_figures_instead_of_zeros(
    write: Callable[[str, str], None], worker: Any, tmp_path: Path
) -> None:
    """MI300A, whose sysfs states 0 bytes: "0 of 0" was printed."""
    device = "sys/bus/pci/devices/0000:c1:00.0"
    for name, text in {"vendor": "0x1002", "class": "0x120000", "mem_info_vram_total": "0"}.items():
        write(f"{device}/{name}", f"{text}\n")
    write(f"{device}/mem_info_vram_used", "0\n")
    assert Amdgpu(worker, tmp_path, AMD).read() == [GpuUse("hip:0", "0000:c1:00.0", "", None, None)]


def test_amd_gpu_without_its_driver_reports_the_missing_part(
    write: Callable[[str, str], None], worker: Any, tmp_path: Path
) -> None:
    write("sys/bus/pci/devices/0000:c1:00.0/vendor", "0x1002\n")
    write("sys/bus/pci/devices/0000:c1:00.0/class", "0x038000\n")
    (gpu,) = Amdgpu(worker, tmp_path, AMD).read()
    assert gpu.trouble == ("/sys/bus/pci/devices/0000:c1:00.0/mem_info_vram_used: No such file or directory")
