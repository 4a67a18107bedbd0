"""Intel GPUs through the real loader of Level Zero, over the simulated driver; never run on a real one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import LOADER
from tests.e2e.conftest import Command

pytestmark = pytest.mark.ze

ENV = {**os.environ, "LD_LIBRARY_PATH": LOADER}

NODE = """
description: d
extends: healthy-ze
devices:
  - {{backend: ze, name: Intel Arc B580, memory: 12 GiB, count: {count}}}
versions: {{intel-compute-runtime: {driver}}}
"""
LEGACY, OPAQUE = "25.18.33578.6", "26.31.39395.13"
"""Versions of the driver with handles that their user moves, and that it opens itself."""

APPLY = ("driver-init", "ipc-handles", "ipc-stale", "ipc-concurrent", "ipc-release", "ipc-peer")
LACKING = ("ipc-reopen", "ipc-pool", "ipc-vmm", "ipc-vmm-release", "ipc-fabric", "driver-pool-release")


def node(directory: Path, driver: str = LEGACY, count: int = 1, faults: str = "[]") -> str:
    file = directory / "node.yaml"
    file.write_text(NODE.format(count=count, driver=driver) + f"faults: {faults}\n")
    return str(file)


def checked(doctor: Command, *asked: str) -> dict[str, list[dict[str, str]]]:
    """Check → its findings."""
    ran = doctor("check", *asked, "--json", env=ENV)
    found: dict[str, list[dict[str, str]]] = {}
    for result in json.loads(ran.stdout)["results"]:
        found.setdefault(result["check"], []).append(result["finding"])
    return found


@pytest.mark.parametrize("driver", [LEGACY, OPAQUE])
def test_healthy_node_passes_every_check_that_applies(doctor: Command, tmp_path: Path, driver: str) -> None:
    found = checked(doctor, *APPLY, "--simulate", node(tmp_path, driver, count=2))
    said = {check: {finding["status"] for finding in findings} for check, findings in found.items()}
    assert said == {check: {"PASS"} for check in APPLY}, found


def test_what_level_zero_lacks_is_skipped_with_the_reason(doctor: Command, tmp_path: Path) -> None:
    found = checked(doctor, *LACKING, "--simulate", node(tmp_path))
    for check in LACKING:
        assert [finding["status"] for finding in found[check]] == ["SKIP"], check
        assert "Level Zero has no such calls" in found[check][0]["summary"]
