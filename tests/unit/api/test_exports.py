"""Tests of what the api exports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


def test_names_of_modules_are_still_importable_from_the_api() -> None:
    from gpuipc_doctor.api import allocator, latency, program_memory

    assert getattr(api, "Allocator") is allocator.Allocator  # noqa: B009 (mypy must not see it)
    assert getattr(api, "allocator_probe") is allocator.probe  # noqa: B009
    assert getattr(api, "memory_series") is program_memory.series  # noqa: B009
    assert getattr(api, "Latency") is latency.Latency  # noqa: B009
    for module, names in api._ELSEWHERE.items():
        for entry in names.split():
            assert hasattr(api, entry.partition("=")[0]), (module, entry)


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        getattr(api, "no_such_name")  # noqa: B009
