"""A job's GPUs from the kernel's lists, and cases in which the driver must be queried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuipc_doctor.model import Device
from gpuipc_doctor.node import gpus

NVIDIA = """Model: \t\t NVIDIA H200
IRQ:   \t\t 104
GPU UUID: \t {uuid}
Bus Location: \t {pci}
Device Minor: \t {minor}
GPU Firmware: \t 580.159.04
"""
UUIDS = [f"GPU-0000000{n}-1111-2222-3333-444444444444" for n in range(3)]
MINORS = [2, 0, 1]  # /dev/nvidiaN need not be in bus order


def put(root: Path, name: str, text: str = "") -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    for n, (uuid, minor) in enumerate(zip(UUIDS, MINORS, strict=True)):
        pci = f"0000:{16 * (n + 1):02x}:00.0"
        put(
            tmp_path,
            f"/proc/driver/nvidia/gpus/{pci}/information",
            NVIDIA.format(uuid=uuid, pci=pci, minor=minor),
        )
    return tmp_path


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    put(tmp_path, f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    for n in range(12):  # node 10 comes after node 9, not after node 1
        place = f"location_id {(n + 1) << 8}\ndomain 1\ndrm_render_minor {128 + n}\n"
        put(tmp_path, f"{nodes}/{n + 1}/properties", f"simd_count 912\n{place}unique_id {n}\n")
    return tmp_path


def indices(job: gpus.JobGpus) -> list[int]:
    return [gpu.index for gpu in job.chosen]


def test_slurm_names_nvidia_gpus_by_their_device_files(nvidia: Path) -> None:
    job = gpus.of_job(str(nvidia), "0,2")
    assert [device.uuid for device in job.devices] == [UUIDS[0], UUIDS[1]]
    assert [device.label for device in job.devices] == ["cuda:0", "cuda:1"]  # the indices of nvidia-smi
    assert [device.name for device in job.devices] == ["NVIDIA H200"] * 2
    assert job.is_identified
    assert job.visible["CUDA_VISIBLE_DEVICES"] == f"{UUIDS[0]},{UUIDS[1]}"
    assert job.unknown == ()


@pytest.mark.parametrize(
    ("ids", "unknown"),
    [
        ("3", ("3",)),
        ("0,7,x", ("7", "x")),
        ("NoDevFiles", ("NoDevFiles",)),
        ("-1", ("-1",)),
        ("9" * 5000, ("9" * 5000,)),
        ("\u0661", ("\u0661",)),
        ("1\x1b[2J", ("1 [2J",)),
    ],
)
def test_ids_that_name_no_gpu_are_reported_and_escaped(
    nvidia: Path, ids: str, unknown: tuple[str, ...]
) -> None:
    job = gpus.of_job(str(nvidia), ids)
    assert job.unknown == unknown
    assert job.known == "0, 1, 2"


def test_uninitialised_gpu_has_no_uuid(nvidia: Path) -> None:
    file = "/proc/driver/nvidia/gpus/0000:20:00.0/information"
    unknown = "GPU-????????-????-????-????-????????????"
    put(nvidia, file, NVIDIA.format(uuid=unknown, pci="0000:20:00.0", minor=0))
    assert not gpus.of_job(str(nvidia), "0").is_identified
    assert gpus.of_job(str(nvidia), "0").visible["CUDA_VISIBLE_DEVICES"] == "1"  # with CUDA_DEVICE_ORDER
    assert gpus.of_job(str(nvidia), "1,2").is_identified


def test_split_gpu_is_not_identified_by_its_own_uuid(nvidia: Path) -> None:
    put(nvidia, "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 12\n")
    assert not gpus.of_job(str(nvidia), "0").is_identified


def test_amd_gpus_are_numbered_like_rocm(amd: Path) -> None:
    job = gpus.of_job(str(amd), "10,130")  # an index in that order, or the number of a render node
    assert indices(job) == [2, 10]
    assert job.visible["HIP_VISIBLE_DEVICES"] == "2,10"
    assert [gpu.pci for gpu in job.chosen] == ["0001:03:00.0", "0001:0b:00.0"]
    assert not job.is_identified  # so the driver is queried


def test_devices_of_the_driver_are_numbered_as_on_the_whole_node(amd: Path) -> None:
    job = gpus.of_job(str(amd), "2,10")
    found = [
        Device("hip", 0, "GPU-a", "0001:0b:00.0", "MI300A", 1),
        Device("hip", 1, "", "0009:01:00.0", "", 1),
    ]
    devices, missing = job.numbered([replace(found[0], peers=frozenset({"hip:0", "hip:1"})), found[1]])
    assert devices[0].peers == {"hip:10"}
    assert [device.label for device in devices] == ["hip:10"]  # and the foreign one is left out
    assert missing == ("hip:2 (0001:03:00.0)",)


def test_node_without_lists(tmp_path: Path) -> None:
    job = gpus.of_job(str(tmp_path), "0")
    assert (job.chosen, job.unknown, job.known) == ((), ("0",), "none")
    found = [Device("cuda", 0, UUIDS[0], "0000:10:00.0", "H200", 1)]
    assert gpus.of_job(str(tmp_path), "").numbered(found) == (tuple(found), ())


def test_amd_gpu_is_missing(amd: Path) -> None:
    assert gpus.of_job(str(amd), "7,129,200").missing == ("200",)


def test_missing_gpu_is_unknown_if_gpus_are_split_or_lack_numbers(nvidia: Path) -> None:
    information = next(nvidia.glob("proc/driver/nvidia/gpus/*/information"))
    whole = information.read_text()
    information.write_text(whole.replace("Device Minor", "Minor"))
    assert gpus.of_job(str(nvidia), "7").missing == ()
    information.write_text(whole)
    put(nvidia, "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access")
    assert gpus.of_job(str(nvidia), "7").missing == ()
    assert gpus.of_job(str(nvidia), "7").unknown == ("7",)


def test_parts_of_a_gpu_share_its_address_and_are_each_numbered(tmp_path: Path) -> None:
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for n in range(4):  # two GPUs in two parts each (Linux, Documentation/gpu/amdgpu: compute partitions)
        place = f"location_id {(n // 2 + 1) << 8}\ndomain 1\ndrm_render_minor {128 + n}\n"
        put(tmp_path, f"{nodes}/{n}/properties", f"simd_count 456\n{place}")
    job = gpus.of_job(str(tmp_path), "0,1,2")
    found = [Device("hip", n, f"GPU-{n}", f"0001:0{n // 2 + 1}:00.0", "MI300A", 1) for n in range(3)]
    devices, missing = job.numbered(found)
    assert ([device.uuid for device in devices], missing) == (["GPU-0", "GPU-1", "GPU-2"], ())
    assert [device.label for device in devices] == ["hip:0", "hip:1", "hip:2"]
    devices, missing = job.numbered(found[1:])
    assert ([device.label for device in devices], missing) == (["hip:0", "hip:2"], ("hip:1 (0001:01:00.0)",))
