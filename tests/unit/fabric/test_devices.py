"""The adapters that the kernel lists, and their ports, from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor.fabric import devices


def test_adapters_of_each_fabric_and_the_states_of_ports(tmp_path: Path) -> None:
    assert devices.adapters(tmp_path) == {"cxi": (), "verbs": ()}
    assert devices.ports(tmp_path) == {}
    for port, state in (("mlx5_1/ports/1", "1: DOWN\n"), ("mlx5_0/ports/1", "4: ACTIVE\n")):
        directory = tmp_path / "sys/class/infiniband" / port
        directory.mkdir(parents=True)
        (directory / "state").write_text(state)
    (tmp_path / "sys/class/cxi/cxi0").mkdir(parents=True)
    assert devices.adapters(tmp_path) == {"cxi": ("cxi0",), "verbs": ("mlx5_0", "mlx5_1")}
    assert devices.ports(tmp_path) == {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}
