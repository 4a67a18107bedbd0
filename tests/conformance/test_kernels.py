"""The kernels of `Gpu.load_kernels`, in one process and between two, on simulated nodes and on real GPUs.

AMD's own runtime on an emulated node runs no kernels.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.conftest import on_simulated
from tests.conformance.remote import Remote

NBYTES, COUNT = 1 << 20, (1 << 17) + 3
FLAG, RESULT = NBYTES - 128, NBYTES - 64
LOADS = 1 << 14
DATA, OTHER = (3, 7), (5, 11)
CLEAR = bytes(8) + b"\xff" * 8 + bytes(8)

pytestmark = on_simulated("cuda", "hip")


def numbers(memory: Any, count: int) -> list[int]:
    data = memory.read(8 * count, RESULT)
    return [int.from_bytes(data[place : place + 8], "little") for place in range(0, len(data), 8)]


def differences(gpu: Any, kernels: Any, stream: Any, address: int, data: Any) -> list[int]:
    """Number of wrong elements, the first one, how many hold `OTHER`; none else."""
    results = gpu.alloc(NBYTES)
    results.write(CLEAR, RESULT)
    kernels.compare(stream, address, COUNT, results.address + RESULT, data, OTHER)
    stream.synchronize()
    wrong, first, other = numbers(results, 3)
    results.free()
    return [wrong, first >> 32, first & 0xFFFFFFFF, other] if wrong else []


def test_fill_writes_each_element_and_compare_describes_wrong_ones(exporter: Remote) -> None:
    gpu = exporter.gpu
    kernels, stream, memory = gpu.load_kernels(), gpu.create_stream(), gpu.alloc(NBYTES)
    kernels.fill(stream, memory.address, COUNT, DATA)
    assert differences(gpu, kernels, stream, memory.address, DATA) == []
    last = COUNT - 1
    assert int.from_bytes(memory.read(4, 4 * last), "little") == DATA[0] * last + DATA[1]
    memory.write((OTHER[0] * 9 + OTHER[1]).to_bytes(4, "little"), 4 * 9)
    memory.write(b"\x01\x00\x00\x00", 4 * last)
    assert differences(gpu, kernels, stream, memory.address, DATA) == [2, 9, OTHER[0] * 9 + OTHER[1], 1]


def test_copy_moves_each_byte_at_any_offset(exporter: Remote) -> None:
    gpu = exporter.gpu
    kernels, stream, memory = gpu.load_kernels(), gpu.create_stream(), gpu.alloc(NBYTES)
    memory.write(bytes(NBYTES))
    memory.write(bytes(range(251)) * 101, 3)
    kernels.copy(stream, memory.address + 500_001, memory.address + 3, 251 * 101)
    stream.synchronize()
    assert memory.read(251 * 101 + 2, 500_000) == b"\0" + bytes(range(251)) * 101 + b"\0"


def test_kernels_of_two_processes_add_to_the_same_memory(exporter: Remote, importer: Remote) -> None:
    buffer = exporter.gpu.alloc_coherent(NBYTES)
    mapping = importer.gpu.open_ipc(buffer.ipc_handle())
    sides = [
        (remote.gpu.load_kernels(), remote.gpu.create_stream(), memory.address)
        for remote, memory in ((exporter, buffer), (importer, mapping))
    ]
    kernels, stream, address = sides[0]
    kernels.fill(stream, address, COUNT, DATA)
    stream.synchronize()
    for kernels, stream, address in sides:
        kernels.add(stream, address, COUNT, 5, 100)
    for _, stream, _ in sides:
        stream.synchronize()
    for remote, (kernels, stream, address) in zip((exporter, importer), sides, strict=True):
        assert differences(remote.gpu, kernels, stream, address, (DATA[0], DATA[1] + 1000)) == []


def test_wait_ends_with_the_flag_or_after_so_many_loads(exporter: Remote) -> None:
    gpu = exporter.gpu
    kernels, stream, memory = gpu.load_kernels(), gpu.create_stream(), gpu.alloc(NBYTES)
    for stored, expected in ((1, 2), (2, 1)):
        kernels.store(stream, memory.address + FLAG, stored)
        kernels.wait(stream, memory.address + FLAG, 2, LOADS, memory.address + RESULT)
        stream.synchronize()
        assert numbers(memory, 1) == [expected]
    kernels.unload()
