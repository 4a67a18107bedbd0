"""The adapters that the kernel lists, and their ports, from files like Linux's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.node import fabric_devices

NONE: dict[str, tuple[str, ...]] = {"cxi": (), "verbs": (), "efa": (), "opa": ()}


@pytest.mark.parametrize(
    ("name", "vendor", "device", "fabric"),
    [
        ("efa_0", "", "", "efa"),
        ("rdmap16s27", "0x1d0f", "0xefa2", "efa"),
        ("hfi1_0", "0x8086", "0x24f0", "opa"),
        ("opap1s0", "0x8086", "0x24f1", "opa"),
        ("opap1s0", "0x434e", "0x0001", "opa"),
        ("irdma0", "0x8086", "0x1592", "verbs"),
        ("mlx5_0", "0x15b3", "0x101e", "verbs"),
        ("mlx5_0", "", "", "verbs"),
    ],
)
def test_efa_and_omni_path_adapters_do_not_count_as_verbs(
    tmp_path: Path, name: str, vendor: str, device: str, fabric: str
) -> None:
    files = tmp_path / "sys/class/infiniband" / name / "device"
    files.mkdir(parents=True)
    for file, text in (("vendor", vendor), ("device", device)):
        if text:
            (files / file).write_text(f"{text}\n")
    assert fabric_devices.adapters(tmp_path) == NONE | {fabric: (name,)}


def test_adapters_of_each_fabric_and_the_states_of_ports(tmp_path: Path) -> None:
    assert fabric_devices.adapters(tmp_path) == NONE
    assert fabric_devices.ports(tmp_path) == {}
    for port, state in (("mlx5_1/ports/1", "1: DOWN\n"), ("mlx5_0/ports/1", "4: ACTIVE\n")):
        directory = tmp_path / "sys/class/infiniband" / port
        directory.mkdir(parents=True)
        (directory / "state").write_text(state)
    (tmp_path / "sys/class/cxi/cxi0").mkdir(parents=True)
    assert fabric_devices.adapters(tmp_path) == NONE | {"cxi": ("cxi0",), "verbs": ("mlx5_0", "mlx5_1")}
    assert fabric_devices.ports(tmp_path) == {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}
