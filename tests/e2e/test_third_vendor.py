"""A vendor that differs from the others in shape: what is added for it, and what checks say.

Its driver is the simulated CUDA, so it needs no face of the simulator. Its devices are objects; its handles
name a descriptor of the exporter, which the importer fetches; it has no contexts, pools and VMM. The package
is this one, but for the files added here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command

ROOT = Path(__file__).parents[2]

RECORD = """
THIRD = replace(
    NVIDIA,
    backend="third",
    name="Third",
    platform="Third",
    lacks=frozenset({"contexts", "memory-pools", "pool-ipc", "vmm-ipc", "fabric-handles"}),
    manages=False,
)

VENDORS: tuple[Vendor, ...] = (THIRD, """

BACKEND = """
import os
import struct
from collections import defaultdict

from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker import descriptors
from gpuipc_doctor.worker.backends.cuda import CudaDriver


class Tile:
    def __init__(self, number):
        self.number = number


class ThirdDriver(CudaDriver):
    vendor = SUPPORTED["third"]

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.exported = defaultdict(list)

    def device_at(self, ordinal):
        return Tile(ordinal)

    def capabilities(self, device):
        return super().capabilities(device) - self.vendor.lacks

    def call(self, operation, *arguments):
        result = super().call(operation, *[getattr(one, "number", one) for one in arguments])
        if operation == "mem-free":
            for descriptor in self.exported.pop(arguments[0], ()):
                os.close(descriptor)
        return result

    def export_handle(self, address):
        base, _ = self.numbers("address-range", address)
        descriptor = os.memfd_create("handle")
        os.write(descriptor, super().export_handle(address))
        self.exported[base].append(descriptor)
        return struct.pack("qi", os.getpid(), descriptor)

    def open_handle(self, handle):
        descriptor = descriptors.fetch(*struct.unpack("qi", handle))
        try:
            return super().open_handle(os.pread(descriptor, 64, 0))
        finally:
            os.close(descriptor)


DRIVER = ThirdDriver
"""

RUN = "from gpuipc_doctor.__main__ import main; main()"


def linked(of: Path, to: Path, *left_out: str) -> None:
    """A directory with the entries of another, except those that the test has of its own."""
    to.mkdir()
    for entry in of.iterdir():
        if entry.name not in ("__pycache__", *left_out):
            (to / entry.name).symlink_to(entry)


@pytest.mark.cuda
def test_vendor_of_another_shape_is_a_record_and_a_backend(tmp_path: Path) -> None:
    package, here = tmp_path / "gpuipc_doctor", ROOT / "gpuipc_doctor"
    linked(here, package, "vendors.py", "worker")
    linked(here / "worker", package / "worker", "backends")
    linked(here / "worker/backends", package / "worker/backends")
    for name, of in {"checks": "checks", "site_configs": "site-configs"}.items():
        (package / name).symlink_to(ROOT / of)
    text = (here / "vendors.py").read_text().replace("import dataclass\n", "import dataclass, replace\n")
    (package / "vendors.py").write_text(text.replace("\nVENDORS: tuple[Vendor, ...] = (", RECORD))
    (package / "worker/backends/third.py").write_text(BACKEND)

    passed = ("ipc-handles", "ipc-stale", "ipc-concurrent", "ipc-release")
    skipped = ("ipc-reopen", "ipc-pool")
    asked = ("check", *passed, *skipped, "--backend", "third", "--simulate", "healthy-single", "--json")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {RUN}"
    ran = subprocess.run(
        [sys.executable, "-c", program, *asked],
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = json.loads(ran.stdout)["results"]
    said = {each["check"]: each["finding"] for each in results if each["check"] in passed + skipped}
    expected = dict.fromkeys(passed, "PASS") | dict.fromkeys(skipped, "SKIP")
    assert {check: finding["status"] for check, finding in said.items()} == expected, ran.stdout
    assert said["ipc-reopen"]["summary"] == "third:0 lacks contexts: Third has no such calls"
    assert {name for each in results for name in each["devices"]} == {"third:0"}


INTEL = {"vendor": "0x8086", "class": "0x038000", "device": "0x0bd5"}


@pytest.mark.parametrize(
    ("variable", "value", "tested", "code", "says"),
    [
        ("", "", {"cuda:0", "cuda:1", "hip:0", "hip:1"}, 0, ""),
        ("HIP_VISIBLE_DEVICES", "-1", {"cuda:0", "cuda:1"}, 11, "HIP_VISIBLE_DEVICES=-1 leaves no AMD GPU"),
        ("CUDA_VISIBLE_DEVICES", "", {"hip:0", "hip:1"}, 11, "CUDA_VISIBLE_DEVICES= leaves no NVIDIA GPU"),
        ("ZE_AFFINITY_MASK", "99", {"cuda:0", "cuda:1", "hip:0", "hip:1"}, 0, ""),
    ],
)
@pytest.mark.cuda
@pytest.mark.hip
def test_gpus_of_three_vendors_are_tested_unless_a_mask_hides_a_vendors(
    doctor: Command, tmp_path: Path, variable: str, value: str, tested: set[str], code: int, says: str
) -> None:
    node = tmp_path / "mixed.yaml"
    files = {f"/sys/bus/pci/devices/0000:9a:00.0/{name}": f"{text}\n" for name, text in INTEL.items()}
    node.write_text(
        f"description: d\nextends: healthy-both\nexpect: {{exit: 0}}\nfiles: {json.dumps(files)}\n"
    )
    environment = dict(os.environ) | ({variable: value} if variable else {})
    ran = doctor("check", "driver-init", "--simulate", str(node), "--json", env=environment)
    assert ran.returncode == code, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert {f"{device['backend']}:{device['index']}" for device in report["devices"]} == tested
    summaries = [result["finding"]["summary"] for result in report["results"]]
    assert any(says in summary for summary in summaries)
