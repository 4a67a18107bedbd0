"""dma-bufs of memory and of a part of it. Only the size is tested: a real one cannot be mapped."""

from __future__ import annotations

import os

import pytest

from tests.conformance.conftest import on_backends
from tests.conformance.remote import Remote
from tests.conformance.test_ipc import refused

NBYTES, OFFSET, PART = 4 << 20, 1 << 20, 256 << 10


@on_backends("cuda")
@pytest.mark.parametrize(("offset", "nbytes"), [(0, NBYTES), (OFFSET, PART)])
def test_export(exporter: Remote, offset: int, nbytes: int) -> None:
    if not exporter.gpu.claims_dmabuf:
        pytest.skip("this device has no dma-bufs")
    memory = exporter.gpu.alloc(NBYTES)
    descriptor = exporter.gpu.export_dmabuf(memory.address + offset, nbytes)
    assert exporter.ask("os", "lseek", descriptor, 0, os.SEEK_END) >= nbytes
    memory.free()
    with refused("CUDA_ERROR_INVALID_VALUE"):
        exporter.gpu.export_dmabuf(memory.address + offset, nbytes)
    exporter.ask("os", "close", descriptor)
