"""Fifty healthy runs in a row, on either vendor's simulated driver: not one FAIL, not one ERROR."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

RUNS = 50
PROFILES = ("healthy-cuda", "healthy-hip")
CHECKS = ("ipc-handles", "ipc-release", "ipc-reopen", "ipc-stale")


@pytest.mark.parametrize("number", range(RUNS))
def test_a_healthy_node_passes(doctor: Callable[..., subprocess.CompletedProcess[str]], number: int) -> None:
    """One device, and every fifth time both and the pairs of them."""
    profile = PROFILES[number % len(PROFILES)]
    chosen = ["ipc-peer"] if number % 5 == 0 else ["--device", "0"]
    ended = doctor("check", *CHECKS, *chosen, "--simulate", profile, "--json")
    results = json.loads(ended.stdout)["results"]
    assert {result["finding"]["status"] for result in results} == {"PASS"}, ended.stdout
    assert {result["check"] for result in results} >= set(CHECKS)
    assert ended.returncode == 0
