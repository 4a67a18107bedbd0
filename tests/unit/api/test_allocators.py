"""The allocators that a run tests."""

from __future__ import annotations

import importlib.util

from gpuipc_doctor.api import Context
from gpuipc_doctor.api.allocator import modules, probe
from gpuipc_doctor.model import Fact, Tier
from gpuipc_doctor.vendors import SUPPORTED
from tests.checks.judging import gpu


def test_early_imports_are_installed() -> None:
    for allocator in (*SUPPORTED["cuda"].allocators["cupy"], "PyTorch", "PyTorch expandable"):
        (module,) = probe(allocator, gpu(0), {}).imports
        assert module in ("cupy", "torch") or importlib.util.find_spec(module)
        assert probe(allocator, gpu(0, "hip"), {}).imports == ()


def test_libraries_are_imported_before_they_are_needed_but_not_on_hip() -> None:
    facts = [Fact("cupy", "14.2.0", "cupy_cuda13x"), Fact("pytorch", "2.11.0+rocm7.0", "torch")]
    assert modules(facts, "cuda") == [("cupy",)]
    assert modules([facts[0], Fact("pytorch", "2.11.0", "torch")], "cuda") == [("cupy",), ("torch",)]
    assert modules(facts, "hip") == []


def test_devices_share_the_allocators_of_their_backend_and_in_soak_each_has_all() -> None:
    pytorch = Fact("pytorch", "2.11.0", "torch-2.11.0.dist-info")
    cupy = Fact("cupy", "14.2.0", "cupy_cuda13x-14.2.0.dist-info")
    first, second, other = devices = (gpu(0), gpu(1), gpu(0, "hip"))
    assert Context(devices, (pytorch,)).allocators == ((first, "PyTorch"),)
    shared = Context(devices, (cupy, pytorch)).allocators
    assert sorted(name for _, name in shared) == ["MemoryAsyncPool", "MemoryPool", "PyTorch"]
    assert {device for device, name in shared if name == "PyTorch"} == {second}
    assert {device for device, name in shared if name != "PyTorch"} == {first}
    soak = Context(devices, (pytorch,), tier=Tier.SOAK)
    assert soak.allocators == ((first, "PyTorch"), (second, "PyTorch"))
    assert other not in {device for device, _ in soak.allocators}
