"""Healthy nodes, without FAIL or ERROR. benchmarks/reliability.py does hundreds of runs."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Command

RUNS = 8
PROFILES = ("healthy-cuda", "healthy-hip")
IN_EVERY_RUN = 1
"""HIP; on CUDA, test_readme.py runs all checks on a healthy node, nvidia-450.102.04."""
CHECKS = ("ipc-handles", "ipc-release", "ipc-reopen", "ipc-stale")


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n == IN_EVERY_RUN else pytest.mark.full) for n in range(RUNS)],
)
def test_healthy_node_passes(doctor: Command, number: int) -> None:
    """Each vendor's first run tests both devices and their pairs, the others test one device."""
    profile = PROFILES[number % len(PROFILES)]
    chosen = ["ipc-peer"] if number < len(PROFILES) else ["--device", "0"]
    ended = doctor("check", *CHECKS, *chosen, "--simulate", profile, "--accept-harm", "--json")
    results = json.loads(ended.stdout)["results"]
    assert {result["finding"]["status"] for result in results} == {"PASS"}, ended.stdout
    assert {result["check"] for result in results} >= set(CHECKS)
    assert ended.returncode == 0
