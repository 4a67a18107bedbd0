"""The finding keys of a check, read from the source of the code that judges it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_OF_ALL_CHECKS = ("api", "run", "supervise")
"""Packages whose finding keys any check can have, because their code is shared."""


def of_check(file: Path) -> set[str]:
    """Keys of the findings of the check in this file and its parts, and some other words that look like
    keys."""
    sources = (file, *file.parent.glob(f"_{file.stem}_*.py"))
    return {*_shared(), *(text for each in sources for text in _texts(ast.parse(each.read_text("utf-8"))))}


@cache
def _shared() -> frozenset[str]:
    sources = (
        source.read_text("utf-8")
        for package in _OF_ALL_CHECKS
        for source in files("gpuipc_doctor").joinpath(package).iterdir()
        if source.name.endswith(".py")
    )
    return frozenset(text for source in sources for text in _arguments(ast.parse(source)))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value):
            yield node.value


def _arguments(tree: ast.AST) -> Iterator[str]:
    """Texts passed as positional arguments, as finding keys are."""
    for node in ast.walk(tree):
        for argument in node.args if isinstance(node, ast.Call) else ():
            yield from _texts(argument) if isinstance(argument, ast.Constant) else ()
