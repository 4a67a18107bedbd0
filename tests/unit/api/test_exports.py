"""Tests of what the api exports."""

from __future__ import annotations

import ast
from pathlib import Path

from gpuipc_doctor import api

ROOT = Path(__file__).parents[3]


def _imported_by_checks() -> set[str]:
    return {
        alias.name
        for file in (ROOT / "checks").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "gpuipc_doctor.api"
        for alias in node.names
    }


def test_api_exports_few_names_and_checks_use_no_other() -> None:
    assert len(api.__all__) == len(set(api.__all__)) <= 70
    assert _imported_by_checks() - set(api.__all__) == set()
