"""Messages for drivers that cannot be used, with the real bindings on a simulated node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuipc_doctor.api.driver_errors import BackendUnavailable
from gpuipc_doctor.model import Node
from tests.conformance.conftest import REAL, on_simulated, simulated_node
from tests.conformance.remote import Remote

pytestmark = pytest.mark.skipif(REAL, reason="what is missing is simulated")

DEVICE = {
    "cuda": "{backend: cuda, name: NVIDIA H200, memory: 1 GiB}",
    "hip": "{backend: hip, name: AMD Instinct MI300A, memory: 1 GiB, arch: gfx942}",
}
VERSIONS = {
    "cuda": '{nvidia-driver: 580.159.04, cuda-driver: "13.0"}',
    "hip": "{amdgpu: 6.12.12, rocm: 7.2.0, hip-runtime: 7.2.0}",
}
HIDING = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "ROCR_VISIBLE_DEVICES"}


@contextmanager
def node_of(directory: Path, profile: str) -> Iterator[Node]:
    path = directory / "profile.yaml"
    path.write_text(f"description: For one test.\n{profile}")
    with simulated_node(str(path)) as node:
        yield node


@pytest.fixture
def one_device(tmp_path: Path, backend: str) -> Iterator[Node]:
    """A node with one device, whose driver initialises."""
    with node_of(tmp_path, f"devices: [{DEVICE[backend]}]\nversions: {VERSIONS[backend]}\n") as node:
        yield node


def why_unavailable(backend: str, node: Node, **env: str) -> BackendUnavailable:
    """Open the backend in a separate process, which must report that it cannot be used."""
    remote = Remote(backend, root=node.root, env={**node.env, **env})
    try:
        with pytest.raises(BackendUnavailable) as caught:
            _ = remote.devices
    finally:
        remote.exit()
    return caught.value


@on_simulated("cuda", "hip")
def test_no_device(tmp_path: Path, backend: str) -> None:
    with node_of(tmp_path, f"devices: []\nversions: {VERSIONS[backend]}\n") as node:
        root = tmp_path / "bare"
        unavailable = why_unavailable(backend, Node(node.env, str(root)))
        assert "this node has no" in unavailable.reason
        assert not unavailable.broken


@on_simulated("cuda", "hip")
def test_a_device_on_the_bus_that_the_driver_does_not_report(
    tmp_path: Path, backend: str, one_device: Node
) -> None:
    with node_of(tmp_path, f"devices: []\nversions: {VERSIONS[backend]}\n") as node:
        unavailable = why_unavailable(backend, Node(node.env, one_device.root))
        assert "although this node has" in unavailable.reason
        assert unavailable.broken


@pytest.mark.parametrize("value", ["", "-1"])
@on_simulated("cuda", "hip")
def test_every_device_hidden(backend: str, one_device: Node, value: str) -> None:
    unavailable = why_unavailable(backend, one_device, **{HIDING[backend]: value})
    assert f"{HIDING[backend]}={value} leaves no" in unavailable.reason
    assert unavailable.broken


@on_simulated("cuda", "hip")
def test_no_library(backend: str, tmp_path: Path) -> None:
    """Skips if this machine has a real library: then hiding the simulated one is not enough."""
    library = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}[backend]
    loads = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    if subprocess.run(loads, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        pytest.skip(f"this machine has a real {library}")
    unavailable = why_unavailable(backend, Node(root=str(tmp_path)))
    assert f"cannot load the driver library: {library}" in unavailable.reason
    assert not unavailable.broken


@pytest.mark.parametrize(
    ("backend", "code", "words"),
    [
        pytest.param(
            "cuda", 802, "CUDA_ERROR_SYSTEM_NOT_READY (802): the GPUs' fabric", marks=pytest.mark.cuda
        ),
        pytest.param(
            "cuda", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the user", marks=pytest.mark.cuda
        ),
        pytest.param("cuda", 34, "CUDA_ERROR_STUB_LIBRARY (34): the loaded libcuda", marks=pytest.mark.cuda),
        pytest.param("cuda", 999, "cuInit returned CUDA_ERROR_UNKNOWN (999)", marks=pytest.mark.cuda),
        pytest.param("hip", 35, "hipErrorInsufficientDriver (35): the kernel driver", marks=pytest.mark.hip),
        pytest.param("hip", 999, "hipInit returned hipErrorUnknown (999)", marks=pytest.mark.hip),
    ],
)
def test_initialisation_fails(one_device: Node, backend: str, code: int, words: str) -> None:
    with Path(one_device.env["GPUIPC_SIM_NODE"]).open("a") as node_file:
        node_file.write(f"fault backend={backend} call=init do=error code={code}\n")
    unavailable = why_unavailable(backend, one_device)
    assert words in unavailable.reason
    assert unavailable.broken
