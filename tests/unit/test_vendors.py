"""What tells vendors apart is in their records, their backends and the simulator; here are the exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor import vendors
from gpuipc_doctor.simulator import build, vocabulary
from gpuipc_doctor.vendors import SUPPORTED, VENDORS, Vendor

ROOT = Path(__file__).parents[2]

OWN = ("gpuipc_doctor/vendors.py", "gpuipc_doctor/simulator/", "gpuipc_doctor/worker/backends/")

EXCEPTIONS = {
    "gpuipc_doctor/histories/c_drivers.py": "C programs call the functions of a vendor's driver",
    "gpuipc_doctor/histories/mpi_library_limits.py": "what an MPI library documents of a vendor's GPUs",
    "gpuipc_doctor/node/gpus.py": "each kernel driver lists its GPUs in files of its own",
    "gpuipc_doctor/node/memory_sampling.py": "NVML, and the files of amdgpu",
    "gpuipc_doctor/run/hanging_gpus.py": "a GPU with which the driver hangs was seen with CUDA only",
    "gpuipc_doctor/worker/pytorch.py": "PyTorch's name of all vendors' GPUs",
}
"""File → why it names vendors. Six at most: a further vendor has to be added to each."""


def named(file: Path) -> Iterator[int]:
    """Lines of a Python file with a backend's name as a string, also before a device's number, or with a
    vendor's record by its name."""
    backends = {vendor.backend for vendor in VENDORS}
    records = {name for name, value in vars(vendors).items() if isinstance(value, Vendor)}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.removesuffix(":") in backends:
                yield node.lineno
        elif isinstance(node, ast.Name) and node.id in records:
            yield node.lineno


def test_vendors_are_named_in_their_records_backends_and_the_simulator_only() -> None:
    files = sorted([*ROOT.glob("gpuipc_doctor/**/*.py"), *ROOT.glob("checks/*.py")])
    places = {str(file.relative_to(ROOT)): sorted({*named(file)}) for file in files}
    outside = {name: lines for name, lines in places.items() if lines and not name.startswith(OWN)}
    assert {name: lines for name, lines in outside.items() if name not in EXCEPTIONS} == {}
    assert outside.keys() == EXCEPTIONS.keys()  # none of which is there no more
    assert len(EXCEPTIONS) <= 6


def test_each_vendor_has_a_backend_a_face_and_a_column_of_each_table() -> None:
    for backend, vendor in SUPPORTED.items():
        assert (ROOT / "gpuipc_doctor/worker/backends" / f"{backend}.py").exists()
        loaded = (
            f"levelzero/{build.LEVEL_ZERO_DRIVER}" if vendor.experimental else vendor.library
        )  # by the real loader
        assert [face.soname for face in build.FACES if face.source == f"{backend}.c"] == [loaded]
    assert list(vocabulary.PREFIXES) == list(SUPPORTED)


def test_facts_and_errors_belong_to_one_vendor() -> None:
    for one in VENDORS:
        assert one.drivers <= one.facts
        for other in VENDORS:
            assert one is other or not one.facts & other.facts
    names = [
        name
        for vendor in SUPPORTED.values()
        for name in (vendor.errors.refused | {vendor.errors.out_of_memory})
    ]
    assert len(names) == len({*names})
