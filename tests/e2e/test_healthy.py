"""Healthy nodes, without FAIL or ERROR. benchmarks/reliability.py does hundreds of runs."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Command

CHECKS = ("ipc-handles", "ipc-peer", "ipc-release", "ipc-reopen", "ipc-stale")


@pytest.mark.parametrize("profile", ["healthy-hip", pytest.param("healthy-cuda", marks=pytest.mark.full)])
def test_healthy_node_passes(doctor: Command, profile: str) -> None:
    """Both devices and their pairs. On CUDA, test_readme.py runs all checks on a healthy node."""
    ended = doctor("check", *CHECKS, "--simulate", profile, "--accept-harm", "--json")
    results = json.loads(ended.stdout)["results"]
    assert {result["finding"]["status"] for result in results} == {"PASS"}, ended.stdout
    assert {result["check"] for result in results} >= set(CHECKS)
    assert ended.returncode == 0
