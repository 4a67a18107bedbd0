"""Slingshot adapters, described by a simulated node's files (see `node.fabric_devices`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.node.fabric_devices import CxiAdapter, cxi_adapters

HEALTHY = {
    "sys/class/cxi/cxi0/device/properties/pct_eq": "1",
    "sys/class/cxi/cxi0/device/port/link": "up",
    "sys/class/cxi/cxi0/device/port/speed": "BS_200G",
    "sys/class/cxi/cxi0/device/port/link_layer_retry": "on",
    "sys/class/cxi/cxi0/device/port/loopback": "off",
    "sys/class/cxi/cxi0/device/net/hsn0/ifindex": "3",
    "sys/class/net/hsn0/address": "02:00:00:00:07:ea",
    "sys/class/net/hsn0/addr_assign_type": "3",
}


def read(root: Path, files: dict[str, str]) -> list[CxiAdapter]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return cxi_adapters(root)


def test_healthy_adapter(tmp_path: Path) -> None:
    assert read(tmp_path, HEALTHY) == [CxiAdapter("cxi0", "up", "BS_200G", "on", "off", "hsn0", "")]


def test_adapter_of_the_next_generation(tmp_path: Path) -> None:
    port = "sys/class/cxi/cxi0/device/port"
    others = {name: text for name, text in HEALTHY.items() if not name.startswith(port)}
    second = {
        f"{port}/0/link/state": "up",
        f"{port}/0/link/speed": "CK_400G",
        f"{port}/0/llr/state": "on",
        f"{port}/0/link/config/loopback": "off",
    }
    assert read(tmp_path, others | second) == [CxiAdapter("cxi0", "up", "CK_400G", "on", "off", "hsn0", "")]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("sys/class/cxi/cxi0/device/properties/pct_eq", "0", "its retry handler is not running"),
        ("sys/class/net/hsn0/addr_assign_type", "0", "no address of the fabric manager (AMA): 02:00"),
        ("sys/class/net/hsn0/address", "5c:ba:2c:af:cb:e3", "no address of the fabric manager (AMA): 5c:ba"),
    ],
)
def test_reason_why_libfabric_ignores_an_adapter(tmp_path: Path, file: str, text: str, says: str) -> None:
    [adapter] = read(tmp_path, HEALTHY | {file: text})
    assert says in adapter.left_out


def test_adapter_without_a_network_interface(tmp_path: Path) -> None:
    files = {name: text for name, text in HEALTHY.items() if "/net/" not in name}
    assert read(tmp_path, files)[0].left_out == "the adapter has no network interface"


def test_no_adapter(tmp_path: Path) -> None:
    assert cxi_adapters(tmp_path) == []
