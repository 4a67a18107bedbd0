"""The inventory of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.discovery import Discovery
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.simulator.node import prepare
from gpuipc_doctor.site.config import SiteConfig

pytestmark = pytest.mark.cuda


def test_kernel_module_loaded_at_first_use_is_in_the_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = prepare("healthy-single", tmp_path)
    version = Path(node.root, "proc/driver/nvidia/version")
    says = version.read_text()
    version.unlink()
    drivers = Discovery.drivers

    def load_module(discovery: Discovery) -> Any:
        found = drivers(discovery)
        version.write_text(says)
        return found

    monkeypatch.setattr(Discovery, "drivers", load_module)
    stock = engine.collect_inventory(Request(backend="cuda"), SiteConfig(), node, Silent())
    assert [fact.value for fact in stock.facts if fact.name == "nvidia-module"] == ["open"]
