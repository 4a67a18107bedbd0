"""Devices, memory, contexts and call names of every backend; IPC is in test_ipc."""

from __future__ import annotations

import re

import pytest

from gpuipc_doctor.api import pattern
from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.worker.backends import CAPABILITIES
from tests.conformance.conftest import Start, on_backends
from tests.conformance.remote import Remote

MIB = 1 << 20
CHOOSING = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "ROCR_VISIBLE_DEVICES"}


def used_mib(before: list[int], after: list[int]) -> int:
    """Memory allocated between two calls of ``memory_info``, in whole MiB, without a real driver's KiB."""
    return (before[0] - after[0]) // MIB


@on_backends("cuda", "hip")
def test_every_device_is_described(backend: str, exporter: Remote) -> None:
    devices = exporter.devices
    assert [device.label for device in devices] == [f"{backend}:{n}" for n in range(len(devices))]
    assert len({device.uuid for device in devices}) == len(devices)
    for device in devices:
        assert re.fullmatch(r"(GPU|MIG)-[0-9a-f-]{16,36}", device.uuid)
        assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", device.pci)
        assert device.name
        assert device.total_bytes > 64 * MIB
        assert {"legacy-ipc", "contexts"} <= device.capabilities <= CAPABILITIES
        assert device.peers <= {other.label for other in devices} - {device.label}


@on_backends("cuda", "hip")
@pytest.mark.usefixtures("two_devices")
def test_a_device_keeps_its_uuid_when_it_is_renumbered(backend: str, exporter: Remote, start: Start) -> None:
    second = exporter.devices[1]
    (only,) = start(env={CHOOSING[backend]: "1"}).devices
    assert (only.index, only.uuid, only.pci) == (0, second.uuid, second.pci)


@on_backends("cuda", "hip")
def test_every_version_has_its_source(backend: str, exporter: Remote) -> None:
    facts = {fact.name: (fact.value, fact.source) for fact in exporter.backend.versions()}
    name, source = {
        "cuda": ("cuda-driver", "cuDriverGetVersion"),
        "hip": ("hip-runtime", "hipRuntimeGetVersion"),
    }[backend]
    assert facts[name][1] == source
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", facts[name][0])


@on_backends("cuda", "hip")
def test_written_data_is_read_back(exporter: Remote) -> None:
    with_data = exporter.gpu.alloc(3 * MIB)
    data = pattern(3 * MIB, 1)
    with_data.write(data)
    assert with_data.read() == data
    with_data.write(b"\0", MIB)
    assert with_data.read(3, MIB - 1) == data[MIB - 1 : MIB] + b"\0" + data[MIB + 1 : MIB + 2]
    assert with_data.read(0) == b""


@on_backends("cuda", "hip")
def test_memory_info_counts_the_allocations_of_other_processes(exporter: Remote, importer: Remote) -> None:
    _ = importer.gpu.memory_info()
    before = exporter.gpu.memory_info()
    buffer = importer.gpu.alloc(64 * MIB)
    assert used_mib(before, exporter.gpu.memory_info()) >= 64  # plus the driver's own
    buffer.free()


@on_backends("cuda", "hip")
def test_memory_info_counts_an_allocation(exporter: Remote) -> None:
    before = exporter.gpu.memory_info()
    buffer = exporter.gpu.alloc(64 * MIB)
    assert used_mib(before, exporter.gpu.memory_info()) == 64
    buffer.free()
    assert used_mib(before, exporter.gpu.memory_info()) == 0
    assert before[1] == exporter.devices[0].total_bytes


@on_backends("cuda")
def test_freed_memory_is_held_by_importer(exporter: Remote, importer: Remote) -> None:
    """Seen on an H200. In a container, NVML may not know a process by its own pid."""

    def held() -> list[int | None]:
        return [process.gpu.memory_of_this_process() for process in (exporter, importer)]

    buffer = exporter.gpu.alloc(64 * MIB)
    mapping = importer.gpu.open_ipc(buffer.ipc_handle())
    with_buffer = held()
    if None in with_buffer:
        pytest.skip("NVML does not tell what each process holds here")
    buffer.free()
    freed = held()
    mapping.close()
    closed = held()
    assert (with_buffer[0] - freed[0]) // MIB == 64
    assert (freed[1] - closed[1]) // MIB == 64
    assert freed[0] - closed[0] < MIB


@on_backends("cuda", "hip")
def test_allocation_larger_than_the_device_fails(backend: str, exporter: Remote) -> None:
    with pytest.raises(DriverError) as caught:
        exporter.gpu.alloc(2 * exporter.devices[0].total_bytes)
    call, name = {
        "cuda": ("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"),
        "hip": ("hipMalloc", "hipErrorOutOfMemory"),
    }[backend]
    assert str(caught.value) == f"{call} returned {name} (2)"


@on_backends("cuda", "hip")
@pytest.mark.usefixtures("two_devices")
def test_memory_is_allocated_on_the_chosen_gpu(exporter: Remote) -> None:
    """HIP is tested because hipCtxCreate leaves another device current."""
    one, other = (exporter.backend.gpu(device) for device in exporter.backend.devices()[:2])
    one.create_context()
    other.create_context()
    before = one.memory_info(), other.memory_info()
    one.alloc(64 * MIB)
    other.alloc(32 * MIB)
    assert used_mib(before[0], one.memory_info()) == 64
    assert used_mib(before[1], other.memory_info()) == 32


@on_backends("cuda", "hip")
def test_calls_are_armed_under_their_own_names(backend: str, exporter: Remote) -> None:
    with_handle = exporter.gpu.alloc(4096)
    with_handle.ipc_handle()
    with_handle.free()
    calls = exporter.calls()
    vendor = {"cuda": "cu", "hip": "hip"}[backend]
    assert calls[0].startswith("dlopen ")
    assert calls[1] == f"{vendor}Init"
    assert all(re.match(rf"{vendor}[A-Z]", call) for call in calls[1:])
    assert calls[-2:] == [f"{vendor}IpcGetMemHandle", {"cuda": "cuMemFree", "hip": "hipFree"}[backend]]
