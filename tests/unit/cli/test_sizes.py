"""Commands parse, call one room and print: no function of theirs is long (its complexity: `make lint`)."""

from __future__ import annotations

import ast
from pathlib import Path

from gpuipc_doctor import cli

MOST_LINES = 60


def test_no_function_of_a_command_is_long() -> None:
    long = [
        f"{file.name}: {node.name}"
        for file in Path(cli.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= MOST_LINES
    ]
    assert long == []
