"""`check --with-dcgm` with a program in dcgmi's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Command

RESULTS = [{"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": ["rows are pending"]}]
TESTS = [{"category": "Deployment", "tests": [{"name": "software", "results": RESULTS}]}]
DOCUMENT = {"DCGM Diagnostic": {"test_categories": TESTS}, "metadata": {"version": "4.2.3"}}


@pytest.mark.cuda
def test_verdict_of_dcgm_stands_beside_the_others(
    doctor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi = tmp_path / "dcgmi"
    dcgmi.write_text(f"#!/bin/sh\necho '{json.dumps(DOCUMENT)}'\nexit 226\n")
    dcgmi.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = doctor("check", "driver-init", "--with-dcgm", "--simulate", "healthy-single", "--backend", "cuda")
    assert done.returncode == 12, done.stderr
    assert "FAIL  dcgm-diag\n      DCGM 4.2.3: software failed" in done.stdout
    assert "software, GPU 0: rows are pending" in done.stdout
    assert "driver-init       -  PASS" in done.stdout
