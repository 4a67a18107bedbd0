"""Shipped sites that resemble the simulated nodes of each system."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.model import Device
from gpuipc_doctor.simulator import profile
from gpuipc_doctor.site import layers
from gpuipc_doctor.site.resemblance import resembling

NODES = Path(__file__).parents[2] / "sites"

ALIKE = {
    "csc-lumi-g": ["csc-lumi-g", "olcf-frontier"],
    "cscs-alps-gh200": ["cscs-alps-gh200", "ncsa-deltaai"],
    "cscs-alps-mi300a": ["cscs-alps-mi300a"],  # El Capitan's launcher is Flux
    "jsc-jupiter": ["jsc-jupiter"],
    "jsc-juwels-booster": ["jsc-juwels-booster"],
    "llnl-el-capitan": ["llnl-el-capitan"],
    "ncsa-delta": ["ncsa-delta"],
    "ncsa-deltaai": ["cscs-alps-gh200", "ncsa-deltaai"],
    "nersc-perlmutter": ["ncsa-delta", "nersc-perlmutter"],  # Delta also has nodes with four A100
    "olcf-frontier": ["csc-lumi-g", "olcf-frontier"],
}


def names(name: str, *, cluster: str = "", lost: int = 0, fabric: str = "") -> list[str]:
    described = profile.load(str(NODES / f"{name}.yaml"))
    devices = [
        Device(device.backend, device.index, device.uuid, device.pci, device.name, 0)
        for device in described.devices
    ]
    files = "".join(described.files)
    launcher = "flux" if "/etc/flux" in files else "srun"
    fabrics = [fabric or ("cxi" if "/sys/class/cxi" in files else "verbs")]
    return resembling(devices[lost:], fabrics, lambda name: name == launcher, cluster)


@pytest.mark.parametrize(("name", "alike"), ALIKE.items(), ids=ALIKE)
def test_node_resembles_its_own_system(name: str, alike: list[str]) -> None:
    assert names(name) == alike


def test_every_shipped_system_is_tested() -> None:
    assert set(ALIKE) == {path.stem for path in NODES.glob("*.yaml")} & set(layers.names())


def test_lost_gpu_excludes_no_system_but_another_fabric_does() -> None:
    assert names("csc-lumi-g", lost=1) == ALIKE["csc-lumi-g"]
    assert names("csc-lumi-g", lost=8) == []
    assert names("csc-lumi-g", fabric="verbs") == []


def test_system_with_another_cluster_name_is_left_out() -> None:
    assert names("csc-lumi-g", cluster="lumi") == ["csc-lumi-g"]
